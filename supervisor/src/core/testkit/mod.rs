//! Provides small plans and short reports for the core's own tests and for the simulated machine in
//! `tools/src/simulate`.

pub mod plan;
pub mod reports;
