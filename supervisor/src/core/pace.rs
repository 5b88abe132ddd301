//! Decides when the next sample is due. Samples must be so frequent that a process is noticed before it exceeds its
//! limit by more than a known amount.
//!
//! The next sample is due before a process that grows at the highest recent rate could use up the remaining headroom,
//! but never sooner than `SHORTEST` and never later than `LONGEST`. If no process has a limit, it is due after `IDLE`.
//! An observed rate is used in full for `HOLD`, and then halves every `HALF_LIFE`.

use std::time::Duration;

use opt_shared::units::Bytes;

use super::event::Moment;

/// The rate of growth that is assumed until a higher one is observed. On a small machine, one thread touched fresh
/// pages at up to 3 GiB/s.
const FIRST_RATE: Bytes = Bytes::gib(4);
/// The highest rate of growth that is used. Higher rates are observed when a whole mapping is counted at once. They are
/// lowered to this rate.
const FASTEST_RATE: Bytes = Bytes::gib(64);
/// The shortest interval between samples. At shorter intervals, sampling itself would take most of the time.
pub const SHORTEST: Duration = Duration::from_millis(2);
/// The longest interval between samples while a process with a limit is running.
pub const LONGEST: Duration = Duration::from_millis(100);
/// The interval if no running process has a limit.
pub const IDLE: Duration = Duration::from_millis(250);
/// The shortest interval over which a rate of growth is measured.
const MIN_INTERVAL: Duration = Duration::from_micros(500);

/// How long an observed rate is used in full.
const HOLD: Duration = Duration::from_secs(10);
/// The time in which a rate halves after `HOLD`, until it reaches `FIRST_RATE`.
const HALF_LIFE: Duration = Duration::from_secs(5);

/// The highest recent rate of growth, and the longest delay observed so far.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    rate: Bytes,
    seen: Moment,
    worst_delay: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { rate: FIRST_RATE, seen: Moment::ZERO, worst_delay: Duration::ZERO }
    }
}

impl Pace {
    /// Records that a process grew by `grown` during an interval of the given length that ended at `now`.
    pub fn observe(&mut self, now: Moment, grown: Bytes, interval: Duration) {
        if interval < MIN_INTERVAL {
            return;
        }
        let nanoseconds = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let rate = u128::from(grown.get()) * 1_000_000_000 / u128::from(nanoseconds.max(1));
        let rate = Bytes::new(u64::try_from(rate).unwrap_or(u64::MAX)).min(FASTEST_RATE);
        if self.rate_at(now) <= rate {
            (self.rate, self.seen) = (rate, now);
        }
    }

    /// Records that a sample was taken `delay` after it was due.
    pub fn record_delay(&mut self, delay: Duration) {
        self.worst_delay = self.worst_delay.max(delay);
    }

