//! Evaluates measured times: summarises samples, and estimates times and speed-ups with intervals, from several runners
//! or from pairs of blocks.
//!
//! The same samples and seed always give the same result. The supervisor combines the estimates of many entries into a
//! score and a rank.

use opt_shared::outcome::{Estimate, TimeSummary};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The number of resamples of a bootstrap. With this number, 25 resamples lie beyond each bound of a 95 % interval.
const RESAMPLES: usize = 1000;

/// The quantiles that bound a 95 % interval.
const INTERVAL: (f64, f64) = (0.025, 0.975);

/// Summarises the samples of one entry. Returns `None` if there are no samples, or if one of them is not finite.
pub fn summarise(samples_ms: &[f64], seed: u64) -> Option<TimeSummary> {
    let sorted = sorted(samples_ms)?;
    let (&min_time_ms, &max_time_ms) = (sorted.first()?, sorted.last()?);
    #[expect(clippy::cast_precision_loss, reason = "a count of samples")]
    let count = sorted.len() as f64;
    // Subtracting the minimum first preserves small differences between the times in the sum.
    let mean = min_time_ms + sorted.iter().map(|time| time - min_time_ms).sum::<f64>() / count;
    let squares: f64 = sorted.iter().map(|time| (time - mean).powi(2)).sum();
    let std_time_ms = if sorted.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
    let (ci_low, ci_high) = median_interval(&sorted, seed);
    Some(TimeSummary {
        median_time_ms: quantile(&sorted, 0.5),
        mean_time_ms: mean,
        std_time_ms,
        min_time_ms,
        max_time_ms,
        p5: quantile(&sorted, 0.05),
        p95: quantile(&sorted, 0.95),
        ci_low,
        ci_high,
        samples: u32::try_from(sorted.len()).unwrap_or(u32::MAX),
    })
}

/// The number of runners from which on the smallest and the largest figure are left out of the mean. Otherwise, a
/// single process that was disturbed all the time, for example by another virtual machine, would make the interval
/// several times as wide.
const MIN_TO_TRIM: usize = 10;

/// Returns the geometric mean of the figures of several runners, with its 95 % interval. A figure is a time or a ratio
/// of times.
///
/// Processes differ in the addresses of their pages and code, so blocks of the same process agree more closely than
/// blocks of different processes. Each runner therefore contributes one figure, and the interval is Student's interval
/// over the logarithms of these figures. The interval is meant to contain the true value in 95 % of all cases, even if
/// runners are added until it is narrow. With one runner, it is unbounded. Returns `None` if there are no figures, or
/// if a figure is not positive and finite.
///
/// With `MIN_TO_TRIM` runners or more, the result is a trimmed mean with the interval of Tukey and McLaughlin: of n
/// figures, the h = n - 2 inner ones are averaged, and the half-width is `t(h - 1) · s · √n / h`, where s is the
/// standard deviation of all figures after the two outer ones are replaced by their neighbours.
pub fn over_runners(figures: &[f64]) -> Option<Estimate> {
    if figures.is_empty() || !figures.iter().all(|&figure| figure > 0.0 && figure.is_finite()) {
        return None;
    }
    // Dividing by the first figure preserves small differences between the figures in the logarithms.
    let first = figures[0];
    let mut logarithms: Vec<f64> = figures.iter().map(|figure| (figure / first).ln()).collect();
    logarithms.sort_unstable_by(f64::total_cmp);
    let last = logarithms.len() - 1;
    let inner = if MIN_TO_TRIM <= logarithms.len() { 1..last } else { 0..last + 1 };
    let value = first * mean(&logarithms[inner.clone()]).exp();
    let Some(quantile) = student(inner.len() - 1) else {
        return Some(Estimate { value, ci_low: 0.0, ci_high: f64::INFINITY });
    };
    (logarithms[0], logarithms[last]) = (logarithms[inner.start], logarithms[inner.end - 1]);
    let center = mean(&logarithms);
    let squares: f64 = logarithms.iter().map(|logarithm| (logarithm - center).powi(2)).sum();
    let (all, averaged) = (count_of(&logarithms), count_of(&logarithms[inner]));
    let half = quantile * (squares / (all - 1.0) * all).sqrt() / averaged;
    Some(Estimate { value, ci_low: value * (-half).exp(), ci_high: value * half.exp() })
}

