//! The judge: is this output the recorded one, was it written at all, and what do these times show.
//!
//! Everything here is arithmetic over bytes and numbers that others fetch: bytes come through [`BytesSource`],
//! times as slices. No file, no process, no clock, and no status: the caller decides which status of DESIGN
//! "Verdicts" a result becomes.

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
mod unwritten;

#[cfg(test)]
mod agreement;

pub use compare::{
    ByteSource, BytesSource, COMPARE_CHUNK, CompareError, Comparison, L2_CHUNK_ELEMENTS, Rules, Subject,
    compare,
};
pub use layout::LayoutError;
pub use scale::estimate_scale;
pub use statistics::{at_a_glance, balanced_order, half_width, over_runners, quantile_of, summarise};
pub use tolerance::Tolerance;
pub use unwritten::{Poison, Unwritten, is_poisoned, scan_unwritten};
