//! The core at work: tables of small runs, and a simulated machine that does its worst.
//!
//! `desk` plays the driver by hand; `simulation` plays it, the workers and the machine from a tape of choices.

mod control;
mod desk;
mod ends;
mod losses;
mod memory;
mod order;
mod predictions;
mod reports;
mod simulation;
