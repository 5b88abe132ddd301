//! Detects whether a runner works after its calls have returned. (Work before its calls is timed, because the clock
//! starts when the runner is woken.)
//!
//! An idle round wakes a runner in exactly the same way as a timed block does, but requests no call. Rounds are placed
//! among the blocks at random. The runner is stopped at the beginning and at the end of a round. At these moments, its
//! CPU clock is exact and includes threads that have ended.
//!
//! One round proves nothing, because the running process is also charged for interrupts and for time in which a
//! hypervisor takes the CPU away. A side counts as working if its CPU time is too high in at least three quarters of
//! its rounds. Half of its rounds are enough if this happens in a far smaller share of the other side's rounds.
//!
//! This file only judges rounds and decides when they take place. The session's clock makes them.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::session::{IdleRound, WakeCost};

/// The minimum number of rounds that can prove that a side works.
pub(super) const MIN_ROUNDS: usize = 9;
/// The CPU time that a runner may use for falling asleep and waking up, with one thread and with several. For long
/// blocks, one part in `ALLOWED_SHARE` of the block is allowed instead, because a smaller gain does not matter.
const MIN_ALLOWANCE: Duration = Duration::from_micros(200);
const MIN_ALLOWANCE_WITH_THREADS: Duration = Duration::from_micros(50);
const ALLOWED_SHARE: u32 = 20;
/// The CPU time that is allowed in addition, as a multiple of the time for only waking all threads (the bare wake-up).
/// The factor is above 1 because in a round, each thread also falls asleep and is stopped again. The bare wake-up is
/// measured in every round, because threads on many CPUs contend with each other.
const BARE_FACTOR: u32 = 6;
/// The limit on this additional time, for each thread.
const MAX_BARE_PER_THREAD: Duration = Duration::from_micros(100);
/// The CPU time that is always allowed for each thread.
const ALLOWANCE_PER_THREAD: Duration = Duration::from_micros(5);

/// The significance level of a difference between the two sides. A side that works in half of its rounds is blamed only
/// if the probability that such a difference occurs by chance is at most this.
const MAX_CHANCE: f64 = 1e-3;

/// Returns the CPU time that a runner may use in a round, if its blocks have the given length.
fn allowance(block: Duration, wake: WakeCost) -> Duration {
    let least = if wake.threads == 1 { MIN_ALLOWANCE } else { MIN_ALLOWANCE_WITH_THREADS };
    least.max(block / ALLOWED_SHARE)
        + (wake.cpu * BARE_FACTOR).min(MAX_BARE_PER_THREAD * wake.threads)
        + ALLOWANCE_PER_THREAD * wake.threads
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Idleness {
    /// Few rounds exceeded the allowance. If blocks are disturbed as rarely, their median is not affected.
    Idle,
    /// Too many rounds exceeded the allowance for the times to be reliable, but too few to prove that the side works.
    Disturbed { exceeded: usize, rounds: usize },
    /// In at least three quarters of the rounds, the runner used more CPU time than the allowance. `least` is the
    /// shortest of these times.
    Works { least: Duration, rounds: usize },
}

/// Judges the idle rounds of one side, whose timed blocks take `block`.
pub(super) fn judge(rounds: &[IdleRound], block: Duration) -> Idleness {
    let count = rounds.len();
    let over = exceeding(rounds, block);
    let Some(&least) = over.first() else { return Idleness::Idle };
    if MIN_ROUNDS <= count && count * 3 <= over.len() * 4 {
        Idleness::Works { least, rounds: count }
    } else if count <= over.len() * 2 {
        Idleness::Disturbed { exceeded: over.len(), rounds: count }
    } else {
        Idleness::Idle
    }
}

/// Returns true if only waking and stopping this side's runner costs more than the allowance. In this case the machine
/// charges the runner for time in which it does not run. This happens in most rounds if a hypervisor takes the CPU away
/// just when a runner is stopped.
pub(super) fn is_overcharged(rounds: &[IdleRound], block: Duration) -> bool {
    let bare = median_bare(rounds);
    let free =
        WakeCost { cpu: Duration::ZERO, threads: rounds.first().map_or(1, |round| round.wake.threads) };
    allowance(block, free) < bare
}

fn median_bare(rounds: &[IdleRound]) -> Duration {
    let mut bares: Vec<Duration> = rounds.iter().map(|round| round.wake.cpu).collect();
    bares.sort_unstable();
    bares.get(rounds.len() / 2).copied().unwrap_or_default()
}

/// Returns the CPU times that exceed the allowance, in ascending order.
fn exceeding(rounds: &[IdleRound], block: Duration) -> Vec<Duration> {
    // The median is used because the bare wake-up of a single round may have been disturbed, like the round itself.
    let bare = median_bare(rounds);
    let mut over: Vec<Duration> = rounds
        .iter()
        .filter(|round| allowance(block, WakeCost { cpu: bare, ..round.wake }) < round.cpu)
        .map(|round| round.cpu)
        .collect();
    over.sort_unstable();
    over
}

/// The number of a side's rounds that exceeded the allowance, and the total number of its rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) exceeded: u32,
    pub(super) rounds: u32,
}

