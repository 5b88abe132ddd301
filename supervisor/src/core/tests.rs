//! Tests of the core on small runs.
//!
//! `desk` takes the part of the driver: each test decides which events the core gets. The simulated machine is in
//! `tools/src/simulate`.

mod assign;
mod contest;
mod control;
mod desk;
mod device;
mod ends;
mod evict;
mod laws;
mod losses;
mod memory;
mod order;
mod predictions;
mod pressure;
mod reasons;
mod replays;
mod room;
mod sources;
mod stall;
mod views;
mod want;
mod wear;
