//! How soon a sample has to follow the last one, so that nobody outgrows its limit unseen by more than a stated bound.
//!
//! Pure: what was measured goes in, a time comes out. The next sample comes before the worst fill rate seen so far
//! could have used up the headroom that is left; when it comes late, what grew in between is known and is in the bound.

use std::time::Duration;

use opt_shared::units::Bytes;

/// Until a faster one is seen: one thread over fresh pages, measured on a small machine at 1.2 to 3 GiB/s.
const FIRST_RATE: Bytes = Bytes::gib(4);
/// Nothing fills memory faster than this; a sample that says so caught a map that came at once.
const FASTEST_RATE: Bytes = Bytes::gib(64);
/// A shorter time between samples would be the sampler's own.
pub const SHORTEST: Duration = Duration::from_millis(2);
pub const LONGEST: Duration = Duration::from_millis(100);
/// Where nothing runs that has a limit.
pub const IDLE: Duration = Duration::from_millis(250);
/// Growth over less time than this says nothing of a rate.
const LEAST_INTERVAL: Duration = Duration::from_micros(500);

#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Per second.
    worst_rate: Bytes,
    /// From when a sample was due until it was taken.
    worst_delay: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { worst_rate: FIRST_RATE, worst_delay: Duration::ZERO }
    }
}

impl Pace {
    /// A process owed `grown` more than `interval` before.
    pub fn observe(&mut self, grown: Bytes, interval: Duration) {
        if interval < LEAST_INTERVAL {
            return;
        }
        let nanoseconds = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let rate = u128::from(grown.get()) * 1_000_000_000 / u128::from(nanoseconds.max(1));
        let rate = Bytes::new(u64::try_from(rate).unwrap_or(u64::MAX)).min(FASTEST_RATE);
        self.worst_rate = self.worst_rate.max(rate);
    }

    /// A sample was taken so long after it was due.
    pub fn late(&mut self, delay: Duration) {
        self.worst_delay = self.worst_delay.max(delay);
    }

    /// When the next one is due; `headroom` is the least that any process is below its limit.
    pub fn next(&self, headroom: Option<Bytes>) -> Duration {
        let Some(headroom) = headroom else { return IDLE };
        let nanoseconds =
            u128::from(headroom.get()) * 1_000_000_000 / u128::from(self.worst_rate.get().max(1));
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)).clamp(SHORTEST, LONGEST)
    }

    /// Bytes per second.
    pub fn worst_rate(&self) -> Bytes {
        self.worst_rate
    }

    pub fn worst_delay(&self) -> Duration {
        self.worst_delay
    }

    /// How far a process can be above its limit before it is seen: what it fills in the shortest time between two
    /// samples and the worst delay so far.
    pub fn overshoot_bound(&self) -> Bytes {
        let blind = SHORTEST + self.worst_delay;
        let bytes = u128::from(self.worst_rate.get()) * blind.as_nanos() / 1_000_000_000;
        Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_nearer_the_limit_the_sooner() {
        let pace = Pace::default();
        assert_eq!(pace.next(None), IDLE);
        assert_eq!(pace.next(Some(Bytes::gib(64))), LONGEST);
        assert_eq!(pace.next(Some(Bytes::mib(64))), Duration::from_micros(15_625));
        assert_eq!(pace.next(Some(Bytes::ZERO)), SHORTEST);
        // 2 ms at 4 GiB/s.
        assert_eq!(pace.overshoot_bound(), Bytes::new(8_589_934));
    }

    #[test]
    fn a_faster_candidate_makes_for_sooner_looks() {
        let mut pace = Pace::default();
        pace.observe(Bytes::mib(80), Duration::from_millis(10));
        assert_eq!(pace.worst_rate(), Bytes::new(8000 << 20));
        pace.observe(Bytes::mib(1), Duration::from_secs(1));
        assert_eq!(pace.worst_rate(), Bytes::new(8000 << 20), "a slow one proves nothing");
        pace.observe(Bytes::gib(1), Duration::from_micros(499));
        assert_eq!(pace.worst_rate(), Bytes::new(8000 << 20), "nor does one seen for too short a time");
        pace.observe(Bytes::MAX, LEAST_INTERVAL);
        assert_eq!(pace.worst_rate(), FASTEST_RATE);
        pace.late(Duration::from_millis(3));
        pace.late(Duration::from_millis(1));
        assert_eq!(pace.worst_delay(), Duration::from_millis(3));
        // 5 ms at 64 GiB/s.
        assert_eq!(pace.overshoot_bound(), Bytes::new(343_597_383));
    }

    proptest! {
        /// A process that fills as fast as was ever seen is looked at before its headroom is gone, unless that is
        /// nearer than the shortest time: then it is over by the bound at most.
        #[test]
        fn nobody_outgrows_the_bound(
            seen in proptest::collection::vec((0u64..1 << 34, 500u64..1_000_000), 0..20), headroom in 0u64..1 << 40
        ) {
            let mut pace = Pace::default();
            for (grown, micros) in seen {
                pace.observe(Bytes::new(grown), Duration::from_micros(micros));
            }
            let next = pace.next(Some(Bytes::new(headroom)));
            let filled = u128::from(pace.worst_rate().get()) * next.as_nanos() / 1_000_000_000;
            let over = filled.saturating_sub(u128::from(headroom));
            prop_assert!(over <= u128::from(pace.overshoot_bound().get()));
            prop_assert!((SHORTEST..=LONGEST).contains(&next));
        }
    }
}
