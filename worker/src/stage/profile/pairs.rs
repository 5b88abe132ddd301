//! Collects the timed pairs of blocks that one pair of runners makes for an entry. Decides how many pairs are made, how
//! many calls their blocks have, and which side goes first.

use std::ops::Range;
use std::time::Duration;

use opt_shared::formula::MIN_RUNNERS;
use opt_shared::message::Depth;
use rand::Rng;

use super::handoff::{self, Handoff};
use super::late::is_late;
use super::length::{calls_for_a_block, longest_call, too_short};
use super::pair::{Order, Pairing, net};
use super::samples::{Samples, threads_waited, was_preempted};
use super::throttled::{Timed, clock_of, least_clock, ms_per_call};
use crate::session::{Block, SessionError, VariantMemory};

/// The wanted number of pairs of blocks for each pair of runners. If calls are slow, `PAIRS_SLOW` is used instead.
const PAIRS: usize = 10;
const PAIRS_SLOW: usize = 2;
/// The minimum number of pairs, because the median of fewer pairs means little. It applies even if time is short, but
/// not if calls are slow or the entry is late. In a screen, this is also the wanted number.
const MIN_PAIRS: usize = 5;
/// The maximum number of pairs, as a multiple of the wanted number. More pairs than wanted are made to replace
/// disturbed pairs, and pairs with a block that took no longer than the hand-off.
const MAX_REPEATED: usize = 4;

pub(super) struct Pairs {
    pub(super) timed: Vec<Timed>,
    /// The number of pairs in which a block took no longer than the hand-off. Such a block says nothing about the time
    /// of its calls.
    pub(super) without_time: usize,
    /// The number of calls in a block of the last pair.
    pub(super) calls: u32,
    /// The time that this pair of runners has spent on the entry so far.
    pub(super) spent: Duration,
    /// The pairs whose times are added up to the only sample of KernelForge's protocol.
    pub(super) parts: Vec<Timed>,
    /// For each side, the range of the idle rounds since the first pair. `end` excludes those after the last pair.
    rounds_among: Vec<Range<usize>>,
    least_calls: u32,
    most_calls: u32,
    /// For each of the next pairs, true if the baseline goes first. Each side goes first in one pair of every two.
    order: Vec<bool>,
    wanted: usize,
    least: usize,
    /// The number of pairs that are enough if the entry is late.
    least_if_late: usize,
    limit: Duration,
    /// The device's clock rate below which a block counts as throttled.
    least_clock: Option<f64>,
}

impl Pairs {
    /// Begins with no pairs. `slow` is true if calls take so long that only a few pairs are made. `spent` is the
    /// duration of the warm-up.
    pub(super) fn new<M: VariantMemory>(pairing: &Pairing<'_, '_, M>, slow: bool, spent: Duration) -> Self {
        let (wanted, least, least_if_late) = match pairing.context.task.depth {
            _ if slow => (PAIRS_SLOW, PAIRS_SLOW, PAIRS_SLOW),
            Depth::Full => (PAIRS, MIN_PAIRS, PAIRS_SLOW),
            // A screen computes its interval only from these pairs. With fewer pairs, it could rule out the winner.
            Depth::Screen => (MIN_PAIRS, MIN_PAIRS, MIN_PAIRS),
        };
        Self {
            timed: Vec::new(),
            parts: Vec::new(),
            without_time: 0,
            calls: 1,
            spent,
            rounds_among: pairing.samples.iter().map(|side| side.rounds.len()..usize::MAX).collect(),
            least_calls: 1,
            most_calls: most_calls(pairing),
            order: Vec::new(),
            wanted,
            least,
            least_if_late,
            // Each of the `MIN_RUNNERS` runners that an entry needs gets an equal share of the time.
            limit: pairing.context.task.profile.entry_timeout / MIN_RUNNERS,
            least_clock: None,
        }
    }

