//! Judges results: compares an output with the recorded one, detects elements that were never written, and evaluates
//! times.
//!
//! This module only computes. It does not access files, processes or clocks. It assigns no status either, because
//! callers derive the status from its results.

pub(crate) mod change;
pub(crate) mod check;
mod compare;
mod decode;
pub(crate) mod element;
mod evidence;
mod feed;
mod fp8;
mod kernel;
mod layout;
mod norm;
mod scale;
mod statistics;
mod tally;
mod tolerance;

#[cfg(test)]
mod agreement;

pub use compare::{
    ByteSource, BytesSource, COMPARE_CHUNK, CompareError, Comparison, L2_CHUNK_ELEMENTS, Rules, Subject,
    compare,
};
pub use layout::LayoutError;
pub use scale::estimate_scale;
pub use statistics::{half_width, over_pairs, over_runners, quantile_of, summarise};
pub use tolerance::Tolerance;
