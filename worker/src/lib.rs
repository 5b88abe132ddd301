//! The worker and runner processes: trusted code that checks and times candidates, and the sandbox they run in.

pub mod executor;
pub mod runner;
