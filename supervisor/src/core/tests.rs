//! Tests of the core on small runs.
//!
//! `harness` takes the driver's place, so each test decides which events the core gets. The simulated machine is in
//! `tools/src/simulate`.

mod assign;
mod contest;
mod control;
mod device;
mod ends;
mod evict;
mod harness;
mod laws;
mod losses;
mod memory;
mod order;
mod predictions;
mod pressure;
mod reasons;
mod replacement;
mod replays;
mod room;
mod shortage;
mod sources;
mod stall;
mod views;
