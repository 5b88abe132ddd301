//! The seed of what a profile leaves to chance, where no plan says one: nobody's who wrote a candidate, and told when nothing
//! is left to time. Each candidate gets draws of its own.

use std::hash::{BuildHasher, RandomState};

use opt_shared::stage::Stage;

use crate::core::event::PolicyRow;
use crate::plan::Plan;

/// Numbers up to here are the same in every reader of JSON, and fit a plan.
const BITS: u32 = 53;

/// From 1 on: 0 in a plan asks for a draw.
pub(crate) fn draw() -> u64 {
    // Its keys are the system's random numbers.
    (RandomState::new().hash_one(0) >> (u64::BITS - BITS)).max(1)
}

/// The seed of one stage of a candidate. It tells nothing of the run's, nor of another's.
pub fn of_candidate(run: u64, full_name: &str, stage: Stage) -> [u8; 32] {
    let key = blake3::derive_key("opt-supervisor: the draws of a run", &run.to_le_bytes());
    *blake3::keyed_hash(&key, format!("{} {full_name}", stage.name()).as_bytes()).as_bytes()
}

/// What a plan would have to say for the same draws. None if it says so itself. For the end of a run: who hands in the next
/// candidate may read the policy log.
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
    fn each_candidate_and_stage_has_a_seed_of_its_own() {
        let seeds = [
            of_candidate(1, "softmax/fast", Stage::Profile),
            of_candidate(1, "softmax/fast", Stage::Confirm),
            of_candidate(1, "softmax/faster", Stage::Profile),
            of_candidate(2, "softmax/fast", Stage::Profile),
        ];
        let distinct: std::collections::BTreeSet<[u8; 32]> = seeds.into_iter().collect();
        assert_eq!(distinct.len(), seeds.len());
        assert_eq!(seeds[0], of_candidate(1, "softmax/fast", Stage::Profile), "and the same one again");
    }

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