impl Share {
    pub(super) fn of(rounds: &[IdleRound], block: Duration) -> Self {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Self { exceeded: number(exceeding(rounds, block).len()), rounds: number(rounds.len()) }
    }

    /// Returns true if this side worked in so much larger a share of its rounds than the other side that chance does
    /// not explain the difference. Both sides must have enough rounds.
    pub(super) fn stands_out_from(self, other: Self) -> bool {
        let enough = MIN_ROUNDS <= self.rounds.min(other.rounds) as usize;
        enough && chance(self, other) <= MAX_CHANCE
    }
}

/// Returns the probability that at least `mine.exceeded` of the rounds that exceed the allowance belong to this side by
/// chance, if both sides behave in the same way (Fisher's exact test).
fn chance(mine: Share, other: Share) -> f64 {
    let (exceeded, rounds) = (mine.exceeded + other.exceeded, mine.rounds + other.rounds);
    let all = ln_choose(rounds, exceeded);
    (mine.exceeded..=exceeded.min(mine.rounds))
        .filter(|here| exceeded - here <= other.rounds)
        .map(|here| (ln_choose(mine.rounds, here) + ln_choose(other.rounds, exceeded - here) - all).exp())
        .sum()
}

/// Returns the logarithm of the number of ways to choose `some` things out of `all`.
fn ln_choose(all: u32, some: u32) -> f64 {
    (1..=some).map(|number| (f64::from(all - some + number) / f64::from(number)).ln()).sum()
}

/// Returns a random number generator that no candidate can predict. It does not use the plan's seed, which the author
/// of a candidate may know, and its future numbers cannot be computed from earlier ones.
pub(super) fn unforeseen() -> StdRng {
    // `RandomState` has random keys from the operating system.
    let keys = RandomState::new();
    let mut seed = [0; 32];
    for (number, part) in seed.as_chunks_mut().0.iter_mut().enumerate() {
        *part = keys.hash_one(number).to_ne_bytes();
    }
    StdRng::from_seed(seed)
}

/// Decides at random when a round takes place, so that a candidate cannot predict it.
pub(super) struct Draw(StdRng);

impl Draw {
    pub(super) fn new() -> Self {
        Self(unforeseen())
    }

    /// Returns true if the next wake-up of a runner is an idle round. This is the case for one wake-up in three,
    /// independently of earlier results.
    pub(super) fn is_round(&mut self) -> bool {
        self.0.random_range(0..3) == 0
    }

