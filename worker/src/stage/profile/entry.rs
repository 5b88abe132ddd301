//! Times one entry: chooses the blocks of each runner, decides when there are enough, and computes the figures.

use std::time::{Duration, Instant};

use opt_shared::formula::MIN_RUNNERS;
use opt_shared::message::Depth;
use opt_shared::outcome::{DeviceTiming, EntryProfile, Estimate};
use opt_shared::settings::Protocol;
use opt_shared::units::Bytes;
use rand::Rng;

use super::idle::MIN_ROUNDS;
use super::late::{is_late, least_runners};
use super::length::{agree, calls_for_a_block};
use super::pair::{Context, Draws, Made, Order, Pairing};
use super::pairs::{Pairs, fastest, most_calls, note, note_estimates};
use super::plausible::{implausible, works_unasked};
use super::samples::{Samples, most_threads};
use super::shortest::widened;
use super::throttled::{Timed, is_throttled, least_clock};
use super::vary::Variation;
use super::{CANDIDATE, Side, Stop, handoff};
use crate::judge::{half_width, over_pairs, over_runners, quantile_of, summarise};
use crate::recorded::allocated_bytes;
use crate::session::{DeviceBlock, DeviceFacts, SessionError, VariantMemory};
use crate::stage::failure::CallKind;

/// The minimum number of calls in a warm-up, and its minimum time, unless the entry is late. For slow calls, one pair
/// is enough.
const WARM_UP_CALLS: u32 = 3;
const WARM_UP_TIME: Duration = Duration::from_millis(10);
/// The minimum time of a screen's warm-up, which fills the caches and shows how long a call takes.
const BRIEF_WARM_UP_TIME: Duration = Duration::from_millis(3);
const MAX_WARM_UP_PAIRS: u32 = 1000;
/// The time from which on a call counts as slow. Only a few pairs of slow calls are made.
const SLOW_CALL: Duration = Duration::from_millis(100);
/// The number of undisturbed pairs that is enough to leave out the disturbed ones.
const MIN_CALM: usize = 3;
/// A screen rules out a candidate only if another plausible hand-off raises its speed-up by at most this factor.
const MAX_VAGUENESS: f64 = 1.05;
/// The numbers of warm-up calls and of timed calls in KernelForge's protocol.
const KERNELFORGE_CALLS: (u32, u32) = (25, 100);

/// The measurements of one entry, over all runners so far.
#[derive(Default)]
pub(super) struct Timing {
    /// The candidate's samples, then the baseline's if there is one.
    pub(super) samples: Vec<Samples>,
    /// For each pair of runners, the baseline's time divided by the candidate's.
    ratios: Vec<f64>,
    /// For each of these ratios, the two factors by which the ratio would change with the shortest and with the longest
    /// hand-off that its runners may have had.
    by_handoff: Vec<[f64; 2]>,
    /// The ratio of each pair of blocks in a screen, which has only one pair of runners.
    pairs: Vec<f64>,
    /// True if the figures of a pair of runners include disturbed pairs of blocks.
    disturbed: bool,
    /// For each side, the median of each runner's blocks, in milliseconds.
    medians: Vec<Vec<f64>>,
    runners: u32,
    spent: Duration,
    calls: u32,
    handoff: Duration,
    /// The number of pairs with a block during which the device's clock rate was low.
    throttled_pairs: u32,
    /// The device's properties, or `None` on a CPU.
    facts: Option<DeviceFacts>,
    /// True if the entry needs no more blocks.
    pub(super) done: bool,
    converged: bool,
    /// True if a narrow interval did not show whether the candidate is faster by `min_improvement`.
    undecided: bool,
}

impl Timing {
    pub(super) fn of(sides: usize) -> Self {
        Self {
            samples: (0..sides).map(|_| Samples::default()).collect(),
            medians: vec![Vec::new(); sides],
            ..Self::default()
        }
    }

