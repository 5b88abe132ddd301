//! Decides when an entry has taken so long that fewer pairs and runners must be enough. Pure.
//!
//! On a busy machine, most of an entry's time is spent waiting for CPUs. With the usual numbers of pairs and runners, it
//! could take many times its limit. With fewer, its interval becomes wide, which shows how little is known.

use std::time::Duration;

/// An entry is late if it has taken this many times its limit.
const LATE: u32 = 2;
/// The shortest limit that is used here. The budget of a job with many candidates may leave almost no time for an entry.
/// Without other load, three runners need less than a tenth of this for calls of microseconds.
const MIN_LIMIT: Duration = Duration::from_millis(500);
/// An entry waits most of the time if it takes at least this many times as long as its calls alone.
const WAITING: u32 = 4;

/// Returns true if an entry has taken much longer than its `limit`, and most of that time was not needed by its calls,
/// which take `calls` when nothing disturbs them.
pub(super) fn is_late(spent: Duration, limit: Duration, calls: Duration) -> bool {
    limit.max(MIN_LIMIT) * LATE <= spent && calls * WAITING <= spent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_is_late_if_it_waited_beyond_its_limit() {
        let ms = Duration::from_millis;
        for (spent, limit, calls, late) in [
            (1999, 1000, 1, false),
            (2000, 1000, 1, true),
            (2000, 1000, 500, true),
            (2000, 1000, 501, false),
            (999, 0, 0, false),
            (1000, 0, 0, true),
            (1000, 500, 250, true),
            (1000, 501, 250, false),
        ] {
            assert_eq!(is_late(ms(spent), ms(limit), ms(calls)), late, "{spent} {limit} {calls}");
        }
    }
}