    /// Returns true if there are enough undisturbed pairs, if repeating disturbed ones did not help, or if there is no
    /// time for more.
    pub(super) fn are_enough(&self, sides: &[Samples]) -> bool {
        let made = self.timed.len() + self.without_time;
        let calm = self.timed.iter().filter(|pair| pair.is_calm(self.least_clock)).count();
        self.wanted <= calm
            || self.wanted * MAX_REPEATED <= made
            || (self.least <= made && self.limit <= self.spent)
            || (self.least_if_late <= made && self.is_late(sides))
    }

    /// Marks the end of the pairs. Idle rounds that are made afterwards do not count as rounds among the pairs, because
    /// there are no blocks between them.
    pub(super) fn end(&mut self, sides: &[Samples]) {
        self.rounds_among =
            self.rounds_among.iter().zip(sides).map(|(it, side)| it.start..side.rounds.len()).collect();
    }

    /// Returns the hand-off of the pairs. It is measured by the idle rounds among the pairs or, if these are too few,
    /// by all rounds since the first pair. `measured` is the hand-off that the session measured before the pairs.
    pub(super) fn handoff(&self, sides: &[Samples], measured: Duration) -> Handoff {
        let rounds = |end: fn(&Range<usize>) -> usize| {
            let ranges = self.rounds_among.iter().map(move |it| it.start..end(it));
            handoff::among(sides.iter().zip(ranges).map(|(side, range)| {
                let end = range.end.min(side.rounds.len());
                side.rounds.get(range.start..end).unwrap_or_default()
            }))
        };
        let found = rounds(|it| it.end).or_else(|| rounds(|_| usize::MAX));
        handoff::choose(found, measured, self.timed.iter().filter_map(Timed::shortest).min())
    }

    /// Returns true if the entry is late, judged by the time that this pair of runners has spent and its share of the
    /// limit.
    pub(super) fn is_late(&self, sides: &[Samples]) -> bool {
        is_late(self.spent * MIN_RUNNERS, self.limit * MIN_RUNNERS, sides)
    }

    pub(super) fn next<M: VariantMemory>(&mut self, pairing: &mut Pairing<'_, '_, M>) -> Order {
        // The number of calls is revised for every pair, because a candidate may have slowed down its first calls on
        // purpose.
        self.calls = calls_for_a_block(fastest(pairing.samples), self.most_calls).max(self.least_calls);
        if self.order.is_empty() {
            let first = pairing.draws.random.random::<bool>();
            self.order.extend([first, !first]);
        }
        let baseline_first = self.order.pop().unwrap_or_default();
        Order { calls: self.calls, baseline_first, all_slots: false }
    }

    /// Adds a pair that was made and checked, unless one of its blocks is too short or took no longer than the
    /// hand-off.
    pub(super) fn add<M: VariantMemory>(
        &mut self,
        pairing: &mut Pairing<'_, '_, M>,
        blocks: &[Block],
    ) -> Result<(), SessionError> {
        note_estimates(pairing, blocks, self.calls);
        let nets = net_times(pairing, blocks);
        if nets.iter().any(|&net| too_short(net, self.calls, self.most_calls)) {
            self.least_calls = self.calls.saturating_mul(2).min(self.most_calls);
            return Ok(());
        }
        if nets.contains(&Duration::ZERO) {
            self.without_time += 1;
            note_longest(pairing, blocks, self.calls);
            return handoff::measure_again(pairing.sides);
        }
        self.timed.push(note(pairing, blocks, self.calls));
        self.least_clock = least_clock(pairing.samples.iter().flat_map(Samples::clocks));
        Ok(())
    }
}

fn net_times<M: VariantMemory>(pairing: &mut Pairing<'_, '_, M>, blocks: &[Block]) -> Vec<Duration> {
    blocks.iter().zip(&mut *pairing.sides).map(|(block, side)| net(block, &mut *side.session)).collect()
}

/// Adds the blocks of a pair to the samples of both sides.
pub(super) fn note<M: VariantMemory>(
    pairing: &mut Pairing<'_, '_, M>,
    blocks: &[Block],
    calls: u32,
) -> Timed {
    note_longest(pairing, blocks, calls);
    Timed {
        elapsed: blocks.iter().map(|block| block.elapsed).collect(),
        claimed: blocks.iter().map(|block| block.called.claimed).collect(),
        calls,
        handoffs: 1,
        preempted: blocks.iter().map(was_preempted).collect(),
        threads_waited: blocks.iter().any(threads_waited),
        waited_ms: blocks.iter().map(|block| ms_per_call(block.waited.unwrap_or_default(), calls)).collect(),
        clocks: blocks.iter().map(clock_of).collect(),
    }
}