    /// Times one runner of each side: first the warm-up, then the pairs.
    pub(super) fn time<M: VariantMemory>(
        &mut self,
        context: &Context<'_>,
        sides: &mut [Side<'_>],
        variation: &mut Variation,
        memory: Option<&M>,
        draws: &mut Draws,
    ) -> Result<Made<()>, SessionError> {
        let started = now(sides);
        let mut pairing = self.pairing(context, sides, variation, memory, draws);
        let warm = match warm_up(&mut pairing)? {
            Ok(warm) => warm,
            Err(stop) => return Ok(Err(stop)),
        };
        handoff::settle_waiting(pairing.sides, most_threads(pairing.samples), warm.busy)?;
        let warm_up_time = now(pairing.sides) - started;
        let mut pairs = Pairs::new(&pairing, warm.slow, warm_up_time);
        let made = match context.task.profile.protocol {
            Protocol::Paired => paired(&mut pairing, &mut pairs, started)?,
            Protocol::Kernelforge => kernelforge(&mut pairing, &mut pairs)?,
        };
        if let Err(stop) = made {
            return Ok(Err(stop));
        }
        pairs.end(pairing.samples);
        if let Err(stop) = idle_rounds(&mut pairing, &pairs)? {
            return Ok(Err(stop));
        }
        let spent = now(sides) - started;
        self.add(&pairs, context.task.depth, sides, spent);
        Ok(Ok(()))
    }

    pub(super) fn pairing<'p, 'b, M: VariantMemory>(
        &'p mut self,
        context: &'p Context<'p>,
        sides: &'p mut [Side<'b>],
        variation: &'p mut Variation,
        memory: Option<&'p M>,
        draws: &'p mut Draws,
    ) -> Pairing<'p, 'b, M> {
        Pairing { context, sides, samples: &mut self.samples, variation, memory, draws }
    }

