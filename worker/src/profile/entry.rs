//! One entry of a profile: warm-up, the number of calls in a block, alternating blocks until the interval is
//! narrow enough, and the checks that make a time count.

use std::time::{Duration, Instant};

use opt_shared::causes::chain;
use opt_shared::message::ProfileTask;
use opt_shared::outcome::{CacheStateReached, EntryFailure, EntryProfile, Estimate, Status};
use opt_shared::settings::Protocol;
use opt_shared::units::Bytes;
use rand::Rng;
use rand::rngs::SmallRng;

use super::Stop;
use super::block::{Block, Run, Side};
use super::length::{agree, calls_for_a_block, longest_call};
use super::plausible::{implausible, works_ahead};
use crate::attempt::Trouble;
use crate::executor::outputs::{POISONS, allocated_bytes};
use crate::executor::prepare::Prepared;
use crate::judge::Tolerance;
use crate::judge::check::{OutputCheck, is_the_captures};
use crate::judge::{balanced_order, half_width, paired_ratio, summarise};
use crate::link::Link;
use crate::runner::control::FLAG_PLAN;

const WARM_UP_CALLS: u32 = 3;
const WARM_UP_TIME: Duration = Duration::from_millis(50);
/// Warm-up that goes on because the length of a block has not settled ends here: the machine is not getting calmer.
const LONGEST_WARM_UP: Duration = Duration::from_millis(500);
/// Pairs of blocks before an interval is believed; fewer where one call takes `SLOW_CALL`.
const LEAST_PAIRS: usize = 20;
const LEAST_PAIRS_SLOW: usize = 5;
const SLOW_CALL: Duration = Duration::from_millis(100);
/// The interval is looked at every so many pairs: a bootstrap costs about a block.
const PAIRS_BETWEEN_LOOKS: usize = 5;
/// Blocks are never more than this, whatever the timeout says.
const MOST_PAIRS: usize = 2000;
/// CPU time after "done" that is still taken for the end of the call (DESIGN, "Timing").
pub(super) const DEFERRED_CPU: Duration = Duration::from_micros(200);
/// One block in so many has all of its slots checked.
const ALL_SLOTS_ONE_IN: u32 = 16;
/// KernelForge's protocol: warm-up and timed calls.
const KERNELFORGE_CALLS: (u32, u32) = (25, 100);
/// Discarded blocks in a row after which faults are accepted as the machine's state.
const MOST_DISCARDED: u32 = 50;

pub(super) struct Context<'a> {
    pub(super) task: &'a ProfileTask,
    pub(super) prepared: &'a Prepared,
    pub(super) tolerances: &'a [Tolerance],
    /// Number of the entry in the runners.
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
    /// CPU time that the runner used before each block, when it had nothing to do.
    pub(super) idle: Vec<Duration>,
    discarded: u32,
    slots_checked: u64,
    plan_ms: Option<f64>,
    /// Of one call.
    estimate: Duration,
    pub(super) calls: u32,
}

