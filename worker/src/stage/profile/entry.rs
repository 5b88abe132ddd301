//! One entry of a profile: warm-up, the number of calls in a block, alternating blocks until the interval is
//! narrow enough, and the checks that make a time count.

use std::time::{Duration, Instant};

use opt_shared::message::ProfileTask;
use opt_shared::outcome::{CacheStateReached, EntryProfile, Estimate, Status};
use opt_shared::settings::Protocol;
use opt_shared::units::Bytes;
use rand::Rng;
use rand::rngs::SmallRng;

use super::idle::{Draw, LEAST_ROUNDS, allowance};
use super::length::{agree, calls_for_a_block, longest_call};
use super::plausible::{implausible, works_unasked};
use super::{Side, Stop, handoff};
use crate::judge::Tolerance;
use crate::judge::{balanced_order, half_width, paired_ratio, summarise};
use crate::recorded::{Recorded, allocated_bytes};
use crate::session::{Answer, Block, BlockOrder, IdleRound, SessionError};
use crate::stage::POISONS;
use crate::stage::calls::EntryCalls;
use crate::stage::failure::{self, Calls};

const WARM_UP_CALLS: u32 = 3;
const WARM_UP_TIME: Duration = Duration::from_millis(50);
/// Warm-up that goes on because the length of a block has not settled ends here: the machine is not getting calmer.
const LONGEST_WARM_UP: Duration = Duration::from_millis(500);
/// Warm-up ends after so many blocks, whatever the clock shows of them.
const MOST_WARM_UP_BLOCKS: u32 = 1000;
/// Pairs of blocks before an interval is believed; fewer where one call takes `SLOW_CALL`.
const LEAST_PAIRS: usize = 20;
const LEAST_PAIRS_SLOW: usize = 5;
const SLOW_CALL: Duration = Duration::from_millis(100);
/// The interval is looked at every so many pairs: a bootstrap costs about a block.
const PAIRS_BETWEEN_LOOKS: usize = 5;
/// Blocks are never more than this, whatever the timeout says.
const MOST_PAIRS: usize = 2000;
/// One block in so many has all of its slots checked.
const ALL_SLOTS_ONE_IN: u32 = 16;
/// KernelForge's protocol: warm-up and timed calls.
const KERNELFORGE_CALLS: (u32, u32) = (25, 100);
/// Discarded blocks after which faults, and work before a block, are accepted as the machine's state: whoever does that
/// before half of all blocks does it in the idle rounds too.
const MOST_DISCARDED: u32 = 50;

pub(super) struct Context<'a> {
    pub(super) task: &'a ProfileTask,
    pub(super) recorded: &'a Recorded,
    /// Of all its inputs.
    pub(super) inputs: Bytes,
    pub(super) tolerances: &'a [Tolerance],
    /// Number of the entry in the sessions.
    pub(super) index: usize,
    pub(super) weight: u64,
}

/// Side 0 is the candidate, side 1 the baseline.
type Timed = Result<EntryProfile, (usize, Stop)>;

#[derive(Default)]
pub(super) struct Samples {
    /// Of one call, in milliseconds.
    pub(super) ms: Vec<f64>,
    /// The same with the hand-off still in it: the most that a call can have taken.
    pub(super) most_ms: Vec<f64>,
    /// The runner's own figure over ours, hand-off subtracted.
    pub(super) claims: Vec<f64>,
    /// What the runner did when it had nothing to do.
    pub(super) rounds: Vec<IdleRound>,
    discarded: u32,
    slots_checked: u64,
    plan_ms: Option<f64>,
    /// Of one call.
    pub(super) estimate: Duration,
    pub(super) calls: u32,
}

