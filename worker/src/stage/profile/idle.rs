//! Whether a runner works when there is nothing to do, after its calls have returned. (Before them, from its waking on, its time
//! counts.)
//!
//! A round wakes a runner just as for a timed block, and then asks for nothing. Rounds are strewn among the blocks at
//! random. Both ends of a round are
//! standstills, where the clock of a process is exact and has the time of ended threads in it. One round proves nothing:
//! an interrupt, or a host that takes the CPU away, is charged to whoever was running. Only what shows in most rounds is
//! the candidate's own.
//!
//! Pure, but for the draw. Making a round is the session clock's work.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::session::{IdleRound, WakeCost};

/// Fewer rounds prove nothing.
pub(super) const LEAST_ROUNDS: usize = 9;
/// CPU time that is taken for the way into sleep and out of it (DESIGN, "Timing"), or a share of a block: who gains less by it is
/// not worth a word.
const LEAST_ALLOWANCE: Duration = Duration::from_micros(200);
const LEAST_ALLOWANCE_OF_THREADS: Duration = Duration::from_micros(50);
const ALLOWED_SHARE: u32 = 20;
/// Being stopped and woken costs the kernel 1 us for a thread where one was measured, and a round, in which each thread
/// sleeps and is stopped again, 3 to 6 us. Many threads on many CPUs get into each other's way, which is why the first
/// figure is measured in every round.
const BARE_FACTOR: u32 = 6;
const MOST_BARE_FOR_A_THREAD: Duration = Duration::from_micros(100);
const FOR_A_THREAD: Duration = Duration::from_micros(5);

/// CPU time that a runner may use in a round beside blocks of the given length.
fn allowance(block: Duration, wake: WakeCost) -> Duration {
    let least = if wake.threads == 1 { LEAST_ALLOWANCE } else { LEAST_ALLOWANCE_OF_THREADS };
    least.max(block / ALLOWED_SHARE)
        + (wake.cpu * BARE_FACTOR).min(MOST_BARE_FOR_A_THREAD * wake.threads)
        + FOR_A_THREAD * wake.threads
}

/// What the rounds of one side say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Idleness {
    /// So few rounds exceeded what is allowed that the median of the blocks cannot come from such.
    Idle,
    /// Neither proof nor calm.
    Disturbed { exceeded: usize, rounds: usize },
    /// Three rounds in four show this much, and more than is allowed.
    Works { least: Duration, rounds: usize },
}

pub(super) fn judge(rounds: &[IdleRound], block: Duration) -> Idleness {
    let count = rounds.len();
    let mut bares: Vec<Duration> = rounds.iter().map(|round| round.wake.cpu).collect();
    bares.sort_unstable();
    // That of one round may have been disturbed as the round itself may.
    let bare = bares.get(count / 2).copied().unwrap_or_default();
    let mut over: Vec<Duration> = rounds
        .iter()
        .filter(|round| allowance(block, WakeCost { cpu: bare, ..round.wake }) < round.cpu)
        .map(|round| round.cpu)
        .collect();
    over.sort_unstable();
    let Some(&least) = over.first() else { return Idleness::Idle };
    if LEAST_ROUNDS <= count && count * 3 <= over.len() * 4 {
        Idleness::Works { least, rounds: count }
    } else if count <= over.len() * 2 {
        Idleness::Disturbed { exceeded: over.len(), rounds: count }
    } else {
        Idleness::Idle
    }
}

/// Numbers that no candidate can foresee: not of the plan's seed, which it may know, and of a generator whose next numbers
/// do not follow from those that were seen.
pub(super) fn unforeseen() -> StdRng {
    // Its keys are the system's random numbers.
    let keys = RandomState::new();
    let mut seed = [0; 32];
    for (number, part) in seed.as_chunks_mut().0.iter_mut().enumerate() {
        *part = keys.hash_one(number).to_ne_bytes();
    }
    StdRng::from_seed(seed)
}

