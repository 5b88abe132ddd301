//! Decides when an entry has taken so long that fewer pairs and runners have to be enough. This file does no I/O and
//! reads no clock.
//!
//! On a busy machine, an entry may spend most of its time waiting for CPUs, and could take many times its time limit.
//! With fewer pairs and runners, the entry's interval becomes wider, so the figures show how uncertain they are.

use std::time::Duration;

use opt_shared::formula::MIN_RUNNERS;

use super::samples::Samples;

/// The minimum time limit that is used here. The time that a job with many candidates leaves for each entry may be
/// shorter than this.
const MIN_LIMIT: Duration = Duration::from_millis(500);
/// The minimum share of the time of its blocks for which each side of a late entry has waited for a CPU.
const MIN_WAIT_SHARE: f64 = 0.25;
/// The number of pairs of runners that is enough if an entry is late. With one pair, there would be no interval.
const MIN_RUNNERS_IF_LATE: u32 = 2;

/// Returns true if an entry has used up its `limit`, and each side waited for a CPU for much of its time. Both sides
/// must have waited, because a candidate can make its own threads wait for each other, but not those of its baseline.
pub(super) fn is_late(spent: Duration, limit: Duration, sides: &[Samples]) -> bool {
    let waits = sides.iter().all(|side| side.wait_share().is_some_and(|share| MIN_WAIT_SHARE <= share));
    waits && limit.max(MIN_LIMIT) <= spent
}

pub(super) const fn least_runners(late: bool) -> u32 {
    if late { MIN_RUNNERS_IF_LATE } else { MIN_RUNNERS }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Block;
    use crate::stage::profile::samples::tests::block;

    /// Returns the samples of a side with one block of 200 us, in which it waited for `waited_us`.
    fn side(waited_us: Option<u64>) -> Samples {
        let mut samples = Samples::default();
        samples.add(&Block { waited: waited_us.map(Duration::from_micros), ..block(1, 0) });
        samples
    }

    #[test]
    fn entry_is_late_if_both_sides_waited_beyond_the_limit() {
        let ms = Duration::from_millis;
        for (spent, limit, waited, late) in [
            (999, 1000, [Some(180), Some(180)], false),
            (1000, 1000, [Some(180), Some(180)], true),
            (1000, 1000, [Some(0), Some(180)], false),
            (1000, 1000, [Some(50), Some(50)], true),
            (1000, 1000, [Some(180), Some(49)], false),
            (1000, 1000, [None, None], false),
            (499, 0, [Some(180), Some(180)], false),
            (500, 0, [Some(180), Some(180)], true),
            (500, 0, [Some(180), None], false),
        ] {
            let sides = waited.map(side);
            assert_eq!(is_late(ms(spent), ms(limit), &sides), late, "{spent} of {limit} ms, {waited:?}");
        }
        assert!(is_late(ms(1000), ms(0), &[side(Some(180))]), "without a baseline");
    }
}