    /// Returns the time until the next sample. `headroom` is the smallest distance of any process to its limit, or
    /// `None` if no process has a limit.
    pub fn next(&self, now: Moment, headroom: Option<Bytes>) -> Duration {
        let Some(headroom) = headroom else { return IDLE };
        let nanoseconds =
            u128::from(headroom.get()) * 1_000_000_000 / u128::from(self.rate_at(now).get().max(1));
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)).clamp(SHORTEST, LONGEST)
    }

    /// Returns the rate that is used at the time `now`, in bytes per second.
    pub fn rate_at(&self, now: Moment) -> Bytes {
        let decaying = now.saturating_sub(self.seen).saturating_sub(HOLD);
        let halvings = u32::try_from(decaying.as_nanos() / HALF_LIFE.as_nanos()).unwrap_or(u32::MAX);
        Bytes::new(self.rate.get().checked_shr(halvings).unwrap_or(0)).max(FIRST_RATE)
    }

    pub fn worst_delay(&self) -> Duration {
        self.worst_delay
    }

    /// Returns the amount by which a process can exceed its limit unnoticed. This is the memory that it can fill during
    /// the shortest interval plus the longest delay so far.
    pub fn overshoot_bound(&self, now: Moment) -> Bytes {
        let blind = SHORTEST + self.worst_delay;
        let bytes = u128::from(self.rate_at(now).get()) * blind.as_nanos() / 1_000_000_000;
        Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Moment = Moment::ZERO;

    #[test]
    fn samples_come_sooner_near_the_limit() {
        let pace = Pace::default();
        assert_eq!(pace.next(START, None), IDLE);
        assert_eq!(pace.next(START, Some(Bytes::gib(64))), LONGEST);
        assert_eq!(pace.next(START, Some(Bytes::mib(64))), Duration::from_micros(15_625));
        assert_eq!(pace.next(START, Some(Bytes::ZERO)), SHORTEST);
        // 2 ms at 4 GiB/s.
        assert_eq!(pace.overshoot_bound(START), Bytes::new(8_589_934));
    }

    #[test]
    fn pace_keeps_the_highest_rate_and_the_worst_delay() {
        let mut pace = Pace::default();
        pace.observe(START, Bytes::mib(80), Duration::from_millis(10));
        assert_eq!(pace.rate_at(START), Bytes::new(8000 << 20));
        pace.observe(START, Bytes::mib(1), Duration::from_secs(1));
        assert_eq!(pace.rate_at(START), Bytes::new(8000 << 20), "a lower rate changes nothing");
        pace.observe(START, Bytes::gib(1), Duration::from_micros(499));
        assert_eq!(pace.rate_at(START), Bytes::new(8000 << 20), "an interval below the minimum is ignored");
        pace.observe(START, Bytes::MAX, MIN_INTERVAL);
        assert_eq!(pace.rate_at(START), FASTEST_RATE);
        pace.record_delay(Duration::from_millis(3));
        pace.record_delay(Duration::from_millis(1));
        assert_eq!(pace.worst_delay(), Duration::from_millis(3));
        // 5 ms at 64 GiB/s.
        assert_eq!(pace.overshoot_bound(START), Bytes::new(343_597_383));
    }

    #[test]
    fn pace_recovers_after_a_spike() {
        let second = Duration::from_secs(1);
        let mut pace = Pace::default();
        pace.observe(5 * second, Bytes::MAX, MIN_INTERVAL);
        for (at, gib, next) in [
            (5, 64, 2_000),
            // The spike counts in full for ten seconds, and then halves every five.
            (19, 64, 2_000),
            (20, 32, 2_000),
            (25, 16, 3_906),
            (30, 8, 7_812),
            (35, 4, 15_625),
            (1 << 30, 4, 15_625),
        ] {
            let now = at * second;
            assert_eq!(pace.rate_at(now), Bytes::gib(gib), "after {at} s");
            assert_eq!(pace.next(now, Some(Bytes::mib(64))).as_micros(), next, "after {at} s");
        }
        pace.observe(30 * second, Bytes::gib(10), second);
        assert_eq!(pace.rate_at(30 * second), Bytes::gib(10));
        assert_eq!(pace.rate_at(45 * second), Bytes::gib(5));
        // The same rate again counts in full for another ten seconds.
        pace.observe(39 * second, Bytes::gib(10), second);
        assert_eq!(pace.rate_at(48 * second), Bytes::gib(10));
    }

    proptest! {
        /// If each sample is taken when it is due, a process exceeds its limit by at most the bound.
        #[test]
        fn limit_is_exceeded_by_at_most_the_bound(
            observed in proptest::collection::vec((0u64..60, 0u64..1 << 34, 500u64..1_000_000), 0..20),
            headroom in 0u64..1 << 40
        ) {
            let mut pace = Pace::default();
            let mut now = START;
            for (passed, grown, micros) in observed {
                now += Duration::from_secs(passed);
                pace.observe(now, Bytes::new(grown), Duration::from_micros(micros));
            }
            let next = pace.next(now, Some(Bytes::new(headroom)));
            let filled = u128::from(pace.rate_at(now).get()) * next.as_nanos() / 1_000_000_000;
            let over = filled.saturating_sub(u128::from(headroom));
            prop_assert!(over <= u128::from(pace.overshoot_bound(now).get()));
            prop_assert!((SHORTEST..=LONGEST).contains(&next));
        }
    }
}