/// When there is a round. A candidate must not see one coming.
pub(super) struct Draw(StdRng);

impl Draw {
    pub(super) fn new() -> Self {
        Self(unforeseen())
    }

    /// Asked before everything a runner is woken for: one time in three it is a round, whatever came before.
    pub(super) fn is_round(&mut self) -> bool {
        self.0.random_range(0..3) == 0
    }

    /// Rounds before a block that is the only one.
    pub(super) fn first_rounds(&mut self) -> usize {
        self.0.random_range(0..=LEAST_ROUNDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);
    const BLOCK: Duration = Duration::from_millis(2);

    fn rounds(cpu_us: &[u32], threads: u32, bare_us: u32) -> Vec<IdleRound> {
        let wake = WakeCost { cpu: US * bare_us, threads };
        cpu_us.iter().map(|&cpu| IdleRound { cpu: US * cpu, wake }).collect()
    }

    #[test]
    fn work_that_shows_in_most_rounds_is_work() {
        let found = judge(&rounds(&[1500; 9], 1, 1), BLOCK);
        assert_eq!(found, Idleness::Works { least: 1500 * US, rounds: 9 });
        // Two of nine were honest by chance.
        let found = judge(&rounds(&[20, 20, 900, 1500, 900, 900, 900, 900, 900], 1, 1), BLOCK);
        assert_eq!(found, Idleness::Works { least: 900 * US, rounds: 9 });
    }

    #[test]
    fn no_number_of_disturbances_short_of_most_is_blamed() {
        // As measured under load: one wake-up in many takes 0.9 ms.
        assert_eq!(judge(&rounds(&[20, 25, 913, 20, 19, 865, 20, 20, 30], 1, 1), BLOCK), Idleness::Idle);
        // The only round there is, and as many as there may be without proof.
        let disturbed = |exceeded, rounds| Idleness::Disturbed { exceeded, rounds };
        assert_eq!(judge(&rounds(&[913], 1, 1), BLOCK), disturbed(1, 1));
        assert_eq!(judge(&rounds(&[913; LEAST_ROUNDS - 1], 1, 1), BLOCK), disturbed(8, 8));
        let six_of_nine = [20, 20, 20, 900, 900, 900, 900, 900, 900];
        assert_eq!(judge(&rounds(&six_of_nine, 1, 1), BLOCK), disturbed(6, 9));
        assert_eq!(judge(&[], BLOCK), Idleness::Idle);
    }

    #[test]
    fn sleeping_threads_that_are_woken_do_not_work() {
        // As measured: threads, CPU time of a bare wake-up and of a round, on two CPUs.
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
        // Sixty-four on as many CPUs, in each other's way.
        assert_eq!(judge(&rounds(&[6000; 20], 64, 1500), BLOCK), Idleness::Idle);
        // Threads that spin: two CPUs for a millisecond.
        assert!(matches!(judge(&rounds(&[1900; 20], 7, 20), BLOCK), Idleness::Works { .. }));
    }

    #[test]
    fn a_long_block_allows_for_more() {
        assert!(matches!(judge(&rounds(&[900; 9], 1, 1), BLOCK), Idleness::Works { .. }));
        assert_eq!(judge(&rounds(&[900; 9], 1, 1), 20 * BLOCK), Idleness::Idle);
        // A disturbed bare wake-up does not buy a single thread more than a hundred microseconds.
        assert_eq!(allowance(BLOCK, WakeCost { cpu: Duration::from_secs(1), threads: 1 }), 305 * US);
    }

    #[test]
    fn rounds_come_unforeseen_and_often_enough() {
        let draw = || {
            let mut draw = Draw::new();
            (0..300).map(|_| draw.is_round()).collect::<Vec<bool>>()
        };
        let (first, second) = (draw(), draw());
        assert_ne!(first, second);
        // Of 300 with one in three: ten standard deviations to either side.
        assert!((20..=180).contains(&first.iter().filter(|&&round| round).count()));
    }
}
