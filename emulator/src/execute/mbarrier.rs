//! Executes operations on barriers in shared memory (`mbarrier`). Such a barrier is an object of eight bytes that
//! counts the pending arrivals of a phase. When no arrivals are pending, the next phase begins.

use super::access::{Reach, Target};
use super::block::BlockState;
use super::warp::Warp;
use super::{Stop, lanes};
use crate::code::{Address, MbarrierOp, MbarrierPhase, MemorySpace, Slot};
use crate::fault::{AccessKind, FaultKind, Memory};

/// The size of a barrier object, which is also its alignment.
const BYTES: u64 = 8;
/// The largest number of arrivals, and the mask of such a number in an object.
const MAX_COUNT: u32 = (1 << 20) - 1;

/// The contents of a barrier object. Kernels treat them as opaque, so we can choose their form.
#[derive(Clone, Copy)]
struct Object {
    /// The number of arrivals that are still pending in the current phase.
    pending: u32,
    /// The number of arrivals that complete the next phase.
    expected: u32,
    phase: u32,
}

/// A bit that is set in every object, by which memory without an object can be recognised.
const VALID: u64 = 1 << 63;
const PHASE_BITS: u32 = 23;

impl Object {
    fn decode(bits: u64) -> Option<Self> {
        let count = |from: u32| (bits >> from) as u32 & MAX_COUNT;
        let phase = (bits >> 40) as u32 & ((1 << PHASE_BITS) - 1);
        (bits & VALID != 0).then(|| Self { pending: count(0), expected: count(20), phase })
    }

    fn encode(self) -> u64 {
        VALID | u64::from(self.phase) << 40 | u64::from(self.expected) << 20 | u64::from(self.pending)
    }

    /// Counts arrivals. If the phase does not expect so many, fails with a text that says so.
    fn arrive(self, count: u32, drops: bool, completes: bool) -> Result<Self, String> {
        if count == 0 || self.pending < count {
            return Err(format!(
                "an arrival counts {count}, but the `mbarrier` has {} arrivals pending",
                self.pending
            ));
        }
        let expected = if drops { self.expected.saturating_sub(count) } else { self.expected };
        let pending = self.pending - count;
        if 0 < pending {
            return Ok(Self { pending, expected, ..self });
        }
        if !completes {
            return Err("an arrival with `.noComplete` completes the phase of an `mbarrier`".to_owned());
        }
        Ok(Self { pending: expected, expected, phase: self.next_phase() })
    }

    fn next_phase(self) -> u32 {
        (self.phase + 1) & ((1 << PHASE_BITS) - 1)
    }
}

impl Warp {
    pub fn mbarrier(
        &mut self,
        block: &mut BlockState<'_>,
        index: u32,
        active: u32,
        pc: u32,
    ) -> Result<(), Stop> {
        match block.kernel.mbarrier_ops[index as usize] {
            MbarrierOp::Init { space, at, count } => {
                for lane in lanes(active) {
                    let at = self.object_at(block, space, at, lane)?;
                    let expected = self.registers.get(count, lane) as u32;
                    if expected == 0 || MAX_COUNT < expected {
                        let what =
                            format!("an `mbarrier` for {expected} arrivals (there must be 1 to {MAX_COUNT})");
                        return Err(Stop::new(FaultKind::InvalidValue(what), lane));
                    }
                    self.watch_write(block, lane, (at, BYTES), true, pc)?;
                    let object = Object { pending: expected, expected, phase: 0 };
                    block.shared.store(at, 8, object.encode());
                    if let Some(races) = &mut block.races {
                        races.forget_barrier(at);
                    }
                }
            }
            MbarrierOp::Invalidate { space, at } => {
                for lane in lanes(active) {
                    let at = self.object_at(block, space, at, lane)?;
                    self.object(block, at, lane, pc)?;
                    self.watch_write(block, lane, (at, BYTES), true, pc)?;
                    block.shared.store(at, 8, 0);
                    if let Some(races) = &mut block.races {
                        races.forget_barrier(at);
                    }
                }
            }
            MbarrierOp::Arrive { space, at, count, state, drops, completes } => {
                for lane in lanes(active) {
                    let at = self.object_at(block, space, at, lane)?;
                    let count = count.map_or(1, |slot| self.registers.get(slot, lane) as u32);
                    let before =
                        self.arrive_at(block, at, lane, pc, |it| it.arrive(count, drops, completes))?;
                    self.registers.set(state, lane, before.encode());
                }
                if let Some(races) = &mut block.races {
                    races.end_arrivals();
                }
            }
            MbarrierOp::ArriveAfterCopies { space, at, is_expected } => {
                // These copies complete at once, unlike copies for which a thread waits in other ways, which complete
                // as late as possible.
                self.finish_copies(block, active, |_| true)?;
                for lane in lanes(active) {
                    let at = self.object_at(block, space, at, lane)?;
                    self.arrive_at(block, at, lane, pc, |it| {
                        // An arrival that was not expected first adds one to the number of arrivals that the phase
                        // expects, so the number of pending arrivals stays the same.
                        if is_expected { it.arrive(1, false, true) } else { Ok(it) }
                    })?;
                }
                if let Some(races) = &mut block.races {
                    races.end_arrivals();
                }
            }
            MbarrierOp::TestWait { space, at, phase, to } => {
                let mut complete = self.registers.flags[to as usize] & !active;
                for lane in lanes(active) {
                    let at = self.object_at(block, space, at, lane)?;
                    let now = self.object(block, at, lane, pc)?.phase;
                    let is_complete = match phase {
                        MbarrierPhase::Of(state) => {
                            let state = self.state(state, lane)?;
                            if state.phase != now && state.next_phase() != now {
                                let what = "the state of an `mbarrier` from before its last phase".to_owned();
                                return Err(Stop::new(FaultKind::InvalidValue(what), lane));
                            }
                            state.phase != now
                        }
                        MbarrierPhase::Parity(parity) => {
                            u64::from(now & 1) != self.registers.get(parity, lane) & 1
                        }
                    };
                    if is_complete {
                        complete |= 1 << lane;
                        if let Some(races) = &mut block.races {
                            races.wait_for_phase(32 * self.index + lane as u32, at);
                        }
                    }
                }
                self.registers.flags[to as usize] = complete;
            }
            MbarrierOp::PendingCount { state, to } => {
                for lane in lanes(active) {
                    let pending = self.state(state, lane)?.pending;
                    self.registers.set(to, lane, u64::from(pending));
                }
            }
        }
        Ok(())
    }