/// Returns the number of figures as an f64.
#[expect(clippy::cast_precision_loss, reason = "a handful of figures")]
const fn count_of(figures: &[f64]) -> f64 {
    figures.len() as f64
}

fn mean(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / count_of(figures)
}

/// The assumed relative difference between the times of one process and those of other processes with the same kernel.
/// It has to be assumed because it cannot be measured with a single process. If the value is too large, candidates are
/// kept longer than necessary. If it is too small, the winner could be dropped.
const UNSEEN_SPREAD: f64 = 0.1;

/// Returns the median ratio of the pairs of blocks that a single process of each side made. The interval is wide enough
/// to include the ratios that other processes would have. Returns `None` if there are no pairs, or if a ratio is not
/// positive and finite.
///
/// In logarithms, the half-width is `√(m² + u²)`. Here m is the distance from the median to the farthest ratio, and u
/// is `ln(1 + UNSEEN_SPREAD)`.
pub fn over_pairs(ratios: &[f64]) -> Option<Estimate> {
    if !ratios.iter().all(|&ratio| ratio > 0.0 && ratio.is_finite()) {
        return None;
    }
    let value = quantile_of(ratios, 0.5)?;
    let farthest = ratios.iter().map(|ratio| (ratio / value).ln().abs()).fold(0.0, f64::max);
    let half = farthest.hypot(UNSEEN_SPREAD.ln_1p());
    Some(Estimate { value, ci_low: value * (-half).exp(), ci_high: value * half.exp() })
}

/// Returns the 98.75 % quantile of Student's distribution, or `None` for 0 degrees of freedom.
///
/// With a fixed number of runners, a 95 % interval needs the 97.5 % quantile. But here, runners are added only until
/// the interval is narrow, so the series may stop because a few runners agree by chance. With the 97.5 % quantile,
/// intervals would therefore be too narrow.
fn student(degrees: usize) -> Option<f64> {
    const QUANTILES: [f64; 15] = [
        25.452, 6.205, 4.177, 3.495, 3.163, 2.969, 2.841, 2.752, 2.685, 2.634, 2.593, 2.560, 2.533, 2.510,
        2.490,
    ];
    let at = degrees.checked_sub(1)?;
    // For more degrees of freedom than the table has, the last value is used, which is slightly too large.
    Some(QUANTILES[at.min(QUANTILES.len() - 1)])
}

/// Returns the quantile at `share` of samples in any order, or `None` if there are no samples or one of them is not
/// finite.
pub fn quantile_of(samples: &[f64], share: f64) -> Option<f64> {
    Some(quantile(&sorted(samples)?, share))
}

/// Returns half the width of the interval as a share of the value, or infinity if this share is undefined.
pub fn half_width(estimate: &Estimate) -> f64 {
    let share = (estimate.ci_high - estimate.ci_low) / 2.0 / estimate.value.abs();
    if share.is_finite() { share } else { f64::INFINITY }
}

fn sorted(samples: &[f64]) -> Option<Vec<f64>> {
    if samples.is_empty() || samples.iter().any(|sample| !sample.is_finite()) {
        return None;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    Some(sorted)
}

/// Returns the quantile at `share`, interpolated linearly between the two nearest ranks (type 7 of Hyndman and Fan,
/// which is numpy's default). `sorted` must not be empty.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a count of samples")]
    let rank = share * (sorted.len() - 1) as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and the last index"
    )]
    let below = rank as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * rank.fract()
}

/// Returns the 95 % interval of the median, computed by a percentile bootstrap. `sorted` must not be empty.
fn median_interval(sorted: &[f64], seed: u64) -> (f64, f64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let count = sorted.len();
    // `drawn` counts how often each sample was drawn, so that the median can be found without sorting the resample.
    let mut drawn = vec![0_usize; count];
    let mut medians = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        drawn.fill(0);
        for _ in 0..count {
            drawn[rng.random_range(0..count)] += 1;
        }
        medians.push((ranked(sorted, &drawn, (count - 1) / 2) + ranked(sorted, &drawn, count / 2)) / 2.0);
    }
    medians.sort_unstable_by(f64::total_cmp);
    (quantile(&medians, INTERVAL.0), quantile(&medians, INTERVAL.1))
}

