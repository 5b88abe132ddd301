//! Plans which tensors a replay's pool loads and evicts at each step. The whole plan is computed before the first step.
//!
//! The whole schedule is known, so the constant whose next use is farthest away can be evicted first (Belady's
//! algorithm). Prefetching a constant does not evict constants that are used before it or by the running step. The plan
//! depends only on `Wanted`.

use opt_shared::replay::PoolFloor;
use opt_shared::units::Bytes;

/// A change to the pool's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    Load(u32),
    Evict(u32),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepMoves {
    /// The moves between the previous step and this one. They load the constants of this step that are not in the pool
    /// yet.
    pub before: Vec<Move>,
    /// The moves while this step runs. They prefetch constants of later steps.
    pub during: Vec<Move>,
    /// The number of this step's constants that are already in the pool after the previous step.
    pub hits: u32,
    pub misses: u32,
}

/// The moves of a whole replay, and their totals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovePlan {
    pub steps: Vec<StepMoves>,
    pub bytes_moved: Bytes,
    pub evictions: u64,
    pub peak: Bytes,
}

/// The budget is below the floor, so the constants of some step could not be loaded while the previous step runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a budget of {budget} is below the floor of {} ({} bytes): {} for two consecutive steps, {} for the largest tensor, {} pinned (raise `budget`)",
    floor.bytes(), floor.bytes().get(), floor.consecutive, floor.largest, floor.pinned
)]
pub struct BelowFloor {
    pub budget: Bytes,
    pub floor: PoolFloor,
}

/// The planner's input: the constants that each step uses, their sizes, and which of them are pinned.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub sets: &'a [Vec<u32>],
    pub slots: &'a [Bytes],
    /// The number of bytes copied for each constant.
    pub bytes: &'a [Bytes],
    pub pinned: &'a [bool],
    pub budget: Bytes,
    /// How many steps ahead of the running one constants are prefetched.
    pub depth: u32,
}

pub fn plan(wanted: Wanted<'_>) -> Result<MovePlan, BelowFloor> {
    let floor = opt_shared::replay::floor(wanted.sets, wanted.slots, wanted.pinned);
    if wanted.budget < floor.bytes() {
        return Err(BelowFloor { budget: wanted.budget, floor });
    }
    let mut planner = Planner::new(wanted);
    let steps = (0..wanted.sets.len()).map(|step| planner.step(step)).collect();
    let Planner { moved, evictions, peak, .. } = planner;
    Ok(MovePlan { steps, bytes_moved: moved, evictions, peak })
}

/// Computes the plan step by step. The fields describe the state after the last planned step.
struct Planner<'a> {
    wanted: Wanted<'a>,
    /// For each constant, the steps that still have to use it, in descending order.
    uses: Vec<Vec<usize>>,
    /// The constants in the pool that may be evicted, that is, those that are not pinned.
    resident: Vec<u32>,
    /// For each constant, true if it is in the pool.
    is_in: Vec<bool>,
    held: Bytes,
    moved: Bytes,
    evictions: u64,
    peak: Bytes,
}

impl<'a> Planner<'a> {
    fn new(wanted: Wanted<'a>) -> Self {
        let mut uses = vec![Vec::new(); wanted.slots.len()];
        for (step, set) in wanted.sets.iter().enumerate().rev() {
            for &constant in set {
                uses[constant as usize].push(step);
            }
        }
        Self {
            wanted,
            uses,
            resident: Vec::new(),
            is_in: vec![false; wanted.slots.len()],
            held: Bytes::ZERO,
            moved: Bytes::ZERO,
            evictions: 0,
            peak: Bytes::ZERO,
        }
    }

    /// Plans the loads and evictions before a step, and those while the step runs.
    fn step(&mut self, step: usize) -> StepMoves {
        let mut moves = StepMoves::default();
        let set = &self.wanted.sets[step];
        for &constant in set {
            if self.is_in[constant as usize] {
                moves.hits += 1;
                continue;
            }
            moves.misses += 1;
            // This cannot fail, because the budget is at least the floor, so all constants of a step fit into the pool.
            self.fetch(constant, step, step, &mut moves.before);
        }
        for &constant in set {
            let uses = &mut self.uses[constant as usize];
            while uses.last().is_some_and(|&used| used <= step) {
                uses.pop();
            }
        }
        let ahead = step.saturating_add(self.wanted.depth as usize).min(self.wanted.sets.len() - 1);
        'ahead: for next in step + 1..=ahead {
            for &constant in &self.wanted.sets[next] {
                if !self.is_in[constant as usize] && !self.fetch(constant, step, next, &mut moves.during) {
                    break 'ahead;
                }
            }
        }
        moves
    }

    /// Loads a constant for step `next`, which is `step` or a later one. Returns false if the load would evict a
    /// constant of `step`, or a constant whose next use is not after `next`.
    fn fetch(&mut self, constant: u32, step: usize, next: usize, moves: &mut Vec<Move>) -> bool {
        let wanted = self.wanted.slots[constant as usize];
        let mut missing = (self.held + wanted) - self.wanted.budget;
        let mut victims = Vec::new();
        if missing != Bytes::ZERO {
            let mut others: Vec<(usize, u32)> = self
                .resident
                .iter()
                .filter(|other| !self.wanted.sets[step].contains(other))
                .map(|&other| (self.next_use(other), other))
                .filter(|&(used, _)| next < used)
                .collect();
            others.sort_unstable_by_key(|&(used, other)| (std::cmp::Reverse(used), other));
            for (_, other) in others {
                if missing == Bytes::ZERO {
                    break;
                }
                missing = missing - self.wanted.slots[other as usize];
                victims.push(other);
            }
            if missing != Bytes::ZERO {
                return false;
            }
        }
        for other in victims {
            self.resident.retain(|&it| it != other);
            self.is_in[other as usize] = false;
            self.held = self.held - self.wanted.slots[other as usize];
            self.evictions += 1;
            moves.push(Move::Evict(other));
        }
        moves.push(Move::Load(constant));
        self.is_in[constant as usize] = true;
        if !self.wanted.pinned.get(constant as usize).copied().unwrap_or(false) {
            self.resident.push(constant);
        }
        self.held += wanted;
        self.moved += self.wanted.bytes[constant as usize];
        self.peak = self.peak.max(self.held);
        true
    }

    /// Returns the next step that uses the constant, which may be the step being planned, or `usize::MAX` if there is
    /// none.
    fn next_use(&self, constant: u32) -> usize {
        self.uses[constant as usize].last().copied().unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests;
