//! The `opt-supervisor` executable and its library: see `ARCHITECTURE.md`.

pub mod plan;