    /// Adds the pairs of blocks of one pair of runners, which took the time `spent`.
    pub(super) fn add(&mut self, pairs: &Pairs, depth: Depth, sides: &mut [Side<'_>], spent: Duration) {
        let timed = &pairs.timed;
        self.calls = pairs.calls;
        self.spent += spent;
        let handoff = pairs.handoff(&self.samples, sides[CANDIDATE].session.clock().handoff());
        self.handoff = handoff.typical;
        let least_clock = least_clock(self.samples.iter().flat_map(Samples::clocks));
        // If at least half of the pairs took no longer than the hand-off, the others are exceptions and are not used.
        let used =
            if timed.len() <= pairs.without_time { Vec::new() } else { counted_pairs(timed, least_clock) };
        // A runner without figures is replaced by another one.
        self.runners += u32::from(!used.is_empty());
        self.disturbed |= used.iter().any(|pair| !pair.is_calm(least_clock) || pair.threads_waited);
        self.throttled_pairs += count(
            timed
                .iter()
                .filter(|pair| (0..pair.elapsed.len()).any(|side| is_throttled(pair, side, least_clock))),
        );
        self.facts = sides[CANDIDATE].session.clock().device_facts();
        let unused = timed.len() - used.len() + pairs.without_time;
        let thrown_away = u32::try_from(unused).unwrap_or(u32::MAX);
        self.samples.iter_mut().for_each(|side| side.discarded += thrown_away);
        for (side, medians) in self.medians.iter_mut().enumerate() {
            let ms: Vec<f64> = used.iter().filter_map(|pair| pair.ms(side, handoff.typical)).collect();
            medians.extend(quantile_of(&ms, 0.5));
            let samples = &mut self.samples[side];
            let blocks = timed.iter().chain(&pairs.parts);
            samples.claims.extend(blocks.filter_map(|pair| pair.claim(side, handoff.typical)));
            samples.ms.extend(ms);
            let waited = |pair: &&Timed| pair.waited_ms.get(side).copied().unwrap_or_default();
            samples.waited_ms.extend(used.iter().map(waited));
        }
        let ratios = |handoff| used.iter().filter_map(|pair| pair.ratio(handoff)).collect::<Vec<f64>>();
        let median = |handoff| quantile_of(&ratios(handoff), 0.5);
        if let Some(typical) = median(handoff.typical) {
            self.ratios.push(typical);
            self.by_handoff.push(
                [handoff.least, handoff.most]
                    .map(|it| median(it).map_or(f64::INFINITY, |ratio| ratio / typical)),
            );
        }
        if depth == Depth::Screen {
            self.pairs = ratios(handoff.typical);
        }
    }

    /// Decides whether the entry is done, or whether it gets another pair of runners to make the interval narrower.
    pub(super) fn settle(&mut self, context: &Context<'_>) {
        let profile = &context.task.profile;
        if context.is_screened() {
            self.done = true;
            return;
        }
        // An entry does not count as late before it has enough idle rounds to prove that a runner works in them.
        let late = profile.protocol == Protocol::Paired
            && self.samples.iter().all(|side| MIN_ROUNDS <= side.rounds.len())
            && is_late(self.spent, profile.entry_timeout, &self.samples);
        if self.runners < least_runners(late) {
            return;
        }
        let narrow = self.estimate().is_some_and(|estimate| half_width(&estimate) <= profile.max_noise);
        self.converged = narrow && profile.protocol == Protocol::Paired;
        self.undecided |= narrow && self.is_undecided(profile.min_improvement);
        self.done = (narrow && !self.undecided)
            || profile.protocol == Protocol::Kernelforge
            || profile.entry_timeout <= self.spent;
    }

    /// Returns true if the interval of the ratio does not show whether the candidate is faster than the baseline by
    /// `min_improvement`. The job's ranking may then be unsettled, so all allowed runners are used. Stopping at the
    /// first clear interval would give chance even more influence.
    fn is_undecided(&self, min_improvement: f64) -> bool {
        let least = 1.0 + min_improvement;
        self.samples.len() != 1
            && self.estimate().is_some_and(|ratio| ratio.ci_low < least && least < ratio.ci_high)
    }

    /// Returns the figure whose interval decides when the entry is done: the ratio or, without a baseline, the time.
    fn estimate(&self) -> Option<Estimate> {
        if self.samples.len() == 1 { over_runners(&self.medians[CANDIDATE]) } else { self.over_ratios() }
    }

    /// Returns the speed-up over the baseline. The interval also includes the speed-ups that would result from other
    /// plausible hand-offs. More runners do not make this extension of the interval smaller.
    fn speedup(&self) -> Option<Estimate> {
        let estimate = self.over_ratios()?;
        let (least, most) = handoff::factors(&self.by_handoff);
        Some(Estimate { ci_low: estimate.ci_low * least, ci_high: estimate.ci_high * most, ..estimate })
    }

    /// Returns the speed-up with the interval that follows from the ratios, without the uncertainty of the hand-off. If
    /// disturbed pairs are used, they distort the ratio, because the slower side has longer blocks and is therefore
    /// disturbed more. In this case the interval is extended to the ratios that the shortest blocks allow.
    fn over_ratios(&self) -> Option<Estimate> {
        let estimate =
            if self.pairs.is_empty() { over_runners(&self.ratios) } else { over_pairs(&self.pairs) }?;
        Some(match &self.samples[..] {
            [candidate, baseline] if self.disturbed => widened(estimate, candidate, baseline),
            _ => estimate,
        })
    }

    /// Returns true if the result of a screen is too uncertain, because its blocks are short compared with the
    /// hand-off, which is not known precisely. A full profile measures the hand-off better.
    pub(super) fn is_vague(&self) -> bool {
        MAX_VAGUENESS < handoff::factors(&self.by_handoff).1
    }

    /// Returns the first side whose figures are not plausible, and the reason.
    pub(super) fn doubt(&self, context: &Context<'_>) -> Result<Option<(usize, Stop)>, SessionError> {
        for (number, samples) in self.samples.iter().enumerate() {
            let stopped = match implausible(context, samples, self.calls, self.handoff, self.facts.as_ref())?
            {
                None => works_unasked(context, samples, self.samples.get(1 - number), self.calls)?,
                found => found,
            };
            if let Some(stop) = stopped {
                return Ok(Some((number, stop)));
            }
        }
        Ok(None)
    }

    /// Returns the figures, or `None` if they cannot be computed from the times.
    pub(super) fn figures(&self, context: &Context<'_>, variation: &Variation) -> Option<EntryProfile> {
        let [seed, ..] = context.task.seed.as_chunks().0 else { return None };
        let seed = u64::from_le_bytes(*seed);
        let mine = &self.samples[CANDIDATE];
        let summary = |side: usize| {
            let estimate = over_runners(&self.medians[side])?;
            let times = summarise(&self.samples[side].ms, seed)?;
            Some(opt_shared::outcome::TimeSummary {
                ci_low: estimate.ci_low.min(times.median_time_ms),
                ci_high: estimate.ci_high.max(times.median_time_ms),
                ..times
            })
        };
        let times = summary(CANDIDATE)?;
        let outputs: u64 =
            context.recorded.outputs.iter().map(|output| allocated_bytes(&output.tensor)).sum();
        let footprint = context.inputs + Bytes::new(outputs);
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let bytes_per_second = footprint.get() as f64 / (times.median_time_ms / 1e3);
        Some(EntryProfile {
            entry: context.recorded.name.clone(),
            weight: context.weight,
            times,
            baseline_times: if self.samples.len() == 1 { None } else { summary(1) },
            speedup: self.speedup(),
            noise: self.estimate().map_or(f64::INFINITY, |estimate| half_width(&estimate)),
            converged: self.converged,
            cache_state: context.cache_state(),
            priority: context.priority,
            footprint,
            bytes_per_second,
            calls_per_block: self.calls,
            discarded_blocks: self.samples.iter().map(|side| side.discarded).sum(),
            slots_checked: self.samples.iter().map(|side| side.slots_checked).sum(),
            plan_ms: mine.plan_ms,
            handoff_us: self.handoff.as_secs_f64() * 1e6,
            runners: self.runners,
            wait_share: self.samples.iter().filter_map(Samples::wait_share).reduce(f64::max),
            deciles: deciles(&mine.ms),
            baseline_deciles: self.samples.get(1).map(|baseline| deciles(&baseline.ms)).unwrap_or_default(),
            varied: variation.names.clone(),
            unvaried_because: variation.unvaried.clone(),
            narrowed: variation.narrowed,
            device: self.facts.as_ref().map(|facts| self.device_timing(facts)),
        })
    }

    fn device_timing(&self, facts: &DeviceFacts) -> DeviceTiming {
        let blocks: Vec<&DeviceBlock> = self.samples.iter().flat_map(|side| &side.on_device).collect();
        let median = |values: Vec<f64>| quantile_of(&values, 0.5);
        let limits = blocks.iter().filter_map(|block| block.pace.limits).reduce(|one, other| one | other);
        DeviceTiming {
            clock_mhz: median(self.samples.iter().flat_map(Samples::clocks).map(f64::from).collect()),
            power_watts: median(blocks.iter().filter_map(|block| block.pace.power_watts).collect()),
            limited_by: limits.map(|limits| limits.names().map(str::to_owned).collect()),
            throttled_pairs: self.throttled_pairs,
            copy_bytes_per_second: facts.copy_rate,
            graph_blocks: count(blocks.iter().filter(|block| block.is_graph)),
            lacks: facts.lacks.clone(),
        }
    }
}

/// Returns eleven quantiles, from the shortest to the longest time. Returns none if there are no times.
fn deciles(ms: &[f64]) -> Vec<f64> {
    (0..=10).filter_map(|tenth| quantile_of(ms, f64::from(tenth) / 10.0)).collect()
}

/// Returns the pairs to use for the figures. Disturbed pairs are left out, unless too few undisturbed ones remain, or
/// the candidate was disturbed much more often than its baseline. Without the second exception, a candidate could have
/// its slow blocks discarded by waiting in them, or by heating the device.
fn counted_pairs(timed: &[Timed], least_clock: Option<f64>) -> Vec<&Timed> {
    let disturbed = |side: usize| timed.iter().filter(|pair| pair.is_disturbed(side, least_clock)).count();
    let calm: Vec<&Timed> = timed.iter().filter(|pair| pair.is_calm(least_clock)).collect();
    let self_made = 2 + disturbed(1) * 3 / 2 < disturbed(CANDIDATE);
    if calm.len() < MIN_CALM || (self_made && timed.iter().any(|pair| 1 < pair.elapsed.len())) {
        timed.iter().collect()
    } else {
        calm
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

pub(super) struct WarmUp {
    /// True if calls take so long that only a few pairs are made.
    pub(super) slow: bool,
    /// The largest number of CPUs that a side kept busy in a block.
    pub(super) busy: f64,
}

/// Makes plan calls, and then pairs. Stops when enough calls have been made (one pair, if calls are slow), enough time
/// has passed, and the number of calls in a block has settled. Stops earlier if the entry is late (but not in
/// KernelForge's protocol), or after `MAX_WARM_UP_PAIRS` pairs.
pub(super) fn warm_up<M: VariantMemory>(
    pairing: &mut Pairing<'_, '_, M>,
) -> Result<Made<WarmUp>, SessionError> {
    handoff::settle(pairing.sides)?;
    for number in 0..pairing.sides.len() {
        if pairing.sides[number].has_plan {
            // These input values differ from those of every timed call.
            let seed = pairing.draws.random.random();
            match pairing.block(number, 1, CallKind::TimedPlan, None, &[], seed)? {
                Ok(block) => pairing.samples[number].plan_ms = Some(block.elapsed.as_secs_f64() * 1e3),
                Err(stop) => return Ok(Err(stop)),
            }
        }
    }
    let most = most_calls(pairing);
    let started = now(pairing.sides);
    let (mut done, mut in_blocks, mut calls) = (0u32, Duration::ZERO, 1u32);
    let mut settled = false;
    // This is the maximum over all blocks, because a disturbed block keeps fewer CPUs busy.
    let mut busy = 0.0_f64;
    let (least_calls, least_time) = match pairing.context.task.profile.protocol {
        Protocol::Paired if pairing.context.is_screened() => (WARM_UP_CALLS, BRIEF_WARM_UP_TIME),
        Protocol::Paired => (WARM_UP_CALLS, WARM_UP_TIME),
        Protocol::Kernelforge => (KERNELFORGE_CALLS.0, WARM_UP_TIME),
    };
    for _ in 0..MAX_WARM_UP_PAIRS {
        let slow = pairing.samples.iter().any(|side| SLOW_CALL <= side.estimate);
        let spent = in_blocks.max(now(pairing.sides) - started);
        let warm = (least_calls <= done || (slow && 0 < done)) && least_time <= spent;
        // The number of calls only grows, and more than doubles each time until a block confirms it.
        if warm && settled {
            break;
        }
        let profile = &pairing.context.task.profile;
        let late = is_late(spent * MIN_RUNNERS, profile.entry_timeout, pairing.samples);
        if 0 < done && late && profile.protocol == Protocol::Paired {
            break;
        }
        let baseline_first = pairing.draws.random.random();
        let blocks = match pairing.make(Order { calls, baseline_first, all_slots: false })? {
            Ok(blocks) => blocks,
            Err(stop) => return Ok(Err(stop)),
        };
        done = done.saturating_add(calls);
        in_blocks += blocks.iter().map(|block| block.elapsed).min().unwrap_or_default();
        busy = blocks.iter().map(|block| block.cpus_busy).fold(busy, f64::max);
        note_estimates(pairing, &blocks, calls);
        let next = calls_for_a_block(fastest(pairing.samples), most);
        settled = agree(calls, next);
        calls = next;
    }
    let slow = pairing.samples.iter().any(|side| SLOW_CALL <= side.estimate);
    Ok(Ok(WarmUp { slow, busy }))
}

/// Returns the current time, by the clock of the candidate's session.
pub(super) fn now(sides: &mut [Side<'_>]) -> Instant {
    sides[CANDIDATE].session.clock().now()
}

fn paired<M: VariantMemory>(
    pairing: &mut Pairing<'_, '_, M>,
    pairs: &mut Pairs,
    started: Instant,
) -> Result<Made<()>, SessionError> {
    while !pairs.are_enough(pairing.samples) {
        let order = pairs.next(pairing);
        match pairing.make(order)? {
            Ok(blocks) => pairs.add(pairing, &blocks)?,
            Err(stop) => return Ok(Err(stop)),
        }
        pairs.spent = now(pairing.sides) - started;
    }
    Ok(Ok(()))
}

/// Makes the 100 timed calls of KernelForge's protocol, in as few blocks as the ring of output slots, the variants and
/// the state of the caches allow. The outputs of all calls are compared. (If inputs vary and there is no baseline, some
/// outputs are kept instead.) The mean time of a call is the only sample.
fn kernelforge<M: VariantMemory>(
    pairing: &mut Pairing<'_, '_, M>,
    pairs: &mut Pairs,
) -> Result<Made<()>, SessionError> {
    // There may be only one block, so idle rounds between blocks would be predictable. A random number comes first.
    for number in 0..pairing.sides.len() {
        for _ in 0..pairing.draws.rounds.first_rounds() {
            if let Err(stop) = pairing.idle_round(number)? {
                return Ok(Err(stop));
            }
        }
    }
    let most = most_calls(pairing);
    let mut left = KERNELFORGE_CALLS.1;
    let mut totals = vec![Duration::ZERO; pairing.sides.len()];
    let mut handoffs = 0;
    while 0 < left {
        let calls = left.min(most);
        let baseline_first = pairing.draws.random.random();
        let blocks = match pairing.make(Order { calls, baseline_first, all_slots: true })? {
            Ok(blocks) => blocks,
            Err(stop) => return Ok(Err(stop)),
        };
        let timed = note(pairing, &blocks, calls);
        totals.iter_mut().zip(&timed.elapsed).for_each(|(total, &elapsed)| *total += elapsed);
        pairs.parts.push(timed);
        handoffs += 1;
        left -= calls;
    }
    let calls = KERNELFORGE_CALLS.1;
    pairs.timed.push(Timed {
        preempted: vec![false; totals.len()],
        elapsed: totals,
        claimed: Vec::new(),
        calls,
        handoffs,
        waited_ms: Vec::new(),
        threads_waited: false,
        clocks: Vec::new(),
    });
    pairs.calls = calls.min(most);
    Ok(Ok(()))
}

/// Makes this pair of runners' share of the idle rounds that a proof needs, unless the entry is only screened.
pub(super) fn idle_rounds<M: VariantMemory>(
    pairing: &mut Pairing<'_, '_, M>,
    pairs: &Pairs,
) -> Result<Made<()>, SessionError> {
    if pairing.context.is_screened() {
        return Ok(Ok(()));
    }
    let runners = least_runners(pairs.is_late(pairing.samples));
    let rounds = MIN_ROUNDS.div_ceil(runners as usize);
    // The sides take turns, as they do for blocks, because the hand-off depends on what ran before.
    for _ in 0..rounds {
        for number in 0..pairing.sides.len() {
            if let Err(stop) = pairing.idle_round(number)? {
                return Ok(Err(stop));
            }
        }
    }
    Ok(Ok(()))
}

pub(super) fn no_figures(context: &Context<'_>) -> SessionError {
    SessionError::NoFigures { entry: context.recorded.name.clone() }
}

#[cfg(test)]
mod tests;
