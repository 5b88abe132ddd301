//! Defines the operations on barriers of a block and on barriers in shared memory.

use super::tensor::Address;
use super::{Guard, MemorySpace, Slot};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierMode {
    Sync,
    Arrive,
    /// This mode and the next two combine a predicate of the threads that arrive.
    And,
    Or,
    Count,
}

#[derive(Clone, Copy, Debug)]
pub struct BarrierOp {
    pub mode: BarrierMode,
    /// The row that contains the barrier's index.
    pub index: u32,
    /// The row that contains the number of participating threads; `None` for all threads of the block.
    pub threads: Option<u32>,
    /// Whether it is a fault if lanes of one warp wait for the barrier at different instructions.
    pub aligned: bool,
    pub to: Option<Slot>,
    pub flag: Option<Guard>,
}

/// Selects the phase whose completion a thread waits for.
#[derive(Clone, Copy, Debug)]
pub enum MbarrierPhase {
    /// The phase in which an arrival returned this state.
    Of(Slot),
    /// The latest phase whose number has the parity in the register: 0 for even, 1 for odd.
    Parity(Slot),
}

/// An operation on a barrier in shared memory (`mbarrier`), whose address is `at`.
#[derive(Clone, Copy, Debug)]
pub enum MbarrierOp {
    Init {
        space: MemorySpace,
        at: Address,
        /// The number of arrivals that complete a phase.
        count: Slot,
    },
    Invalidate {
        space: MemorySpace,
        at: Address,
    },
    Arrive {
        space: MemorySpace,
        at: Address,
        /// The number of arrivals; 1 by default.
        count: Option<Slot>,
        /// The register that gets the state before the arrivals.
        state: Slot,
        /// Whether the arriving threads no longer take part in later phases, which then require fewer arrivals.
        drops: bool,
        /// Whether the arrivals may complete the phase.
        completes: bool,
    },
    /// `cp.async.mbarrier.arrive`: the thread arrives when its copies are complete.
    ArriveAfterCopies {
        space: MemorySpace,
        at: Address,
        /// Whether the barrier's count already includes this arrival (`.noinc`). Otherwise, this arrival is added to
        /// the number of arrivals that the phase expects.
        is_expected: bool,
    },
    TestWait {
        space: MemorySpace,
        at: Address,
        phase: MbarrierPhase,
        /// The row of the predicate that gets the result.
        to: u32,
    },
    /// Extracts the number of pending arrivals from a state.
    PendingCount {
        state: Slot,
        to: Slot,
    },
}
