//! Combines estimates for a candidate's entries, such as its speed-ups, into one figure.

use super::{EntryProfile, Estimate, Profiled};

impl Profiled {
    /// The entries by which the candidate is ranked: those whose inputs varied, and those for which the candidate is
    /// clearly slower than its baseline. A short time for any other entry proves nothing, because the candidate can
    /// remember its results for inputs that do not vary. If no entry's inputs varied, the candidate is ranked by all
    /// entries that are not narrowed.
    pub fn ranked_entries(&self) -> impl Iterator<Item = &EntryProfile> {
        let all = !self.entries.iter().any(EntryProfile::is_varied);
        self.entries
            .iter()
            .filter(move |entry| (all && !entry.narrowed) || entry.is_varied() || is_slower(entry))
    }

    /// The narrowed entries by which the candidate is not ranked. An entry is narrowed if the candidate gives wrong
    /// results when the entry's inputs get new values. The candidate's speed-up for such an entry is taken to be 1. If
    /// narrowed entries were left out of the ranking, a candidate could choose the entries by which it is ranked.
    fn narrowed_entries(&self) -> impl Iterator<Item = &EntryProfile> {
        self.entries.iter().filter(|entry| entry.narrowed && !is_slower(entry))
    }

    /// The number of the capture set's entries that are represented in `speedup`.
    pub fn weight(&self) -> u64 {
        self.ranked_entries().chain(self.narrowed_entries()).map(|entry| entry.weight).sum()
    }

    /// The candidate's mean speed-up over its baseline, across the ranked and the narrowed entries. `None` if there is
    /// no ranked entry, or if one was not timed together with the baseline.
    pub fn speedup(&self) -> Option<Estimate> {
        let estimates: Option<Vec<(Estimate, u64)>> =
            self.ranked_entries().map(|entry| Some((entry.speedup?, entry.weight))).collect();
        let mut estimates = estimates.filter(|estimates| !estimates.is_empty())?;
        let one = Estimate { value: 1.0, ci_low: 1.0, ci_high: 1.0 };
        estimates.extend(self.narrowed_entries().map(|entry| (one, entry.weight)));
        geometric_mean(&estimates)
    }
}

fn is_slower(entry: &EntryProfile) -> bool {
    entry.speedup.is_some_and(|speedup| speedup.ci_high < 1.0)
}

/// Computes the weighted geometric mean of independent estimates of positive ratios, with its 95 % interval.
///
/// With shares `c = weight / Σ weights`, the value is `exp(Σ c ln v)`. Its bounds are computed from the bounds of the
/// entries by the method of variance estimates recovery (Zou and Donner, "Construction of confidence limits about
/// effect measures: a general approach", Statistics in Medicine 27, 2008). The method needs no variances and keeps
/// asymmetric intervals asymmetric:
///
/// ```text
/// ln low  = Σ c ln v − √ Σ c² (ln v − ln low_i)²
/// ln high = Σ c ln v + √ Σ c² (ln high_i − ln v)²
/// ```
///
/// Entries of weight 0 are ignored. Returns `None` if all entries are ignored, or if the value of any other entry is
/// not a positive finite number. If the interval of an entry reaches 0 or infinity, so does the interval of the mean.
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
        // A bound on the wrong side of its value is meaningless. Its distance from the value is replaced by 0, because
        // after squaring it would look like a valid one.
        below += (share * (logarithm - estimate.ci_low.max(0.0).ln()).max(0.0)).powi(2);
        above += (share * (estimate.ci_high.ln() - logarithm).max(0.0)).powi(2);
    }
    (total > 0.0).then(|| Estimate {
        value: mean.exp(),
        ci_low: (mean - below.sqrt()).exp(),
        ci_high: (mean + above.sqrt()).exp(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn estimate(value: f64, half_width: f64) -> Estimate {
        Estimate { value, ci_low: value * (1.0 - half_width), ci_high: value * (1.0 + half_width) }
    }

    #[test]
    fn mean_is_the_exponential_of_the_mean_logarithm() {
        let mean = geometric_mean(&[(estimate(2.0, 0.0), 1), (estimate(8.0, 0.0), 1)]).expect("two entries");
        assert!((mean.value - 4.0).abs() < 1e-12 && (mean.ci_low - 4.0).abs() < 1e-12);
        let weighted =
            geometric_mean(&[(estimate(2.0, 0.0), 3), (estimate(32.0, 0.0), 1)]).expect("two entries");
        assert!((weighted.value - 4.0).abs() < 1e-12);
    }

    #[test]
    fn interval_of_one_entry_is_kept_and_more_entries_narrow_it() {
        let one = Estimate { value: 2.0, ci_low: 1.9, ci_high: 2.3 };
        let mean = geometric_mean(&[(one, 7)]).expect("one entry");
        for (found, given) in [(mean.value, 2.0), (mean.ci_low, 1.9), (mean.ci_high, 2.3)] {
            assert!((found - given).abs() < 1e-12);
        }
        let four = geometric_mean(&[(one, 1); 4]).expect("four entries");
        // With four equal entries, the interval is half as wide on a logarithmic scale, because the square root of four
        // is two.
        assert!(((four.value / four.ci_low).ln() * 2.0 - (2.0_f64 / 1.9).ln()).abs() < 1e-12);
        assert!(((four.ci_high / four.value).ln() * 2.0 - (2.3_f64 / 2.0).ln()).abs() < 1e-12);
    }

    #[test]
    fn invalid_estimates_have_no_mean() {
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

    proptest! {
        #[test]
        fn mean_lies_between_its_entries_and_inside_its_interval(
            values in prop::collection::vec((0.1_f64..10.0, 0.0_f64..0.5, 1_u64..50), 1..12),
        ) {
            let entries: Vec<(Estimate, u64)> =
                values.iter().map(|&(value, width, weight)| (estimate(value, width), weight)).collect();
            let mean = geometric_mean(&entries).expect("positive entries");
            let smallest = values.iter().map(|entry| entry.0).fold(f64::INFINITY, f64::min);
            let greatest = values.iter().map(|entry| entry.0).fold(0.0, f64::max);
            prop_assert!(smallest * (1.0 - 1e-12) <= mean.value && mean.value <= greatest * (1.0 + 1e-12));
            prop_assert!(mean.ci_low <= mean.value && mean.value <= mean.ci_high);
        }
    }
}
