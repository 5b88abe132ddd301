//! Tracks how barriers in shared memory (`mbarrier`) order accesses: if a thread finds a phase complete, everything
//! that other threads did before they arrived in that phase or in an earlier one is ordered before what this thread
//! does next.

use std::collections::BTreeMap;

use super::Races;

/// The largest number of barriers that are tracked separately. All further barriers are treated as a single one whose
/// phases are always complete, so that no false race is reported.
const MAX_BARRIERS: usize = 64;
/// The key of these further barriers. It cannot be an offset in shared memory.
const FURTHER: u64 = u64::MAX;

/// For each thread, a tick: the thread's accesses before the tick are ordered before what a thread does after waiting.
type Ticks = Vec<u32>;

#[derive(Debug, Default)]
struct Phases {
    /// The ticks of arrivals in the current phase.
    pending: Ticks,
    /// The ticks of arrivals in complete phases.
    complete: Ticks,
}

/// The barriers in a block's shared memory, by their offsets.
#[derive(Debug, Default)]
pub(super) struct Barriers(BTreeMap<u64, Phases>);

/// Returns the host memory, in bytes, that is needed to track the barriers of a block with this number of threads.
pub(super) fn barriers_bytes(threads: u64) -> u64 {
    (MAX_BARRIERS as u64 + 1) * 2 * threads * size_of::<u32>() as u64
}

impl Barriers {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn key(&self, at: u64) -> u64 {
        // Once there are further barriers, a barrier that is not in the list may be one of them.
        let may_be_new = self.0.len() < MAX_BARRIERS && !self.0.contains_key(&FURTHER);
        if self.0.contains_key(&at) || may_be_new { at } else { FURTHER }
    }
}

fn join(into: &mut Ticks, others: &[u32]) {
    into.resize(into.len().max(others.len()), 0);
    into.iter_mut().zip(others).for_each(|(one, other)| *one = (*one).max(*other));
}

impl Races {
    /// Records that a thread arrives at the barrier at this offset. `completes` is true if the phase is then complete.
    pub fn arrive_in_phase(&mut self, thread: u32, at: u64, completes: bool) {
        let key = self.barriers.key(at);
        let mut phases = self.barriers.0.remove(&key).unwrap_or_default();
        let until = self.now + 1;
        join(&mut phases.pending, self.known_mut(thread));
        let own = &mut phases.pending[thread as usize];
        *own = (*own).max(until);
        if completes || key == FURTHER {
            let Phases { pending, complete } = &mut phases;
            join(complete, pending);
            pending.clear();
        }
        self.barriers.0.insert(key, phases);
    }

    /// Advances the tick after threads have arrived.
    pub fn end_arrivals(&mut self) {
        self.advance();
    }

    /// Records that a thread finds a phase of the barrier at this offset complete.
    pub fn wait_for_phase(&mut self, thread: u32, at: u64) {
        self.crosses_warps = true;
        let key = self.barriers.key(at);
        let Some(phases) = self.barriers.0.remove(&key) else { return };
        let known = self.known_mut(thread);
        known.iter_mut().zip(&phases.complete).for_each(|(one, other)| *one = (*one).max(*other));
        self.barriers.0.insert(key, phases);
    }

    /// Records that the memory at this offset becomes a different barrier, or is no longer a barrier.
    pub fn forget_barrier(&mut self, at: u64) {
        self.barriers.0.remove(&at);
    }
}