    /// Draws the number of rounds before the first block, for a protocol that may have only one block.
    pub(super) fn first_rounds(&mut self) -> usize {
        self.0.random_range(0..=MIN_ROUNDS)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const US: Duration = Duration::from_micros(1);
    const BLOCK: Duration = Duration::from_millis(2);

    fn rounds(cpu_us: &[u32], threads: u32, bare_us: u32) -> Vec<IdleRound> {
        let wake = WakeCost { cpu: US * bare_us, threads };
        let round = |cpu| IdleRound { cpu: US * cpu, wake, elapsed: None, waited: None };
        cpu_us.iter().map(|&cpu| round(cpu)).collect()
    }

    #[test]
    fn work_in_most_rounds_is_proven() {
        let found = judge(&rounds(&[1500; 9], 1, 1), BLOCK);
        assert_eq!(found, Idleness::Works { least: 1500 * US, rounds: 9 });
        // Two of nine rounds happened to be idle.
        let found = judge(&rounds(&[20, 20, 900, 1500, 900, 900, 900, 900, 900], 1, 1), BLOCK);
        assert_eq!(found, Idleness::Works { least: 900 * US, rounds: 9 });
    }

    #[test]
    fn too_few_rounds_prove_nothing() {
        // Measured under load: some wake-ups take 0.9 ms.
        assert_eq!(judge(&rounds(&[20, 25, 913, 20, 19, 865, 20, 20, 30], 1, 1), BLOCK), Idleness::Idle);
        // This tests a single round, and the largest number of rounds that proves nothing.
        let disturbed = |exceeded, rounds| Idleness::Disturbed { exceeded, rounds };
        assert_eq!(judge(&rounds(&[913], 1, 1), BLOCK), disturbed(1, 1));
        assert_eq!(judge(&rounds(&[913; MIN_ROUNDS - 1], 1, 1), BLOCK), disturbed(8, 8));
        let six_of_nine = [20, 20, 20, 900, 900, 900, 900, 900, 900];
        assert_eq!(judge(&rounds(&six_of_nine, 1, 1), BLOCK), disturbed(6, 9));
        assert_eq!(judge(&[], BLOCK), Idleness::Idle);
    }

    #[test]
    fn allowance_counts_the_median_bare_wake_up() {
        let round = |cpu, bare| rounds(&[cpu], 1, bare).remove(0);
        // The allowance is 200 us, plus 5 us for the thread, plus six times the bare wake-up.
        let mut most = vec![round(265, 10); 7];
        most.extend([round(20, 1), round(20, 1)]);
        assert_eq!(judge(&most, BLOCK), Idleness::Idle);
        most[0] = round(266, 100);
        assert_eq!(exceeding(&most, BLOCK), [266 * US], "one disturbed wake-up allows nothing");
    }

    #[test]
    fn side_stands_out_if_chance_cannot_make_the_difference() {
        let share = |(exceeded, rounds)| Share { exceeded, rounds };
        for (mine, other, stands_out) in [
            ((6, 9), (0, 9), false),
            ((8, 9), (0, 9), true),
            ((10, 20), (0, 20), true),
            ((13, 25), (2, 25), true),
            ((13, 25), (4, 25), false),
            ((30, 54), (27, 54), false),
            // The other side has too few rounds.
            ((30, 54), (0, 8), false),
            // There are enough rounds, but the difference may be due to chance.
            ((30, 54), (0, 9), false),
            ((40, 54), (0, 9), true),
            ((0, 54), (30, 54), false),
        ] {
            let found = share(mine).stands_out_from(share(other));
            assert_eq!(found, stands_out, "{mine:?} {other:?}: {}", chance(share(mine), share(other)));
        }
        // Computed by hand: 1 / C(6, 3) and 1.
        assert!((chance(share((3, 3)), share((0, 3))) - 0.05).abs() < 1e-12);
        assert!((chance(share((0, 9)), share((5, 9))) - 1.0).abs() < 1e-12);
        let rounds = rounds(&[20, 900, 1500], 1, 1);
        assert_eq!(Share::of(&rounds, BLOCK), share((2, 3)));
    }

    #[test]
    fn waking_of_sleeping_threads_is_not_work() {
        // Measured on two CPUs: number of threads, CPU time of a bare wake-up, CPU time of a round.
        for (threads, bare_us, cpu_us) in [
            (1, 1, 9),
            (5, 6, 34),
            (17, 10, 103),
            (65, 36, 424),
            (129, 69, 774),
            (257, 168, 1580),
            (513, 390, 3460),
        ] {
            assert_eq!(judge(&rounds(&[cpu_us; 20], threads, bare_us), BLOCK), Idleness::Idle, "{threads}");
        }
        // Sixty-four threads on as many CPUs contend with each other.
        assert_eq!(judge(&rounds(&[6000; 20], 64, 1500), BLOCK), Idleness::Idle);
        // Threads that spin: two CPUs for a millisecond.
        assert!(matches!(judge(&rounds(&[1900; 20], 7, 20), BLOCK), Idleness::Works { .. }));
    }

    #[test]
    fn longer_blocks_allow_more() {
        assert!(matches!(judge(&rounds(&[900; 9], 1, 1), BLOCK), Idleness::Works { .. }));
        assert_eq!(judge(&rounds(&[900; 9], 1, 1), 20 * BLOCK), Idleness::Idle);
        // A disturbed bare wake-up raises the allowance of a single thread by at most a hundred microseconds.
        assert_eq!(allowance(BLOCK, WakeCost { cpu: Duration::from_secs(1), threads: 1 }), 305 * US);
    }

    #[test]
    fn rounds_are_unpredictable_and_frequent_enough() {
        let draw = || {
            let mut draw = Draw::new();
            (0..300).map(|_| draw.is_round()).collect::<Vec<bool>>()
        };
        let (first, second) = (draw(), draw());
        assert_ne!(first, second);
        // One in three of 300, within ten standard deviations.
        assert!((20..=180).contains(&first.iter().filter(|&&round| round).count()));
        let mut draw = Draw::new();
        let numbers: BTreeSet<usize> = (0..1000).map(|_| draw.first_rounds()).collect();
        assert_eq!(numbers, (0..=MIN_ROUNDS).collect());
    }
}