/// Adds an upper bound of the time of a pair's calls. This bound does not depend on the hand-off.
fn note_longest<M: VariantMemory>(pairing: &mut Pairing<'_, '_, M>, blocks: &[Block], calls: u32) {
    for (block, samples) in blocks.iter().zip(&mut *pairing.samples) {
        samples.add(block);
        samples.most_ms.push(ms_per_call(block.elapsed, calls));
    }
}

pub(super) fn most_calls<M: VariantMemory>(pairing: &Pairing<'_, '_, M>) -> u32 {
    if pairing.context.has_single_calls() {
        return 1;
    }
    let slots = pairing.sides.iter().map(|side| side.session.slots(pairing.context.index)).min().unwrap_or(1);
    pairing.variation.most_calls(slots)
}

/// The shortest estimate of a call among the sides. It determines the number of calls in a block, which is the same for
/// both.
pub(super) fn fastest(samples: &[Samples]) -> Duration {
    samples.iter().map(|side| side.estimate).min().unwrap_or_default()
}

pub(super) fn note_estimates<M: VariantMemory>(
    pairing: &mut Pairing<'_, '_, M>,
    blocks: &[Block],
    calls: u32,
) {
    for (number, block) in blocks.iter().enumerate() {
        let seen = longest_call(block.elapsed, pairing.sides[number].session.clock().handoff(), calls);
        let threads = &mut pairing.samples[number].threads;
        *threads = block.wake.threads.max(*threads);
        let known = &mut pairing.samples[number].estimate;
        *known = if known.is_zero() { seen } else { seen.min(*known) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{IdleRound, WakeCost};

    /// Returns the samples of a side whose idle rounds took these numbers of microseconds.
    fn side(us: &[u64]) -> Samples {
        let wake = WakeCost { cpu: Duration::ZERO, threads: 1 };
        let round = |&us| IdleRound {
            cpu: Duration::ZERO,
            wake,
            elapsed: Some(Duration::from_micros(us)),
            waited: None,
        };
        let mut side = Samples::default();
        side.rounds.extend(us.iter().map(round));
        side
    }

    fn pairs(sides: &[Samples]) -> Pairs {
        Pairs {
            timed: Vec::new(),
            parts: Vec::new(),
            without_time: 0,
            calls: 1,
            spent: Duration::ZERO,
            rounds_among: sides.iter().map(|side| side.rounds.len()..usize::MAX).collect(),
            least_calls: 1,
            most_calls: 1,
            order: Vec::new(),
            wanted: 1,
            least: 1,
            least_if_late: 1,
            limit: Duration::MAX,
            least_clock: None,
        }
    }

    #[test]
    fn handoff_is_that_of_the_rounds_among_the_pairs_if_there_are_enough() {
        let us = Duration::from_micros;
        // There are rounds of an earlier runner, rounds among the pairs, and rounds after the pairs.
        for (among, after, handoff) in [
            (&[20, 20, 20][..], &[30, 30, 30, 30][..], 20),
            // Too few rounds are among the pairs, so all rounds since the first pair are used.
            (&[20, 20], &[30, 30, 30], 30),
            (&[], &[30, 30, 30], 30),
            // There are too few rounds in total, so `measured` is used.
            (&[20], &[20], 7),
        ] {
            let earlier = [5, 5, 5, 5];
            let until = |parts: &[&[u64]]| [side(&parts.concat()), side(&parts.concat())];
            let mut pairs = pairs(&until(&[&earlier]));
            pairs.end(&until(&[&earlier, among]));
            let found = pairs.handoff(&until(&[&earlier, among, after]), us(7));
            assert_eq!(found.typical, us(handoff), "{among:?} {after:?}");
        }
    }
}