pub(super) fn time(
    context: &Context<'_>,
    sides: &mut [Side<'_>],
    random: &mut SmallRng,
) -> Result<Timed, SessionError> {
    let started = Instant::now();
    let mut samples: Vec<Samples> = sides.iter().map(|_| Samples::default()).collect();
    for number in 0..sides.len() {
        if let Err(stop) = warm_up(context, &mut sides[number], &mut samples[number], random)? {
            return Ok(Err((number, stop)));
        }
    }
    // Warm-up may have changed how this process waits.
    handoff::settle(sides)?;
    let mut draws = Draws { order: random, rounds: Draw::new() };
    let converged = match context.task.profile.protocol {
        Protocol::Paired => match blocks(context, sides, &mut samples, &mut draws, started)? {
            Ok(converged) => converged,
            Err(stop) => return Ok(Err(stop)),
        },
        Protocol::Kernelforge => {
            for number in 0..sides.len() {
                if let Err(stop) = kernelforge(context, &mut sides[number], &mut samples[number], &mut draws)?
                {
                    return Ok(Err((number, stop)));
                }
            }
            false
        }
    };
    for number in 0..sides.len() {
        let (side, samples) = (&mut sides[number], &mut samples[number]);
        while samples.rounds.len() < LEAST_ROUNDS {
            if let Err(stop) = round(context, side, samples)? {
                return Ok(Err((number, stop)));
            }
        }
        let stopped = match implausible(context, samples, side.session.clock().handoff())? {
            None => works_unasked(context, samples)?,
            found => found,
        };
        if let Some(stop) = stopped {
            return Ok(Err((number, stop)));
        }
    }
    let handoff = sides[0].session.clock().handoff();
    match figures(context, handoff, &samples, converged) {
        Some(profile) => Ok(Ok(profile)),
        None => Err(SessionError::NoFigures { entry: context.recorded.name.clone() }),
    }
}

/// The plan's seed gives the order of blocks, the poisons and the slots that are checked; nobody's gives the rounds.
struct Draws<'a> {
    order: &'a mut SmallRng,
    rounds: Draw,
}

fn figures(
    context: &Context<'_>,
    handoff: Duration,
    samples: &[Samples],
    converged: bool,
) -> Option<EntryProfile> {
    let seed = context.task.seed;
    let mine = &samples[0];
    let times = summarise(&mine.ms, seed)?;
    let speedup = samples.get(1).and_then(|baseline| paired_ratio(&baseline.ms, &mine.ms, seed));
    let noise = match &speedup {
        Some(estimate) => half_width(estimate),
        None => half_width(&median_of(&times)),
    };
    let outputs: u64 = context.recorded.leaves.iter().map(|leaf| allocated_bytes(&leaf.tensor)).sum();
    let footprint = context.inputs + Bytes::new(outputs);
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let bytes_per_second = footprint.get() as f64 / (times.median_time_ms / 1e3);
    Some(EntryProfile {
        entry: context.recorded.name.clone(),
        weight: context.weight,
        times,
        baseline_times: samples.get(1).and_then(|baseline| summarise(&baseline.ms, seed)),
        speedup,
        noise,
        converged,
        cache_state: CacheStateReached::Warm,
        footprint,
        bytes_per_second,
        calls_per_block: mine.calls,
        discarded_blocks: samples.iter().map(|side| side.discarded).sum(),
        slots_checked: samples.iter().map(|side| side.slots_checked).sum(),
        plan_ms: mine.plan_ms,
        handoff_us: handoff.as_secs_f64() * 1e6,
    })
}

fn median_of(times: &opt_shared::outcome::TimeSummary) -> Estimate {
    Estimate { value: times.median_time_ms, ci_low: times.ci_low, ci_high: times.ci_high }
}

