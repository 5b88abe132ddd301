//! Draws a random seed for each run, which is used where the plan sets none. Authors of candidates must not know the
//! seed, so it is published only when nothing is left to time. Each stage of each candidate gets different random
//! numbers.

use std::hash::{BuildHasher, RandomState};

use opt_shared::stage::Stage;

use crate::core::event::PolicyRow;
use crate::plan::Plan;

/// The size of a seed, in bits. Integers of this size can be represented exactly in plans and by all JSON readers.
const BITS: u32 = 53;

/// Draws a seed. It is at least 1, because a 0 in a plan asks for a draw.
pub(crate) fn draw() -> u64 {
    // `RandomState` has random keys from the operating system.
    (RandomState::new().hash_one(0) >> (u64::BITS - BITS)).max(1)
}

/// Returns the seed of one stage of a candidate. It reveals neither the run's seed nor the seeds of other candidates.
pub fn of_candidate(run: u64, full_name: &str, stage: Stage) -> [u8; 32] {
    let key = blake3::derive_key("opt-supervisor: the draws of a run", &run.to_le_bytes());
    *blake3::keyed_hash(&key, format!("{} {full_name}", stage.name()).as_bytes()).as_bytes()
}

/// Returns the row of the policy log with the drawn seed, or `None` if the plan sets the seed of every candidate. If a
/// plan sets this seed, its run makes the same draws again. The row is written at the end of a run, because authors of
/// later candidates may read the log.
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
    fn each_candidate_and_stage_has_its_own_seed() {
        let seeds = [
            of_candidate(1, "softmax/fast", Stage::Profile),
            of_candidate(1, "softmax/fast", Stage::Confirm),
            of_candidate(1, "softmax/faster", Stage::Profile),
            of_candidate(2, "softmax/fast", Stage::Profile),
        ];
        let distinct: std::collections::BTreeSet<[u8; 32]> = seeds.into_iter().collect();
        assert_eq!(distinct.len(), seeds.len());
        assert_eq!(
            seeds[0],
            of_candidate(1, "softmax/fast", Stage::Profile),
            "the same inputs give the same seed"
        );
    }

    #[test]
    fn drawn_seed_is_new_and_fits_a_plan() {
        let drawn: Vec<u64> = (0..100).map(|_| draw()).collect();
        let distinct: std::collections::BTreeSet<u64> = drawn.iter().copied().collect();
        assert_eq!(distinct.len(), 100);
        assert!(drawn.iter().all(|seed| (1..1 << BITS).contains(seed)));
        // Large seeds occur, too.
        assert!(drawn.iter().any(|seed| 1 << (BITS - 8) < *seed));
    }
}
