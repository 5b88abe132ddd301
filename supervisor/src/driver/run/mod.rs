//! The run itself: what happens becomes events, what the core decides is carried out.

pub(super) mod actions;
mod descendants;
pub(super) mod history;
pub mod leaves;
pub mod protections;
pub(super) mod replay;
pub mod sample;
pub(super) mod tasks;