pub(super) fn time(
    link: &mut Link,
    context: &Context<'_>,
    sides: &mut [Side<'_>],
    random: &mut SmallRng,
) -> Result<Timed, Trouble> {
    let started = Instant::now();
    let mut samples: Vec<Samples> = sides.iter().map(|_| Samples::default()).collect();
    for number in 0..sides.len() {
        if let Err(stop) = warm_up(link, context, &mut sides[number], &mut samples[number], random)? {
            return Ok(Err((number, stop)));
        }
    }
    let converged = match context.task.profile.protocol {
        Protocol::Paired => match blocks(link, context, sides, &mut samples, random, started)? {
            Ok(converged) => converged,
            Err(stop) => return Ok(Err(stop)),
        },
        Protocol::Kernelforge => {
            for number in 0..sides.len() {
                if let Err(stop) =
                    kernelforge(link, context, &mut sides[number], &mut samples[number], random)?
                {
                    return Ok(Err((number, stop)));
                }
            }
            false
        }
    };
    for number in 0..sides.len() {
        let stopped = implausible(context, &samples[number], &sides[number])?
            .or_else(|| works_ahead(context, &samples[number]));
        if let Some(stop) = stopped {
            return Ok(Err((number, stop)));
        }
    }
    match figures(context, sides, &samples, converged) {
        Some(profile) => Ok(Ok(profile)),
        None => Ok(Err((0, stop(context, Status::TooFast, "no block gave a time".to_owned())))),
    }
}

fn figures(
    context: &Context<'_>,
    sides: &[Side<'_>],
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
    let outputs: u64 = context.prepared.leaves.iter().map(|leaf| allocated_bytes(&leaf.tensor)).sum();
    let footprint = context.prepared.input_bytes + Bytes::new(outputs);
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let bytes_per_second = footprint.get() as f64 / (times.median_time_ms / 1e3);
    Some(EntryProfile {
        entry: context.prepared.name.clone(),
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
        handoff_us: sides[0].handoff.as_secs_f64() * 1e6,
    })
}

fn median_of(times: &opt_shared::outcome::TimeSummary) -> Estimate {
    Estimate { value: times.median_time_ms, ci_low: times.ci_low, ci_high: times.ci_high }
}

/// Alternating blocks in balanced random order; whether the interval became narrow enough.
fn blocks(
    link: &mut Link,
    context: &Context<'_>,
    sides: &mut [Side<'_>],
    samples: &mut [Samples],
    random: &mut SmallRng,
    started: Instant,
) -> Result<Result<bool, (usize, Stop)>, Trouble> {
    let profile = &context.task.profile;
    let slow = samples.iter().any(|side| SLOW_CALL <= side.estimate);
    let least = if slow { LEAST_PAIRS_SLOW } else { LEAST_PAIRS };
    let order = balanced_order(MOST_PAIRS, random);
    for (pair, &baseline_first) in order.iter().enumerate() {
        let numbers: &[usize] = match (sides.len(), baseline_first) {
            (1, _) => &[0],
            (_, true) => &[1, 0],
            (_, false) => &[0, 1],
        };
        for &number in numbers {
            let calls = samples[number].calls;
            if let Err(stop) = sample(link, context, &mut sides[number], &mut samples[number], calls, random)?
            {
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
    link: &mut Link,
    context: &Context<'_>,
    side: &mut Side<'_>,
    samples: &mut Samples,
    random: &mut SmallRng,
) -> Result<Result<(), Stop>, Trouble> {
    if side.has_plan {
        match run_block(link, context, side, 1, FLAG_PLAN, Duration::ZERO)? {
            Ok(block) => samples.plan_ms = Some(block.elapsed.as_secs_f64() * 1e3),
            Err(stop) => return Ok(Err(stop)),
        }
    }
    let slots = side.outputs[context.index].slots();
    let (mut done, mut spent, mut calls) = (0u32, Duration::ZERO, 1u32);
    let mut settled = false;
    let least_calls = match context.task.profile.protocol {
        Protocol::Paired => WARM_UP_CALLS,
        Protocol::Kernelforge => KERNELFORGE_CALLS.0,
    };
    while done < least_calls || spent < WARM_UP_TIME || (!settled && spent < LONGEST_WARM_UP) {
        let poison = POISONS[random.random_range(0..POISONS.len())];
        poison_slots(context, side, calls, poison)?;
        let block = match run_block(link, context, side, calls, 0, samples.estimate)? {
            Ok(block) => block,
            Err(stop) => return Ok(Err(stop)),
        };
        if let Some(stop) = check_slots(context, side, samples, calls, poison, random)? {
            return Ok(Err(stop));
        }
        done = done.saturating_add(calls);
        spent += block.elapsed;
        let seen = longest_call(block.elapsed, side.handoff, calls);
        samples.estimate = if samples.estimate.is_zero() { seen } else { samples.estimate.min(seen) };
        // A candidate that keeps every CPU busy would be disturbed by our spinning.
        let busy = block.cpu.as_secs_f64() / block.elapsed.as_secs_f64().max(1e-9);
        let cpus = crate::machine::cpus().len();
        #[expect(clippy::cast_precision_loss, reason = "a handful of CPUs")]
        let room = cpus as f64 - 0.8;
        if !side.callable.leaves_a_cpu() {
            side.may_spin = 1 < cpus && busy < room;
        }
        let next = calls_for_a_block(samples.estimate, slots);
        settled = agree(calls, next);
        calls = next;
    }
    samples.calls = calls;
    Ok(Ok(()))
}

/// One timed and checked block of `calls`.
fn sample(
    link: &mut Link,
    context: &Context<'_>,
    side: &mut Side<'_>,
    samples: &mut Samples,
    calls: u32,
    random: &mut SmallRng,
) -> Result<Result<(), Stop>, Trouble> {
    loop {
        let poison = POISONS[random.random_range(0..POISONS.len())];
        poison_slots(context, side, calls, poison)?;
        let block = match run_block(link, context, side, calls, 0, samples.estimate)? {
            Ok(block) => block,
            Err(stop) => return Ok(Err(stop)),
        };
        if let Some(stop) = check_slots(context, side, samples, calls, poison, random)? {
            return Ok(Err(stop));
        }
        if 0 < block.major_faults && samples.discarded < MOST_DISCARDED {
            samples.discarded += 1;
            continue;
        }
        let net = block.elapsed.saturating_sub(side.handoff);
        samples.ms.push(net.as_secs_f64() * 1e3 / f64::from(calls));
        samples.most_ms.push(block.elapsed.as_secs_f64() * 1e3 / f64::from(calls));
        samples.idle.push(block.cpu_idle);
        samples.claims.push(block.called.claimed.as_secs_f64() / net.as_secs_f64().max(1e-9));
        return Ok(Ok(()));
    }
}

/// 25 calls were warm-up; 100 calls in as few blocks as the ring allows, one sample: their mean.
fn kernelforge(
    link: &mut Link,
    context: &Context<'_>,
    side: &mut Side<'_>,
    samples: &mut Samples,
    random: &mut SmallRng,
) -> Result<Result<(), Stop>, Trouble> {
    let slots = side.outputs[context.index].slots();
    let mut left = KERNELFORGE_CALLS.1;
    let mut total_ms = 0.0;
    while 0 < left {
        let calls = left.min(slots);
        let mut part = Samples { estimate: samples.estimate, ..Samples::default() };
        if let Err(stop) = sample(link, context, side, &mut part, calls, random)? {
            return Ok(Err(stop));
        }
        total_ms += part.ms[0] * f64::from(calls);
        samples.slots_checked += part.slots_checked;
        samples.claims.append(&mut part.claims);
        samples.most_ms.append(&mut part.most_ms);
        samples.idle.append(&mut part.idle);
        left -= calls;
    }
    samples.calls = KERNELFORGE_CALLS.1.min(slots);
    samples.ms.push(total_ms / f64::from(KERNELFORGE_CALLS.1));
    Ok(Ok(()))
}

fn run_block(
    link: &mut Link,
    context: &Context<'_>,
    side: &mut Side<'_>,
    calls: u32,
    flags: u32,
    per_call: Duration,
) -> Result<Result<Block, Stop>, Trouble> {
    // Every call was verified within call_timeout, so a block has that and ten times what is expected of it.
    let timeout = context.task.verify.call_timeout + per_call * calls * 10;
    side.expected = per_call * calls;
    let block = match side.block(link, context.index, calls, flags, timeout)? {
        Run::Done(block) => block,
        Run::Died => return Ok(Err(Stop::Died { entry: context.index })),
    };
    let called = block.called.clone();
    let wrong = if called.returned_value {
        Some((Status::RuntimeError, "a value was returned through `ret`".to_owned()))
    } else if called.result != 0 {
        let what = if flags & FLAG_PLAN == 0 { "a timed call" } else { "the plan call" };
        let raised = called.raised.map_or(String::new(), |text| format!(": {text}"));
        Some((Status::RuntimeError, format!("{what} returned {} (0 means done){raised}", called.result)))
    } else if called.calls_done != calls {
        Some((Status::RuntimeError, format!("{} of {calls} calls of a block were made", called.calls_done)))
    } else if DEFERRED_CPU < block.cpu_after_done {
        Some((
            Status::DeferredWork,
            format!("{:?} of CPU time were used after the last call had returned", block.cpu_after_done),
        ))
    } else {
        None
    };
    Ok(match wrong {
        Some((status, detail)) => Err(stop(context, status, detail)),
        None => Ok(block),
    })
}

pub(super) fn stop(context: &Context<'_>, status: Status, detail: String) -> Stop {
    Stop::Failed(Box::new(EntryFailure {
        entry: context.prepared.name.clone(),
        status,
        detail,
        args: context.prepared.describe(),
        mismatch: None,
    }))
}

fn poison_slots(context: &Context<'_>, side: &Side<'_>, calls: u32, poison: u8) -> Result<(), Trouble> {
    side.outputs[context.index]
        .poison_slots(calls, poison)
        .map_err(|source| Trouble::Outputs { entry: context.prepared.name.clone(), source })
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
) -> Result<Option<Stop>, Trouble> {
    let all = random.random_range(0..ALL_SLOTS_ONE_IN) == 0;
    let slots = if all {
        0..calls
    } else {
        let slot = random.random_range(0..calls);
        slot..slot + 1
    };
    let prepared = context.prepared;
    let outputs = &side.outputs[context.index];
    for slot in slots {
        samples.slots_checked += 1;
        for (index, leaf) in prepared.leaves.iter().enumerate() {
            let check = OutputCheck {
                path: &leaf.path,
                tensor: &leaf.tensor,
                settings: &context.task.verify,
                tolerance: context.tolerances[index],
                poison,
            };
            let compared = check.run(&mut prepared.expected(&leaf.tensor), &mut outputs.source(index, slot));
            let comparison = match compared {
                Ok(comparison) => comparison,
                Err(error) if is_the_captures(&error) => {
                    return Ok(Some(stop(context, Status::CaptureError, chain(&error))));
                }
                Err(source) => return Err(Trouble::Compare { entry: prepared.name.clone(), source }),
            };
            if let Some(mismatch) = comparison.mismatch.filter(|_| !comparison.passed) {
                let detail = format!(
                    "verified, then wrong in timed call {} of a block of {calls}: {} of {} elements of `{}`",
                    slot + 1,
                    mismatch.failed,
                    mismatch.elements,
                    mismatch.output
                );
                return Ok(Some(Stop::Failed(Box::new(EntryFailure {
                    entry: prepared.name.clone(),
                    status: Status::Nondeterministic,
                    detail,
                    args: prepared.describe(),
                    mismatch: Some(mismatch),
                }))));
            }
        }
    }
    Ok(None)
}
