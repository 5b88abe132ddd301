//! Widens the interval of a speed-up whose blocks were disturbed to what the shortest block of each side allows. Pure.
//!
//! Disturbances only make blocks longer, so a call takes at most as long as in the shortest block. It takes at least as
//! long as that block without the time for which threads waited for a CPU. (Several threads may wait at once, so the
//! true time can be longer, but not shorter.)

use opt_shared::outcome::Estimate;

/// The smallest share of a block that counts as work. Without it, a block that only waited would have no lower bound.
const MIN_WORK: f64 = 0.01;

/// The shortest block of a side so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shortest {
    /// The time of a call in milliseconds.
    ms: f64,
    /// The time in milliseconds for which threads waited for a CPU in a call; 0 if it is not known.
    waited_ms: f64,
}

impl Shortest {
    /// Returns the shorter of `known` and a block with these times.
    pub(super) fn of(known: Option<Self>, ms: f64, waited_ms: f64) -> Self {
        known.filter(|known| known.ms <= ms).unwrap_or(Self { ms, waited_ms })
    }

    /// The shortest time that a call can take.
    fn least_ms(self) -> f64 {
        (self.ms - self.waited_ms).max(self.ms * MIN_WORK)
    }
}

/// Returns the estimate with its interval extended to the ratios that the shortest blocks allow.
pub(super) fn widened(estimate: Estimate, candidate: Shortest, baseline: Shortest) -> Estimate {
    let (low, high) = (baseline.least_ms() / candidate.ms, baseline.ms / candidate.least_ms());
    if !(low.is_finite() && high.is_finite()) {
        return estimate;
    }
    Estimate { ci_low: estimate.ci_low.min(low), ci_high: estimate.ci_high.max(high), ..estimate }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_is_extended_by_what_the_shortest_blocks_may_have_waited() {
        let estimate = Estimate { value: 3.0, ci_low: 2.8, ci_high: 3.2 };
        for (candidate, baseline, low, high) in [
            // Neither waited: only the ratio of the shortest times is added.
            ((1.0, 0.0), (2.0, 0.0), 2.0, 3.2),
            ((1.0, 0.0), (4.0, 0.0), 2.8, 4.0),
            ((1.0, 0.0), (3.0, 0.0), 2.8, 3.2),
            // The baseline waited, so it may be faster; the candidate waited, so the ratio may be larger.
            ((1.0, 0.0), (3.0, 1.5), 1.5, 3.2),
            ((1.0, 0.5), (3.0, 0.0), 2.8, 6.0),
            // Two threads waited for longer than the block took.
            ((1.0, 2.0), (3.0, 6.0), 0.03, 300.0),
        ] {
            let of = |(ms, waited_ms): (f64, f64)| Shortest::of(None, ms, waited_ms);
            let found = widened(estimate, of(candidate), of(baseline));
            assert!((found.ci_low - low).abs() < 1e-9 && (found.ci_high - high).abs() < 1e-9, "{found:?}");
            assert!((found.value - 3.0).abs() < 1e-9);
        }
        let nothing = Shortest::of(None, 0.0, 0.0);
        let found = widened(estimate, nothing, nothing);
        assert!((found.ci_low - 2.8).abs() < 1e-9 && (found.ci_high - 3.2).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn the_shortest_block_is_kept_with_its_own_wait() {
        let shortest = [(3.0, 0.1), (2.0, 0.2), (2.5, 0.0), (2.0, 0.0)]
            .into_iter()
            .fold(None, |known, (ms, waited)| Some(Shortest::of(known, ms, waited)))
            .expect("blocks");
        assert!((shortest.least_ms() - 1.8).abs() < 1e-9, "{shortest:?}");
    }
}
