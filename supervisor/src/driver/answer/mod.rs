//! What users are answered while a run goes on, and what they may ask of it.

pub(super) mod forecast;
pub(super) mod notifications;
mod overview;
pub(super) mod replay_standing;
pub mod requests;
mod status;
pub mod submissions;
