//! From estimates of many entries to one score, and from many scores to ranks and ties.
//!
//! How a single estimate comes about is the judge's work in the worker; which candidates take part, and who wins, is said
//! in `ranking`.

use opt_shared::outcome::Estimate;

/// Values closer than this are not told apart, however narrow their intervals: code layout and frequency steps
/// move the time of one and the same kernel by about as much.
pub const RANK_RESOLUTION: f64 = 0.01;

/// Weighted geometric mean of independent estimates of positive ratios, with its 95 % interval.
///
/// With shares `c = weight / Σ weights`, the value is `exp(Σ c ln v)`. Its bounds come from those of the
/// entries by the method of variance estimates recovery (Zou and Donner, "Construction of confidence limits about
/// effect measures: a general approach", Statistics in Medicine 27, 2008), which keeps lopsided intervals
/// lopsided and needs no variances:
///
/// ```text
/// ln low  = Σ c ln v − √ Σ c² (ln v − ln low_i)²
/// ln high = Σ c ln v + √ Σ c² (ln high_i − ln v)²
/// ```
///
/// Entries of weight 0 do not count. None where nothing counts, or where a value that does is not a positive
/// finite number. An interval that reaches 0 or infinity makes the mean's reach there too.
pub fn geometric_mean(estimates: &[(Estimate, u64)]) -> Option<Estimate> {
    #[expect(clippy::cast_precision_loss, reason = "counts of entries")]
    let weight_of = |weight: u64| weight as f64;
    let counted = || estimates.iter().filter(|(_, weight)| *weight > 0);
    let total: f64 = counted().map(|&(_, weight)| weight_of(weight)).sum();
    let (mut mean, mut below, mut above) = (0.0, 0.0, 0.0);
    for (estimate, weight) in counted() {
        if !(estimate.value > 0.0 && estimate.value.is_finite()) {
            return None;
        }
        let share = weight_of(*weight) / total;
        let logarithm = estimate.value.ln();
        mean += share * logarithm;
        // A bound on the wrong side of its value says nothing; it must not turn into certainty by squaring.
        below += (share * (logarithm - estimate.ci_low.max(0.0).ln()).max(0.0)).powi(2);
        above += (share * (estimate.ci_high.ln() - logarithm).max(0.0)).powi(2);
    }
    (total > 0.0).then(|| Estimate {
        value: mean.exp(),
        ci_low: (mean - below.sqrt()).exp(),
        ci_high: (mean + above.sqrt()).exp(),
    })
}

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
    fn the_mean_is_that_of_the_logarithms() {
        let mean = geometric_mean(&[(estimate(2.0, 0.0), 1), (estimate(8.0, 0.0), 1)]).expect("two entries");
        assert!((mean.value - 4.0).abs() < 1e-12 && (mean.ci_low - 4.0).abs() < 1e-12);
        let weighted =
            geometric_mean(&[(estimate(2.0, 0.0), 3), (estimate(32.0, 0.0), 1)]).expect("two entries");
        assert!((weighted.value - 4.0).abs() < 1e-12);
    }

    #[test]
    fn one_entry_keeps_its_interval_and_more_entries_narrow_it() {
        let one = Estimate { value: 2.0, ci_low: 1.9, ci_high: 2.3 };
        let mean = geometric_mean(&[(one, 7)]).expect("one entry");
        for (found, given) in [(mean.value, 2.0), (mean.ci_low, 1.9), (mean.ci_high, 2.3)] {
            assert!((found - given).abs() < 1e-12);
        }
        let four = geometric_mean(&[(one, 1); 4]).expect("four entries");
        // Half of the logarithmic width: the root of four.
        assert!(((four.value / four.ci_low).ln() * 2.0 - (2.0_f64 / 1.9).ln()).abs() < 1e-12);
        assert!(((four.ci_high / four.value).ln() * 2.0 - (2.3_f64 / 2.0).ln()).abs() < 1e-12);
    }

    #[test]
    fn what_cannot_be_averaged_gives_no_mean() {
        assert_eq!(geometric_mean(&[]), None);
        assert_eq!(geometric_mean(&[(estimate(2.0, 0.1), 0)]), None);
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(geometric_mean(&[(estimate(2.0, 0.1), 1), (estimate(value, 0.1), 1)]), None);
        }
        assert!(geometric_mean(&[(estimate(2.0, 0.1), 1), (estimate(f64::NAN, 0.1), 0)]).is_some());
        let unbounded = Estimate { value: 1.0, ci_low: 0.0, ci_high: f64::INFINITY };
        let mean = geometric_mean(&[(unbounded, 1), (estimate(1.0, 0.1), 1)]).expect("two entries");
        assert_eq!((mean.ci_low, mean.ci_high), (0.0, f64::INFINITY));
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

        #[test]
        fn the_mean_lies_between_its_entries_and_inside_its_interval(
            values in prop::collection::vec((0.1_f64..10.0, 0.0_f64..0.5, 1_u64..50), 1..12),
        ) {
            let entries: Vec<(Estimate, u64)> =
                values.iter().map(|&(value, width, weight)| (estimate(value, width), weight)).collect();
            let mean = geometric_mean(&entries).expect("positive entries");
            let least = values.iter().map(|entry| entry.0).fold(f64::INFINITY, f64::min);
            let greatest = values.iter().map(|entry| entry.0).fold(0.0, f64::max);
            prop_assert!(least * (1.0 - 1e-12) <= mean.value && mean.value <= greatest * (1.0 + 1e-12));
            prop_assert!(mean.ci_low <= mean.value && mean.value <= mean.ci_high);
        }
    }
}
