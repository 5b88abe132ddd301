//! Converts the scores of candidates (speed-ups or rates) to ranks. `ranking` decides which candidates take part and
//! which one wins.

use opt_shared::outcome::Estimate;

/// The smallest resolution of ranks, as a share. Code layout and CPU frequency alone can cause differences of this
/// size.
pub const RANK_RESOLUTION: f64 = 0.01;

/// Returns the ranks in the order of the input. Rank 1 is the best; a larger value is better.
///
/// Candidates are sorted by their lower bounds, the highest first, and the first one leads rank 1. Each further
/// candidate shares the rank of the current leader if `value ≥ leader.ci_low · (1 − resolution)`, where the resolution
/// is `min_improvement`, but at least [`RANK_RESOLUTION`]. Otherwise it leads a new rank, whose number is its position
/// in the order (1, 1, 3).
///
/// A candidate is compared with its leader and not with its neighbour, so many small steps do not add up to one long
/// tie. A wide interval gives no advantage, because ties depend on the value. Estimates whose lower bound is NaN come
/// last. For times, where less is better, rank the estimate of `1 / time`.
pub fn ranks(estimates: &[Estimate], min_improvement: f64) -> Vec<u32> {
    let resolution = min_improvement.max(RANK_RESOLUTION);
    let key = |index: usize| {
        let low = estimates[index].ci_low;
        if low.is_nan() { f64::NEG_INFINITY } else { low }
    };
    let mut order: Vec<usize> = (0..estimates.len()).collect();
    order.sort_by(|&left, &right| key(right).total_cmp(&key(left)));
    let mut ranks = vec![0; estimates.len()];
    let mut leader: Option<(usize, u32)> = None;
    for (place, &index) in (1_u32..).zip(&order) {
        let shared = leader.filter(|&(leader, _)| {
            // This comparison is also false for NaN, so an estimate with this value leads a separate rank.
            estimates[index].value >= estimates[leader].ci_low * (1.0 - resolution)
        });
        let rank = shared.map_or(place, |(_, rank)| rank);
        if shared.is_none() {
            leader = Some((index, rank));
        }
        ranks[index] = rank;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn estimate(value: f64, half_width: f64) -> Estimate {
        Estimate { value, ci_low: value * (1.0 - half_width), ci_high: value * (1.0 + half_width) }
    }

    #[test]
    fn copies_share_a_rank_and_a_faster_candidate_leads() {
        for (estimates, expected) in [
            (vec![], vec![]),
            (vec![estimate(1.0, 0.01)], vec![1]),
            (vec![estimate(1.50, 0.01), estimate(1.51, 0.01)], vec![1, 1]),
            (vec![estimate(1.0, 0.01), estimate(2.0, 0.01), estimate(1.99, 0.01)], vec![3, 1, 1]),
            (vec![estimate(1.0, 0.0), estimate(1.009, 0.0), estimate(1.02, 0.0)], vec![2, 2, 1]),
            // Small steps do not add up to a tie: the last one is compared with the first.
            (vec![estimate(1.000, 0.0), estimate(0.992, 0.0), estimate(0.984, 0.0)], vec![1, 1, 3]),
            // A wide interval does not raise a candidate's rank.
            (vec![estimate(2.0, 0.01), Estimate { value: 1.0, ci_low: 0.1, ci_high: 3.0 }], vec![1, 2]),
            // With no other candidate between them, it does not lower the rank either.
            (vec![estimate(2.0, 0.01), Estimate { value: 3.0, ci_low: 0.5, ci_high: 6.0 }], vec![1, 1]),
            (vec![estimate(f64::NAN, 0.1), estimate(0.5, 0.1)], vec![2, 1]),
        ] {
            assert_eq!(ranks(&estimates, 0.0), expected, "{estimates:?}");
        }
    }

    proptest! {
        #[test]
        fn ranks_do_not_depend_on_the_order_of_the_input(
            values in prop::collection::vec((0.5_f64..4.0, 0.0_f64..0.2), 0..12),
        ) {
            let estimates: Vec<Estimate> = values.iter().map(|&(value, width)| estimate(value, width)).collect();
            let found = ranks(&estimates, 0.0);
            for &rank in &found {
                let better = found.iter().filter(|&&other| other < rank).count();
                prop_assert_eq!(rank as usize, better + 1);
            }
            let mut reversed: Vec<Estimate> = estimates.clone();
            reversed.reverse();
            let mut back = ranks(&reversed, 0.0);
            back.reverse();
            prop_assert_eq!(&found, &back);
            // A clearly better candidate never has a worse rank.
            for (left, &left_rank) in estimates.iter().zip(&found) {
                for (right, &right_rank) in estimates.iter().zip(&found) {
                    if left.ci_low > right.ci_high {
                        prop_assert!(left_rank <= right_rank);
                    }
                }
            }
        }
    }
}
