//! Replay under a budget: recorded calls in order, their tensors outside, only the needed ones in a capped pool.
//!
//! Owns the stage, from its task to its report. What is moved when is `planner`'s, what is really used is held against
//! the schedule by `cursor`, the copies are `pool`'s.

mod cursor;
pub mod planner;
pub mod pool;
pub mod session;
