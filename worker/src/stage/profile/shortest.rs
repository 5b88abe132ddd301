//! Extends the interval of the speed-up to the ratios that the shortest blocks of each side allow. Used if disturbed
//! blocks count. Pure.
//!
//! Waiting for a CPU makes blocks longer, so a call takes at most about as long as in the shortest block. If threads
//! waited in that block, the call takes less, by at most the sum of their waits.

use opt_shared::outcome::Estimate;

use super::samples::Samples;

/// The smallest share of a block that counts as work. Without it, a block that only waited would have no lower bound.
const MIN_WORK: f64 = 0.01;
/// Only blocks that are at most this many times as long as the shortest count for the lower bound. Among these, the
/// block with the longest time without its waits sets the bound.
const SIMILAR: f64 = 1.02;
/// If the share of the time for which the candidate's threads waited is more than this many times the baseline's, the
/// candidate caused these waits itself, and gains nothing by them.
const MAX_SHARES: f64 = 2.0;

/// The bounds of the time of a call in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    least: f64,
    most: f64,
}

impl Bounds {
    /// Returns `None` without blocks.
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

    /// Blocks of one call, with their times and waits in milliseconds.
    fn samples(blocks: &[(f64, f64)]) -> Samples {
        let mut samples = Samples::default();
        (samples.ms, samples.waited_ms) = blocks.iter().copied().unzip();
        samples
    }

    #[test]
    fn interval_is_extended_by_what_the_shortest_blocks_may_have_waited() {
        let estimate = Estimate { value: 3.0, ci_low: 2.8, ci_high: 3.2 };
        for (candidate, baseline, low, high) in [
            // Neither waited: only the ratio of the shortest times is added.
            (&[(1.0, 0.0)][..], &[(2.0, 0.0)][..], 2.0, 3.2),
            (&[(1.0, 0.0)], &[(4.0, 0.0)], 2.8, 4.0),
            // Waits in a block that is much longer than the shortest do not count.
            (&[(1.0, 0.0)], &[(3.0, 0.0), (9.0, 8.9)], 2.8, 3.2),
            // The baseline waited, so it may be faster; the candidate waited, so the ratio may be larger.
            (&[(1.0, 0.0)], &[(3.0, 1.5)], 1.5, 3.2),
            (&[(1.0, 0.5)], &[(3.0, 0.0)], 2.8, 6.0),
            // Two threads waited for longer than the block took.
            (&[(1.0, 2.0)], &[(3.0, 6.0)], 0.03, 300.0),
            // A block of nearly the same length waited less; a longer one would not count.
            (&[(1.0, 0.9), (1.02, 0.1), (1.03, 0.0)], &[(3.0, 0.0)], 2.8, 3.0 / 0.92),
        ] {
            let found = widened(estimate, &samples(candidate), &samples(baseline));
            assert!((found.ci_low - low).abs() < 1e-9 && (found.ci_high - high).abs() < 1e-9, "{found:?}");
            assert!((found.value - 3.0).abs() < 1e-9);
        }
        // Waits do not count if the candidate waits for more than twice the baseline's share of the time.
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