/// Alternating blocks in balanced random order; whether the interval became narrow enough.
fn blocks(
    context: &Context<'_>,
    sides: &mut [Side<'_>],
    samples: &mut [Samples],
    draws: &mut Draws<'_>,
    started: Instant,
) -> Result<Result<bool, (usize, Stop)>, SessionError> {
    let profile = &context.task.profile;
    let slow = samples.iter().any(|side| SLOW_CALL <= side.estimate);
    let least = if slow { LEAST_PAIRS_SLOW } else { LEAST_PAIRS };
    let order = balanced_order(MOST_PAIRS, draws.order);
    for (pair, &baseline_first) in order.iter().enumerate() {
        let numbers: &[usize] = match (sides.len(), baseline_first) {
            (1, _) => &[0],
            (_, true) => &[1, 0],
            (_, false) => &[0, 1],
        };
        for &number in numbers {
            let calls = samples[number].calls;
            if let Err(stop) = sample(context, &mut sides[number], &mut samples[number], calls, draws)? {
                return Ok(Err((number, stop)));
            }
        }
        let pairs = pair + 1;
        let timed_out = profile.entry_timeout <= started.elapsed() && LEAST_PAIRS_SLOW <= pairs;
        let look = least <= pairs && (pairs - least).is_multiple_of(PAIRS_BETWEEN_LOOKS);
        if look || timed_out {
            let estimate = match samples {
                [mine, baseline] => paired_ratio(&baseline.ms, &mine.ms, context.task.seed),
                _ => summarise(&samples[0].ms, context.task.seed).map(|times| median_of(&times)),
            };
            let narrow =
                least <= pairs && estimate.is_some_and(|estimate| half_width(&estimate) <= profile.max_noise);
            if narrow || timed_out {
                return Ok(Ok(narrow));
            }
        }
    }
    Ok(Ok(false))
}

/// Plan call, warm-up and the number of calls in a block.
fn warm_up(
    context: &Context<'_>,
    side: &mut Side<'_>,
    samples: &mut Samples,
    random: &mut SmallRng,
) -> Result<Result<(), Stop>, SessionError> {
    if side.has_plan {
        match run_block(context, side, 1, Calls::TimedPlan, Duration::ZERO)? {
            Ok(block) => samples.plan_ms = Some(block.elapsed.as_secs_f64() * 1e3),
            Err(stop) => return Ok(Err(stop)),
        }
    }
    let slots = side.session.slots(context.index);
    let (mut done, mut spent, mut calls) = (0u32, Duration::ZERO, 1u32);
    let mut settled = false;
    // Of the blocks that were disturbed least; one thread never comes to more than one CPU.
    let mut busy = 0.0_f64;
    let least_calls = match context.task.profile.protocol {
        Protocol::Paired => WARM_UP_CALLS,
        Protocol::Kernelforge => KERNELFORGE_CALLS.0,
    };
    for _ in 0..MOST_WARM_UP_BLOCKS {
        if least_calls <= done && WARM_UP_TIME <= spent && (settled || LONGEST_WARM_UP <= spent) {
            break;
        }
        let block = match checked_block(context, side, samples, calls, random)? {
            Ok(block) => block,
            Err(stop) => return Ok(Err(stop)),
        };
        done = done.saturating_add(calls);
        spent += block.elapsed;
        let seen = longest_call(block.elapsed, side.session.clock().handoff(), calls);
        samples.estimate = if samples.estimate.is_zero() { seen } else { samples.estimate.min(seen) };
        busy = busy.max(block.cpus_busy);
        side.session.clock().settle_wait(block.wake.threads, busy);
        let next = calls_for_a_block(samples.estimate, slots);
        settled = agree(calls, next);
        calls = next;
    }
    samples.calls = calls;
    Ok(Ok(()))
}

/// An idle round.
fn round(
    context: &Context<'_>,
    side: &mut Side<'_>,
    samples: &mut Samples,
) -> Result<Result<(), Stop>, SessionError> {
    Ok(match side.session.clock().idle(context.index)? {
        Answer::Done(round) => {
            samples.rounds.push(round);
            Ok(())
        }
        Answer::Died => Err(Stop::Died { entry: context.index }),
    })
}

/// One timed and checked block of `calls`, and whatever rounds come before it.
fn sample(
    context: &Context<'_>,
    side: &mut Side<'_>,
    samples: &mut Samples,
    calls: u32,
    draws: &mut Draws<'_>,
) -> Result<Result<(), Stop>, SessionError> {
    loop {
        while draws.rounds.is_round() {
            if let Err(stop) = round(context, side, samples)? {
                return Ok(Err(stop));
            }
        }
        let block = match checked_block(context, side, samples, calls, draws.order)? {
            Ok(block) => block,
            Err(stop) => return Ok(Err(stop)),
        };
        let early = allowance(samples.estimate * calls, block.wake) < block.cpu_early;
        if (early || 0 < block.major_faults) && samples.discarded < MOST_DISCARDED {
            samples.discarded += 1;
            continue;
        }
        let net = block.elapsed.saturating_sub(side.session.clock().handoff());
        samples.ms.push(net.as_secs_f64() * 1e3 / f64::from(calls));
        samples.most_ms.push(block.elapsed.as_secs_f64() * 1e3 / f64::from(calls));
        samples.claims.push(block.called.claimed.as_secs_f64() / net.as_secs_f64().max(1e-9));
        return Ok(Ok(()));
    }
}

/// 25 calls were warm-up; 100 calls in as few blocks as the ring allows, one sample: their mean.
fn kernelforge(
    context: &Context<'_>,
    side: &mut Side<'_>,
    samples: &mut Samples,
    draws: &mut Draws<'_>,
) -> Result<Result<(), Stop>, SessionError> {
    let slots = side.session.slots(context.index);
    // One block, perhaps, and no telling in which place it comes.
    for _ in 0..draws.rounds.first_rounds() {
        if let Err(stop) = round(context, side, samples)? {
            return Ok(Err(stop));
        }
    }
    let mut left = KERNELFORGE_CALLS.1;
    let mut total_ms = 0.0;
    while 0 < left {
        let calls = left.min(slots);
        if let Err(stop) = sample(context, side, samples, calls, draws)? {
            return Ok(Err(stop));
        }
        total_ms += samples.ms.pop().unwrap_or_default() * f64::from(calls);
        left -= calls;
    }
    samples.calls = KERNELFORGE_CALLS.1.min(slots);
    samples.ms.push(total_ms / f64::from(KERNELFORGE_CALLS.1));
    Ok(Ok(()))
}

/// A block into poisoned slots, whose outputs are right.
fn checked_block(
    context: &Context<'_>,
    side: &mut Side<'_>,
    samples: &mut Samples,
    calls: u32,
    random: &mut SmallRng,
) -> Result<Result<Block, Stop>, SessionError> {
    let poison = POISONS[random.random_range(0..POISONS.len())];
    side.session.poison(context.index, calls, poison)?;
    let block = match run_block(context, side, calls, Calls::Timed, samples.estimate)? {
        Ok(block) => block,
        Err(stop) => return Ok(Err(stop)),
    };
    Ok(match check_slots(context, side, samples, calls, poison, random)? {
        Some(stop) => Err(stop),
        None => Ok(block),
    })
}

fn run_block(
    context: &Context<'_>,
    side: &mut Side<'_>,
    calls: u32,
    what: Calls,
    per_call: Duration,
) -> Result<Result<Block, Stop>, SessionError> {
    let order = BlockOrder {
        entry: context.index,
        calls,
        plan: what == Calls::TimedPlan,
        expected: per_call * calls,
        // Every call was verified within call_timeout, so a block has that and ten times what is expected of it.
        limit: context.task.verify.call_timeout + per_call * calls * 10,
    };
    let block = match side.session.clock().block(&order)? {
        Answer::Done(block) => block,
        Answer::Died => return Ok(Err(Stop::Died { entry: context.index })),
    };
    Ok(match failure::of_calls(&block.called, calls, what) {
        Some(verdict) => Err(stop(context, verdict.status, verdict.detail)),
        None => Ok(block),
    })
}

pub(super) fn stop(context: &Context<'_>, status: Status, detail: String) -> Stop {
    Stop::Failed(Box::new(failure::of(context.recorded, status, detail)))
}

/// Compares one random slot of the block, sometimes all. Right in verification and wrong here is a matter of
/// calls, not of numerics.
fn check_slots(
    context: &Context<'_>,
    side: &Side<'_>,
    samples: &mut Samples,
    calls: u32,
    poison: u8,
    random: &mut SmallRng,
) -> Result<Option<Stop>, SessionError> {
    let all = random.random_range(0..ALL_SLOTS_ONE_IN) == 0;
    let slots = if all {
        0..calls
    } else {
        let slot = random.random_range(0..calls);
        slot..slot + 1
    };
    let mut entry =
        EntryCalls::new(&context.task.verify, context.recorded, context.tolerances, context.index);
    for slot in slots {
        samples.slots_checked += 1;
        match entry.compare(&*side.session, slot, poison)? {
            Ok(None) => {}
            Ok(Some(mismatch)) => {
                let detail = format!(
                    "verified, then wrong in timed call {} of a block of {calls}: {} of {} elements of `{}`",
                    slot + 1,
                    mismatch.failed,
                    mismatch.elements,
                    mismatch.output
                );
                let mut failure = failure::of(context.recorded, Status::Nondeterministic, detail);
                failure.mismatch = Some(*mismatch);
                return Ok(Some(Stop::Failed(Box::new(failure))));
            }
            Err(failure) => return Ok(Some(Stop::Failed(failure))),
        }
    }
    Ok(None)
}
