//! From many scores to ranks and ties. Which candidates take part, and who wins, is said in `ranking`.

use opt_shared::outcome::Estimate;

/// Values closer than this are not told apart, however narrow their intervals: code layout and frequency steps
/// move the time of one and the same kernel by about as much.
pub const RANK_RESOLUTION: f64 = 0.01;

/// Ranks from 1, larger estimates first, in the order of the input.
///
/// Candidates are taken by falling lower bound. The first of them leads rank 1. Each next one shares its leader's
/// rank if its value is not below the leader's lower bound by more than the resolution: `value ≥ leader.ci_low ·
/// (1 − resolution)`, the resolution being what the plan calls an improvement, at least [`RANK_RESOLUTION`];
/// otherwise it leads a rank of its own, whose number is its place in the
/// order (1, 1, 3). Everyone is measured against the leader, never against a neighbour, so that a row of small
/// steps does not become one long tie. Two copies of one kernel differ by less than half an interval and share a
/// rank; what is slower by more than the leader's uncertainty does not; and a wide interval of its own lifts
/// nobody, for the tie asks for the value. Estimates whose lower bound is no number come last.
///
/// For times, where less is more, rank the estimate of `1 / time`.
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
            // One comparison also settles NaN beside NaN: those lead ranks of their own, behind everyone.
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
    fn copies_share_a_rank_and_the_faster_one_leads() {
        for (estimates, expected) in [
            (vec![], vec![]),
            (vec![estimate(1.0, 0.01)], vec![1]),
            (vec![estimate(1.50, 0.01), estimate(1.51, 0.01)], vec![1, 1]),
            (vec![estimate(1.0, 0.01), estimate(2.0, 0.01), estimate(1.99, 0.01)], vec![3, 1, 1]),
            (vec![estimate(1.0, 0.0), estimate(1.009, 0.0), estimate(1.02, 0.0)], vec![2, 2, 1]),
            // Small steps do not chain: the last is measured against the first.
            (vec![estimate(1.000, 0.0), estimate(0.992, 0.0), estimate(0.984, 0.0)], vec![1, 1, 3]),
            // A wide interval lifts nobody.
            (vec![estimate(2.0, 0.01), Estimate { value: 1.0, ci_low: 0.1, ci_high: 3.0 }], vec![1, 2]),
            // Nor does it put a promising one below what it may well beat.
            (vec![estimate(2.0, 0.01), Estimate { value: 3.0, ci_low: 0.5, ci_high: 6.0 }], vec![1, 1]),
            (vec![estimate(f64::NAN, 0.1), estimate(0.5, 0.1)], vec![2, 1]),
        ] {
            assert_eq!(ranks(&estimates, 0.0), expected, "{estimates:?}");
        }
    }

    proptest! {
        #[test]
        fn ranks_are_places_and_do_not_depend_on_the_order(
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
            // What is clearly better never ranks behind.
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
