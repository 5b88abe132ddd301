//! The output of a run for people and programs: `summary.json`, the text on the terminal, and the feedback for each
//! candidate.
//!
//! This module prints a [`RunRecord`](crate::record::RunRecord) that the driver supplies. It computes no results.

pub mod compare;
pub mod digest;
pub mod feedback;
pub(crate) mod figures;
pub mod html;
pub mod markdown;
mod marks;
mod memory;
mod replays;
#[cfg(test)]
mod sketch;
pub mod summary;
pub mod table;
pub mod text;
pub mod trace;
