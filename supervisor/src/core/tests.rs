//! The core at work: tables of small runs.
//!
//! `desk` plays the driver by hand. The simulated machine is in `tools/src/simulate`.

mod control;
mod desk;
mod ends;
mod laws;
mod losses;
mod memory;
mod order;
mod predictions;
mod reasons;
mod relief;
mod replays;
mod room;
mod sources;
mod staff;
mod views;
mod want;
mod wear;
