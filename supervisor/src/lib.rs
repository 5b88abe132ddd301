//! The `opt-supervisor` executable and its library: see `ARCHITECTURE.md`.

pub mod memory;
pub mod record;
pub mod report;
pub mod store;
