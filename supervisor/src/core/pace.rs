//! Decides when the next sample is due. Sampling must be frequent enough that a process cannot exceed its limit
//! unnoticed by more than a known bound.
//!
//! The next sample is due before a process that grows at the highest rate observed so far could use up the remaining
//! headroom. The bound also covers growth while a sample is late.

use std::time::Duration;

use opt_shared::units::Bytes;

/// The rate that is assumed until a higher one is observed. One thread that touches fresh pages reached 1.2 to 3 GiB/s
/// on a small machine.
const FIRST_RATE: Bytes = Bytes::gib(4);
/// No process fills memory faster than this. If a sample shows a higher rate, a whole mapping was counted at once.
const FASTEST_RATE: Bytes = Bytes::gib(64);
/// The shortest interval between samples. At shorter intervals, sampling itself would take most of the time.
pub const SHORTEST: Duration = Duration::from_millis(2);
/// The longest interval between samples while a process with a limit is running.
pub const LONGEST: Duration = Duration::from_millis(100);
/// The interval if no running process has a limit.
pub const IDLE: Duration = Duration::from_millis(250);
/// The shortest interval over which a rate of growth is measured.
const MIN_INTERVAL: Duration = Duration::from_micros(500);

/// The highest rate of growth and the longest delay observed so far.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// In bytes per second.
    worst_rate: Bytes,
    /// The longest delay between the time when a sample was due and the time when it was taken.
    worst_delay: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { worst_rate: FIRST_RATE, worst_delay: Duration::ZERO }
    }
}

impl Pace {
    /// Records that a process grew by `grown` within `interval`.
    pub fn observe(&mut self, grown: Bytes, interval: Duration) {
        if interval < MIN_INTERVAL {
            return;
        }
        let nanoseconds = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let rate = u128::from(grown.get()) * 1_000_000_000 / u128::from(nanoseconds.max(1));
        let rate = Bytes::new(u64::try_from(rate).unwrap_or(u64::MAX)).min(FASTEST_RATE);
        self.worst_rate = self.worst_rate.max(rate);
    }

    /// Records that a sample was taken `delay` after it was due.
    pub fn late(&mut self, delay: Duration) {
        self.worst_delay = self.worst_delay.max(delay);
    }

    /// Returns the time until the next sample. `headroom` is the smallest distance of any process to its limit.
    pub fn next(&self, headroom: Option<Bytes>) -> Duration {
        let Some(headroom) = headroom else { return IDLE };
        let nanoseconds =
            u128::from(headroom.get()) * 1_000_000_000 / u128::from(self.worst_rate.get().max(1));
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)).clamp(SHORTEST, LONGEST)
    }

    /// Returns the highest rate of growth so far, in bytes per second.
    pub fn worst_rate(&self) -> Bytes {
        self.worst_rate
    }

    pub fn worst_delay(&self) -> Duration {
        self.worst_delay
    }

    /// Returns how far a process can exceed its limit before a sample shows it. This is what it can fill in the
    /// shortest interval plus the worst delay so far.
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
    fn samples_come_sooner_near_the_limit() {
        let pace = Pace::default();
        assert_eq!(pace.next(None), IDLE);
        assert_eq!(pace.next(Some(Bytes::gib(64))), LONGEST);
        assert_eq!(pace.next(Some(Bytes::mib(64))), Duration::from_micros(15_625));
        assert_eq!(pace.next(Some(Bytes::ZERO)), SHORTEST);
        // 2 ms at 4 GiB/s.
        assert_eq!(pace.overshoot_bound(), Bytes::new(8_589_934));
    }

    #[test]
    fn higher_rates_shorten_the_interval() {
        let mut pace = Pace::default();
        pace.observe(Bytes::mib(80), Duration::from_millis(10));
        assert_eq!(pace.worst_rate(), Bytes::new(8000 << 20));
        pace.observe(Bytes::mib(1), Duration::from_secs(1));
        assert_eq!(pace.worst_rate(), Bytes::new(8000 << 20), "a lower rate changes nothing");
        pace.observe(Bytes::gib(1), Duration::from_micros(499));
        assert_eq!(pace.worst_rate(), Bytes::new(8000 << 20), "an interval below the minimum is ignored");
        pace.observe(Bytes::MAX, MIN_INTERVAL);
        assert_eq!(pace.worst_rate(), FASTEST_RATE);
        pace.late(Duration::from_millis(3));
        pace.late(Duration::from_millis(1));
        assert_eq!(pace.worst_delay(), Duration::from_millis(3));
        // 5 ms at 64 GiB/s.
        assert_eq!(pace.overshoot_bound(), Bytes::new(343_597_383));
    }

    proptest! {
        /// A process that grows at the highest rate observed is sampled before it reaches its limit. If it could reach
        /// the limit within the shortest interval, it exceeds the limit by at most the bound.
        #[test]
        fn limit_is_exceeded_by_at_most_the_bound(
            observed in proptest::collection::vec((0u64..1 << 34, 500u64..1_000_000), 0..20), headroom in 0u64..1 << 40
        ) {
            let mut pace = Pace::default();
            for (grown, micros) in observed {
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
