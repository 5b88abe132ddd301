//! Decides the hand-off time that is subtracted from blocks, and how the worker waits for a runner. Both are the same
//! for the candidate and its baseline.
//!
//! The hand-off is the part of a block's time in which the runner is woken and its report is received. It is measured
//! twice: first with empty blocks before the first call, to choose the number of calls in a block, and then with the
//! idle rounds among the timed blocks.
//!
//! Only the second measurement shows the hand-off that is contained in timed blocks. On an idle machine, its median was
//! 22 to 26 us, and the median of the first measurement was 15 to 17 us. With the first, a ratio of 2 appeared as 1.98.

use std::time::Duration;

use super::Side;
use crate::session::{IdleRound, MAX_HANDOFF, SessionError};

/// The number of undisturbed idle rounds of each side that are needed to measure the hand-off.
const MIN_AMONG: usize = 3;
/// The longest wait for a CPU in an idle round that is used to measure the hand-off. The waits of runner and worker are
/// added, and divided by the number of the runner's threads. The limit is a fiftieth of the wanted length of a block,
/// because blocks have the same limit.
const MAX_WAIT: Duration = Duration::from_micros(10);
/// The largest factor by which the hand-off among the blocks is assumed to differ from the one that was measured before
/// them, if the former is unknown. (On one machine, it was 1.5 times as long.)
const UNKNOWN_FACTOR: u32 = 2;

/// The hand-off of a pair of runners. `typical` is subtracted from every block, and the true hand-off may have been
/// between `least` and `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handoff {
    pub(super) least: Duration,
    pub(super) typical: Duration,
    pub(super) most: Duration,
}

impl Handoff {
    fn shorter(self, other: Self) -> Self {
        Self {
            least: self.least.min(other.least),
            typical: self.typical.min(other.typical),
            most: self.most.min(other.most),
        }
    }
}

/// Returns the hand-off of blocks that were made among these idle rounds of each side. It is computed from the median
/// and the quartiles of the rounds that hardly waited for a CPU. The smallest values of any side are used for all
/// sides, as with empty blocks. Returns `None` if a side has too few such rounds.
pub(super) fn among<'r>(sides: impl Iterator<Item = &'r [IdleRound]>) -> Option<Handoff> {
    let of_side = |rounds: &[IdleRound]| {
        let calm = |it: &&IdleRound| it.waited.unwrap_or_default() / it.wake.threads.max(1) <= MAX_WAIT;
        let mut times: Vec<Duration> =
            rounds.iter().filter(calm).filter_map(|it| it.elapsed).map(|it| it.min(MAX_HANDOFF)).collect();
        times.sort_unstable();
        let last = times.len().checked_sub(1).filter(|_| MIN_AMONG <= times.len())?;
        let typical = (times[last / 2] + times[times.len() / 2]) / 2;
        Some(Handoff { least: times[last / 4], typical, most: times[last - last / 4] })
    };
    sides.map(of_side).reduce(|one, other| Some(one?.shorter(other?))).flatten()
}

/// Chooses the hand-off of blocks, the shortest of which took `shortest`. `among` comes from the idle rounds among
/// these blocks, and `measured` from empty blocks before them. `measured` is used if `among` is unknown, or is not
/// shorter than the shortest block. In the result, `most - typical` is at most half of what remains of the shortest
/// block after subtracting `typical`.
pub(super) fn choose(among: Option<Handoff>, measured: Duration, shortest: Option<Duration>) -> Handoff {
    let shortest = shortest.unwrap_or(Duration::MAX);
    let unknown =
        Handoff { least: measured / UNKNOWN_FACTOR, typical: measured, most: measured * UNKNOWN_FACTOR };
    let Handoff { least, typical, most } = among.filter(|it| it.typical < shortest).unwrap_or(unknown);
    Handoff { least, typical, most: most.min(typical + shortest.saturating_sub(typical) / 2) }
}

/// Returns the two factors by which a speed-up could change with another plausible hand-off. The first is at most 1,
/// and the second at least 1. Both are medians over the pairs of runners. For each pair of runners, `by_handoff`
/// contains the factors for the shortest and for the longest hand-off.
pub(super) fn factors(by_handoff: &[[f64; 2]]) -> (f64, f64) {
    let median = |extreme: fn(f64, f64) -> f64| {
        let mut factors: Vec<f64> =
            by_handoff.iter().map(|&[one, other]| extreme(1.0, extreme(one, other))).collect();
        // `quantile_of` cannot be used, because a factor may be infinite.
        factors.sort_by(f64::total_cmp);
        factors.get(factors.len() / 2).copied().unwrap_or(1.0)
    };
    (median(f64::min), median(f64::max))
}

