//! Extends the interval of the speed-up to the ratios that the shortest blocks of each side allow. This is needed if
//! disturbed blocks are used for the figures. This file does no I/O.
//!
//! Waiting for a CPU makes blocks longer, so a call takes at most about as long as in the shortest block. If threads
//! waited in this block too, the undisturbed time of a call may be shorter, by at most the sum of their waits.

use opt_shared::outcome::Estimate;

use super::samples::Samples;

/// The smallest share of a block that is assumed to be work. Without this limit, the lower bound would be zero or less
/// if threads waited all the time.
const MIN_WORK: f64 = 0.01;
/// The largest ratio between a block and the shortest one for which the block is used to find the lower bound. The
/// bound is the longest time, without waits, of the blocks within this ratio.
const SIMILAR: f64 = 1.02;
/// The largest plausible ratio between the candidate's and the baseline's share of time spent waiting. If the
/// candidate's threads waited for more than that, the candidate caused the waits itself, and they do not extend the
/// interval.
const MAX_SHARES: f64 = 2.0;

/// The lower and the upper bound of the time of a call, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    least: f64,
    most: f64,
}

impl Bounds {
    /// Computes the bounds from a side's blocks. Returns `None` if there are no blocks.
    fn of(samples: &Samples) -> Option<Self> {
        let most = samples.ms.iter().copied().reduce(f64::min)?;
        let similar = samples.ms.iter().zip(&samples.waited_ms).filter(|(ms, _)| **ms <= most * SIMILAR);
        let least = similar.map(|(ms, waited)| ms - waited).fold(most * MIN_WORK, f64::max);
        Some(Self { least: least.min(most), most })
    }
}

/// Returns the estimate with its interval extended to the ratios that the shortest blocks allow.
pub(super) fn widened(estimate: Estimate, candidate: &Samples, baseline: &Samples) -> Estimate {
    let Some((mine, theirs)) = Bounds::of(candidate).zip(Bounds::of(baseline)) else { return estimate };
    let shares = candidate.wait_share().zip(baseline.wait_share());
    let made_itself_wait = shares.is_some_and(|(mine, theirs)| theirs * MAX_SHARES < mine);
    let least = if made_itself_wait { mine.most } else { mine.least };
    let (low, high) = (theirs.least / mine.most, theirs.most / least);
    // `low` is at most as large as `high`.
    if !high.is_finite() {
        return estimate;
    }
    Estimate { ci_low: estimate.ci_low.min(low), ci_high: estimate.ci_high.max(high), ..estimate }
}

#[cfg(test)]
mod tests {
    use super::super::samples::tests::block;
    use super::*;

    /// Returns samples of blocks with one call each. `blocks` has their times and waits in milliseconds.
    fn samples(blocks: &[(f64, f64)]) -> Samples {
        let mut samples = Samples::default();
        (samples.ms, samples.waited_ms) = blocks.iter().copied().unzip();
        samples
    }

    #[test]
    fn interval_is_extended_by_what_the_shortest_blocks_may_have_waited() {
        let estimate = Estimate { value: 3.0, ci_low: 2.8, ci_high: 3.2 };
        for (candidate, baseline, low, high) in [
            // Neither side waited, so only the ratio of the shortest times is added to the interval.
            (&[(1.0, 0.0)][..], &[(2.0, 0.0)][..], 2.0, 3.2),
            (&[(1.0, 0.0)], &[(4.0, 0.0)], 2.8, 4.0),
            // Waits in a block that is much longer than the shortest are ignored.
            (&[(1.0, 0.0)], &[(3.0, 0.0), (9.0, 8.9)], 2.8, 3.2),
            // If the baseline waited, it may be faster. If the candidate waited, the ratio may be larger.
            (&[(1.0, 0.0)], &[(3.0, 1.5)], 1.5, 3.2),
            (&[(1.0, 0.5)], &[(3.0, 0.0)], 2.8, 6.0),
            // Two threads waited for longer than the block took.
            (&[(1.0, 2.0)], &[(3.0, 6.0)], 0.03, 300.0),
            // A block of nearly the same length waited less, so it sets the bound. A longer block is ignored.
            (&[(1.0, 0.9), (1.02, 0.1), (1.03, 0.0)], &[(3.0, 0.0)], 2.8, 3.0 / 0.92),
        ] {
            let found = widened(estimate, &samples(candidate), &samples(baseline));
            assert!((found.ci_low - low).abs() < 1e-9 && (found.ci_high - high).abs() < 1e-9, "{found:?}");
            assert!((found.value - 3.0).abs() < 1e-9);
        }
        // Waits are ignored if the candidate waits for more than twice the baseline's share of the time.
        for (waited_us, high) in [(50, 6.0), (51, 3.2)] {
            let (mut candidate, mut baseline) = (samples(&[(1.0, 0.5)]), samples(&[(3.0, 0.0)]));
            candidate.add(&block(1, waited_us));
            baseline.add(&block(1, 25));
            let found = widened(estimate, &candidate, &baseline);
            assert!((found.ci_high - high).abs() < 1e-9, "{waited_us}: {found:?}");
        }
        let (none, zero, three) = (samples(&[]), samples(&[(0.0, 0.0)]), samples(&[(3.0, 0.0)]));
        for (candidate, baseline) in [(&none, &none), (&none, &three), (&zero, &zero), (&zero, &three)] {
            let found = widened(estimate, candidate, baseline);
            assert!((found.ci_low - 2.8).abs() < 1e-9 && (found.ci_high - 3.2).abs() < 1e-9, "{found:?}");
        }
    }
}