    /// Reads a state that an earlier arrival has returned.
    fn state(&self, slot: Slot, lane: usize) -> Result<Object, Stop> {
        Object::decode(self.registers.get(slot, lane)).ok_or_else(|| {
            let what = "the state of an `mbarrier` that no arrival returned".to_owned();
            Stop::new(FaultKind::InvalidValue(what), lane)
        })
    }

    /// Returns the offset of a lane's barrier object in shared memory.
    fn object_at(
        &mut self,
        block: &BlockState<'_>,
        space: MemorySpace,
        at: Address,
        lane: usize,
    ) -> Result<u64, Stop> {
        let address = self.addresses(at)[lane];
        let reach = Reach { space, bytes: BYTES, align: BYTES };
        match self.resolve(block, reach, address, lane, AccessKind::Atomic)? {
            Target::Shared(at) => Ok(at),
            _ => {
                let what = "an `mbarrier` in memory that is not shared".to_owned();
                Err(Stop::new(FaultKind::InvalidValue(what), lane))
            }
        }
    }

    /// Reads a barrier object. If another thread has executed `mbarrier.init`, a barrier or fence must order it before
    /// this read.
    fn object(&self, block: &mut BlockState<'_>, at: u64, lane: usize, pc: u32) -> Result<Object, Stop> {
        self.watch_read(block, lane, at, BYTES, pc)?;
        let (bits, state) = block.shared.load(at, 8);
        state.check(block.checks_reads, Memory::Shared, at, BYTES, lane)?;
        Object::decode(bits).ok_or_else(|| {
            let what = "memory without an `mbarrier` is used as one (is `mbarrier.init` missing?)".to_owned();
            Stop::new(FaultKind::InvalidValue(what), lane)
        })
    }

    /// Records an arrival in a barrier object. Everything that the thread has done so far is ordered before everything
    /// that any thread does after waiting for the phase. Returns the object as it was before the arrival. Call
    /// `Races::end_arrivals` after the arrivals of all lanes.
    fn arrive_at(
        &self,
        block: &mut BlockState<'_>,
        at: u64,
        lane: usize,
        pc: u32,
        change: impl FnOnce(Object) -> Result<Object, String>,
    ) -> Result<Object, Stop> {
        let before = self.object(block, at, lane, pc)?;
        let after = change(before).map_err(|what| Stop::new(FaultKind::InvalidValue(what), lane))?;
        block.shared.store(at, 8, after.encode());
        if let Some(races) = &mut block.races {
            races.arrive_in_phase(32 * self.index + lane as u32, at, after.phase != before.phase);
        }
        Ok(before)
    }
}
