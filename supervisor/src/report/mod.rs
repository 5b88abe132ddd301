//! Formats the output of a run for people and programs: `summary.json`, texts, pages, tables and traces, comparisons of
//! two runs, and the feedback for each candidate.
//!
//! This module prints a [`RunRecord`](crate::record::RunRecord), or parts of one. It does not compute results, but only
//! figures that follow from them, such as the ratios of a comparison.

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