/// Returns the value with this rank in the resample that contains `sorted[i]` `drawn[i]` times.
fn ranked(sorted: &[f64], drawn: &[usize], rank: usize) -> f64 {
    let mut passed = 0;
    for (&value, &times) in sorted.iter().zip(drawn) {
        passed += times;
        if passed > rank {
            return value;
        }
    }
    // This is unreachable, because the counts add up to the number of samples, and a rank is smaller than this number.
    sorted[sorted.len() - 1]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};
    use rand::Rng as _;

    use super::*;

    /// Returns a number with an approximately normal distribution: the sum of twelve uniform numbers, minus six.
    fn normal(rng: &mut SmallRng) -> f64 {
        (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0
    }

    #[test]
    fn summary_of_a_known_series_is_right() {
        let samples: Vec<f64> = (1..=101).rev().map(f64::from).collect();
        let summary = summarise(&samples, 1).expect("samples");
        assert_eq!(summary.median_time_ms, 51.0);
        assert_eq!(summary.mean_time_ms, 51.0);
        assert_eq!((summary.min_time_ms, summary.max_time_ms), (1.0, 101.0));
        assert_eq!((summary.p5, summary.p95), (6.0, 96.0));
        assert!((summary.std_time_ms - 858.5_f64.sqrt()).abs() < 1e-9);
        assert_eq!(summary.samples, 101);
        // According to the binomial distribution, the exact interval spans the 41st to the 61st sample.
        assert!((39.0..=44.0).contains(&summary.ci_low), "{}", summary.ci_low);
        assert!((58.0..=63.0).contains(&summary.ci_high), "{}", summary.ci_high);
        assert_eq!(summarise(&[1.0, 2.0], 0).map(|summary| summary.median_time_ms), Some(1.5));
    }

    #[test]
    fn single_sample_is_its_own_summary() {
        let summary = summarise(&[0.25], 3).expect("a sample");
        assert_eq!((summary.median_time_ms, summary.ci_low, summary.ci_high), (0.25, 0.25, 0.25));
        assert_eq!(summary.std_time_ms, 0.0);
    }

    #[test]
    fn empty_or_unusable_figures_have_no_summary_and_no_estimate() {
        assert_eq!(summarise(&[], 0), None);
        assert_eq!(summarise(&[1.0, f64::NAN], 0), None);
        for figures in [&[][..], &[1.0, 0.0], &[f64::INFINITY], &[-1.0], &[f64::NAN, 1.0]] {
            assert_eq!(over_runners(figures), None);
        }
        assert_eq!(quantile_of(&[], 0.5), None);
    }

    #[test]
    fn median_intervals_contain_the_truth_about_95_percent_of_the_time() {
        let mut rng = SmallRng::seed_from_u64(7);
        let covered = (0..200)
            .filter(|&trial| {
                let samples: Vec<f64> = (0..40).map(|_| 100.0 + normal(&mut rng)).collect();
                let summary = summarise(&samples, trial).expect("samples");
                (summary.ci_low..=summary.ci_high).contains(&100.0)
            })
            .count();
        // 95 % of 200 is 190. The percentile bootstrap interval of a median can be slightly too wide or too narrow.
        assert!((180..=200).contains(&covered), "{covered} of 200");
    }

    #[test]
    fn interval_contains_the_truth_even_if_runners_are_added_until_it_is_narrow() {
        let mut rng = SmallRng::seed_from_u64(5);
        for spread in [0.002, 0.005, 0.01, 0.015, 0.02, 0.05] {
            let covered = (0..2000)
                .filter(|_| {
                    let mut figures: Vec<f64> = Vec::new();
                    let found = loop {
                        figures.push(2.0 * (spread * normal(&mut rng)).exp());
                        let found = over_runners(&figures).expect("positive");
                        if figures.len() == 12 || (3 <= figures.len() && half_width(&found) <= 0.01) {
                            break found;
                        }
                    };
                    (found.ci_low..=found.ci_high).contains(&2.0)
                })
                .count();
            // The lower bound is 95 % of two thousand, less four standard deviations of that count.
            assert!((1861..=2000).contains(&covered), "{covered} of 2000 where runners differ by {spread}");
        }
    }

    #[test]
    fn interval_is_unbounded_for_one_runner_and_wide_for_two() {
        let single = over_runners(&[2.0]).expect("positive");
        assert_eq!((single.value, single.ci_low, half_width(&single)), (2.0, 0.0, f64::INFINITY));
        let agreed = over_runners(&[2.0, 2.0, 2.0]).expect("positive");
        assert_eq!((agreed.value, agreed.ci_low, agreed.ci_high), (2.0, 2.0, 2.0));
        let two = over_runners(&[1.0, 4.0]).expect("positive");
        assert!((two.value - 2.0).abs() < 1e-12 && two.ci_low < 0.1 && two.ci_high > 40.0, "{two:?}");
    }

    #[test]
    fn one_disturbed_runner_of_many_hardly_widens_the_interval() {
        let mut figures: Vec<f64> = (0..12).map(|number| 1.99 + 0.002 * f64::from(number)).collect();
        let before = over_runners(&figures).expect("positive");
        figures[5] = 3.0;
        let after = over_runners(&figures).expect("positive");
        assert!((after.value / before.value - 1.0).abs() < 0.001, "{before:?} {after:?}");
        assert!(half_width(&after) < 1.3 * half_width(&before), "{before:?} {after:?}");
        // With fewer runners, the disturbed one cannot be distinguished from a normal difference between processes.
        assert!(0.1 < half_width(&over_runners(&figures[..9]).expect("positive")));
    }

    #[test]
    fn intervals_of_ten_runners_and_of_nine_are_those_of_their_formulas() {
        let figures: Vec<f64> = (1..=10).map(f64::from).map(f64::exp).collect();
        let half = |figures: &[f64]| {
            let found = over_runners(figures).expect("positive");
            (found.ci_high / found.value).ln()
        };
        // 2, 2, 3, … 9, 9: the deviations from 5.5 have the squares 2 · (3.5² + 3.5² + 2.5² + 1.5² + 0.5²) = 66.5.
        assert!((half(&figures) - 2.841 * (66.5_f64 / 9.0 * 10.0).sqrt() / 8.0).abs() < 1e-9);
        assert!((half(&figures[..9]) - 2.752 * (60.0_f64 / 8.0 / 9.0).sqrt()).abs() < 1e-9);
    }

    #[test]
    fn half_widths_are_shares() {
        let estimate = |value, ci_low, ci_high| Estimate { value, ci_low, ci_high };
        assert_eq!(half_width(&estimate(2.0, 1.5, 2.5)), 0.25);
        assert_eq!(half_width(&estimate(0.0, 0.0, 0.0)), f64::INFINITY);
        assert_eq!(half_width(&estimate(1.0, 0.5, f64::INFINITY)), f64::INFINITY);
    }

    proptest! {
        #[test]
        fn figures_are_ordered_and_independent_of_sample_order(
            samples in prop::collection::vec(1e-6_f64..1e4, 1..60),
            seed in any::<u64>(),
        ) {
            let found = summarise(&samples, seed).expect("samples");
            let rising = [found.min_time_ms, found.p5, found.median_time_ms, found.p95, found.max_time_ms];
            prop_assert!(rising.is_sorted());
            let interval = [found.min_time_ms, found.ci_low, found.ci_high, found.max_time_ms];
            prop_assert!(interval.is_sorted());
            let mut reversed = samples.clone();
            reversed.reverse();
            prop_assert_eq!(Some(found), summarise(&reversed, seed));
        }

        #[test]
        fn estimate_lies_between_its_runners(
            figures in prop::collection::vec(1e-6_f64..1e4, 2..20),
        ) {
            let found = over_runners(&figures).expect("positive");
            let min = figures.iter().copied().fold(f64::INFINITY, f64::min);
            let max = figures.iter().copied().fold(0.0, f64::max);
            prop_assert!(min * (1.0 - 1e-9) <= found.value && found.value <= max * (1.0 + 1e-9));
            prop_assert!(found.ci_low <= found.value && found.value <= found.ci_high);
        }
    }
}
