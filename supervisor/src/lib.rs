//! The library of the `opt-supervisor` executable. `ARCHITECTURE.md` describes its modules.

pub mod captures;
pub mod cgroup;
pub mod cli;
pub mod control;
pub mod core;
pub mod driver;
pub mod exit;
pub mod memory;
pub mod metrics;
pub mod notify;
pub mod outlet;
pub mod plan;
pub mod pool;
pub mod progress;
pub mod record;
pub mod report;
pub mod signal;
#[cfg(test)]
mod snapshot;
pub mod store;
pub mod top;
