//! Limits how many lines a call site can log in a period. Otherwise, candidates could cause so many lines that they
//! fill a disk or flood a terminal. Omitted lines are counted, and reported when the period ends.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// A limit on the lines of each call site. A call site's period begins with its first line after the previous period.
#[derive(Debug)]
pub(super) struct Limit<K> {
    max: u32,
    period: Duration,
    sites: HashMap<K, CallSite>,
}

/// The lines of a call site in its current period.
#[derive(Debug)]
struct CallSite {
    since: Instant,
    lines: u32,
    left_out: u64,
    /// The latest omitted line.
    last: String,
}

/// The lines of one call site that were omitted in one period.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LeftOut<K> {
    pub site: K,
    pub count: u64,
    pub last: String,
}

impl<K: Copy + Eq + Hash> Limit<K> {
    /// Creates a limit of `max` lines from each call site in each period. The number of call sites needs no limit,
    /// because they are all in this program's code.
    pub(super) fn new(max: u32, period: Duration) -> Self {
        Self { max, period, sites: HashMap::new() }
    }

    pub(super) fn period(&self) -> Duration {
        self.period
    }

    /// Returns whether a line is within the limit. If it is not, `what` is called to get its text. Call `take_expired`
    /// first.
    pub(super) fn admits(&mut self, site: K, now: Instant, what: impl FnOnce() -> String) -> bool {
        let fresh = || CallSite { since: now, lines: 0, left_out: 0, last: String::new() };
        let it = self.sites.entry(site).or_insert_with(fresh);
        if it.lines < self.max {
            it.lines += 1;
            return true;
        }
        it.left_out += 1;
        it.last = what();
        false
    }

    /// Ends the periods that are over, and returns the lines that were omitted in them. The next line of such a call
    /// site begins a new period.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<LeftOut<K>> {
        let period = self.period;
        self.take(|it| period <= now.saturating_duration_since(it.since))
    }

    /// Returns all omitted lines, for the end of the log.
    pub(super) fn take_all(&mut self) -> Vec<LeftOut<K>> {
        self.take(|_| true)
    }

    fn take(&mut self, is_over: impl Fn(&CallSite) -> bool) -> Vec<LeftOut<K>> {
        let expired = self.sites.extract_if(|_, it| is_over(it));
        expired
            .filter(|(_, it)| 0 < it.left_out)
            .map(|(site, it)| LeftOut { site, count: it.left_out, last: it.last })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(10);

    #[test]
    fn each_call_site_has_its_own_limit_and_count() {
        let begin = Instant::now();
        let mut limit = Limit::new(3, PERIOD);
        let mut written = |site: char, at: Duration, count: u32| {
            (0..count).filter(|line| limit.admits(site, begin + at, || format!("line {line}"))).count()
        };
        assert_eq!(written('a', Duration::ZERO, 100), 3);
        assert_eq!(written('b', PERIOD / 2, 2), 2, "another call site has its own limit");
        assert_eq!(written('b', PERIOD / 2, 2), 1);
        assert_eq!(limit.take_expired(begin + PERIOD - Duration::from_nanos(1)), []);
        let reported = limit.take_expired(begin + PERIOD);
        assert_eq!(reported, [LeftOut { site: 'a', count: 97, last: "line 99".to_owned() }]);
        assert_eq!(limit.take_expired(begin + PERIOD), [], "reported twice");
        assert!(limit.admits('a', begin + PERIOD, String::new), "a new period has begun");
        assert_eq!(limit.take_all(), [LeftOut { site: 'b', count: 1, last: "line 1".to_owned() }]);
        assert_eq!(limit.take_all(), []);
    }

    #[test]
    fn call_site_within_its_limit_is_not_reported() {
        let begin = Instant::now();
        let mut limit = Limit::new(2, PERIOD);
        for second in 0..100 {
            let now = begin + PERIOD / 2 * second;
            assert_eq!(limit.take_expired(now), []);
            assert!(limit.admits((), now, String::new));
        }
        assert_eq!(limit.take_all(), []);
    }
}