/// Measures the hand-off of each side if it is not known. The shortest one is used for all sides, because waking is the
/// same work for all of them. So if there are two sides, neither gains anything by slowing down its own empty blocks.
pub(super) fn settle(sides: &mut [Side<'_>]) -> Result<(), SessionError> {
    let mut least: Option<Duration> = None;
    for side in &mut *sides {
        let clock = side.session.clock();
        clock.settle_handoff()?;
        let handoff = clock.handoff();
        least = Some(least.map_or(handoff, |least| least.min(handoff)));
    }
    if let Some(least) = least {
        sides.iter_mut().for_each(|side| side.session.clock().limit_handoff(least));
    }
    Ok(())
}

/// Measures the hand-off of all sides again. This is needed if a whole block took no longer than the known hand-off,
/// which shows that the machine was busier when the hand-off was measured.
pub(super) fn measure_again(sides: &mut [Side<'_>]) -> Result<(), SessionError> {
    sides.iter_mut().for_each(|side| side.session.clock().forget_handoff());
    settle(sides)
}

/// Decides after the warm-up whether this process spins while it waits for a runner, and then settles the hand-off for
/// this way of waiting. It does not spin if a side needs all CPUs, because spinning would take time from the runner.
/// The decision is the same for both sides. `threads` and `cpus_busy` are the largest values of any side.
pub(super) fn settle_waiting(
    sides: &mut [Side<'_>],
    threads: u32,
    cpus_busy: f64,
) -> Result<(), SessionError> {
    let spin = sides.iter_mut().all(|side| side.session.clock().leaves_room(threads, cpus_busy));
    sides.iter_mut().for_each(|side| side.session.clock().wait_spinning(spin));
    settle(sides)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::WakeCost;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn rounds(times: &[(u64, u64)]) -> Vec<IdleRound> {
        let round = |&(elapsed, waited)| IdleRound {
            cpu: Duration::ZERO,
            wake: WakeCost { cpu: Duration::ZERO, threads: 1 },
            elapsed: Some(us(elapsed)),
            waited: Some(us(waited)),
        };
        times.iter().map(round).collect()
    }

    fn handoff((least, typical, most): (u64, u64, u64)) -> Handoff {
        Handoff { least: us(least), typical: us(typical), most: us(most) }
    }

    #[test]
    fn hand_off_among_blocks_is_the_shorter_median_of_rounds_that_did_not_wait() {
        let few = [(20, 0), (22, 0)];
        let calm = [(20, 0), (22, 10), (25, 0), (21, 0), (30, 0)];
        let waiting = [(20, 0), (900, 11), (22, 0), (800, 300), (25, 0)];
        let slow = [(90, 0), (95, 0), (99, 0)];
        for (sides, expected) in [
            (&[&calm[..], &slow][..], Some((21, 22, 25))),
            (&[&slow, &waiting], Some((20, 22, 25))),
            (&[&slow, &slow], Some((90, 95, 99))),
            (&[&calm], Some((21, 22, 25))),
            (&[&[(300, 0); 3]], Some((100, 100, 100))),
            // Too few rounds of one side.
            (&[&few, &calm], None),
            (&[&calm, &few], None),
            (&[&waiting[..3]], None),
            (&[], None),
        ] {
            let sides: Vec<Vec<IdleRound>> = sides.iter().map(|side| rounds(side)).collect();
            assert_eq!(among(sides.iter().map(Vec::as_slice)), expected.map(handoff), "{sides:?}");
        }
        // Waits are averaged over threads. If Linux does not report a wait, it is taken as zero.
        let mut other = rounds(&waiting);
        other.iter_mut().for_each(|round| round.wake.threads = 2);
        let found = among(std::iter::once(&other[..]));
        // The median of an even number of values lies between the two in the middle.
        assert_eq!(found, Some(Handoff { typical: us(47) / 2, ..handoff((20, 0, 100)) }));
        other.iter_mut().for_each(|round| round.waited = None);
        assert_eq!(among(std::iter::once(&other[..])), Some(handoff((22, 25, 100))));
        // Rounds on a device have no hand-off.
        other.iter_mut().for_each(|round| round.elapsed = None);
        assert_eq!(among(std::iter::once(&other[..])), None);
    }

    #[test]
    fn unknown_or_too_long_hand_off_is_replaced_by_the_one_before_the_blocks() {
        let found = Some(handoff((20, 22, 30)));
        for (among, measured, shortest, expected) in [
            (found, 15, Some(500), (20, 22, 30)),
            // `most` exceeds `typical` by at most half of what is left of the shortest block.
            (found, 15, Some(32), (20, 22, 27)),
            // The rounds took longer than a block.
            (found, 16, Some(20), (8, 16, 18)),
            (None, 16, Some(500), (8, 16, 32)),
            (None, 16, Some(20), (8, 16, 18)),
            (None, 16, None, (8, 16, 32)),
            (None, 0, Some(40), (0, 0, 0)),
            // The blocks took no time.
            (None, 100, Some(40), (50, 100, 100)),
        ] {
            let found = choose(among, us(measured), shortest.map(us));
            assert_eq!(found, handoff(expected), "{among:?} {measured} {shortest:?}");
        }
    }
}
