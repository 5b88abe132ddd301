//! The seed of what a profile leaves to chance, where no plan says one: nobody's who wrote a candidate, and told afterwards.

use std::hash::{BuildHasher, RandomState};

use crate::core::event::PolicyRow;
use crate::plan::Plan;

/// Numbers up to here are the same in every reader of JSON, and fit a plan.
const BITS: u32 = 53;

/// From 1 on: 0 in a plan asks for a draw.
pub(crate) fn draw() -> u64 {
    // Its keys are the system's random numbers.
    (RandomState::new().hash_one(0) >> (u64::BITS - BITS)).max(1)
}

/// What a plan would have to say for the same draws. None if it says so itself.
pub(crate) fn policy_row(plan: &Plan, seed: u64) -> Option<PolicyRow> {
    let drawn = plan
        .jobs
        .iter()
        .any(|job| job.verify.seed == 0 || job.candidates.iter().any(|candidate| candidate.verify.seed == 0));
    drawn.then(|| PolicyRow {
        decision: "seed",
        reason: format!("drawn, so that no candidate can foresee it (`--set verify.seed={seed}` repeats it)"),
        numbers: vec![("seed", seed)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_drawn_anew_and_fits_a_plan() {
        let drawn: Vec<u64> = (0..100).map(|_| draw()).collect();
        let distinct: std::collections::BTreeSet<u64> = drawn.iter().copied().collect();
        assert_eq!(distinct.len(), 100);
        assert!(drawn.iter().all(|seed| (1..1 << BITS).contains(seed)));
        // Not always among the small ones.
        assert!(drawn.iter().any(|seed| 1 << (BITS - 8) < *seed));
    }
}
