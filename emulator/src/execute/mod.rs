//! Runs a kernel: the blocks run on several host threads, the warps of a block take turns, and the lanes of a warp run
//! in lockstep.

mod access;
mod atomic;
mod barrier;
mod block;
mod collective;
mod copy;
mod counts;
mod fragment;
mod functions;
mod host;
mod launch;
mod matrix;
mod mbarrier;
mod offsets;
mod print;
mod race;
mod scratch;
mod vector;
#[cfg(test)]
mod vector_tests;
mod warp;
mod watch;
mod words;

pub use counts::{Counts, Traffic};
pub use launch::{Job, Limit, Summary, run};

use crate::fault::FaultKind;

/// A fault found by the interpreter, before its thread and line are known.
#[derive(Debug)]
pub struct Stop {
    pub kind: Box<FaultKind>,
    pub lane: u32,
}

impl Stop {
    pub fn new(kind: FaultKind, lane: usize) -> Self {
        Self { kind: Box::new(kind), lane: lane as u32 }
    }
}

/// Returns the numbers of the lanes in a mask, lowest first.
pub fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(lane)
    })
}

pub fn first_lane(mask: u32) -> usize {
    (mask.trailing_zeros() as usize).min(31)
}
