//! What a run has to say, to people and to programs: `summary.json`, the text on the terminal, the feedback of one
//! candidate.
//!
//! Prints a [`RunRecord`](crate::record::RunRecord); computes no result. Where the record comes from is the
//! driver's affair.

pub mod compare;
pub mod digest;
pub mod feedback;
mod figures;
pub mod html;
pub mod markdown;
mod memory;
mod replays;
#[cfg(test)]
mod sketch;
pub mod summary;
pub mod table;
pub mod text;
pub mod trace;
