//! What an attempt will owe, from file headers alone (DESIGN, "Memory model").
//!
//! Predicted is the formula; reserved adds what the candidate may owe beyond it in every runner alive. Nothing
//! here is measured, and nothing is learned: that is `estimate`'s.

use std::ops::Range;
use std::time::Duration;

use opt_shared::batch::{Share, batches, input_bytes};
use opt_shared::formula::{
    self, COMPILER_BASE, SHARED_RUNNER, Term, load_timeout, runner_groups, stretched, total,
};
use opt_shared::numbers::EntryNumbers;
use opt_shared::settings::{LimitSettings, ProfileSettings, VerifySettings};
use opt_shared::units::Bytes;

use super::spec::StageSpec;

/// To start a runner, hand it its maps, kill and reap it, on a machine that is busy.
const RUNNER_OVERHEAD: Duration = Duration::from_secs(2);
/// A capture is gone through at no less than this, whatever disk it lies on.
const SLOWEST_READ_PER_SECOND: u64 = 20 << 20;
/// Batches are cut finer at most so often: each cut halves the largest.
const MOST_CUTS: usize = 40;

/// A stage's sum with all that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    pub spec: StageSpec,
    /// What `spec.predicted` adds up from.
    pub predicted: Vec<Term>,
    /// What `spec.reserved` has beyond it.
    pub beyond: Vec<Term>,
    /// The entry whose figures these are, or that weighs most in the batch whose figures they are.
    pub decides: Option<usize>,
    /// Which entries are timed together, or share a runner.
    pub batches: Vec<Range<usize>>,
}

impl Prediction {
    fn new(predicted: Vec<Term>, beyond: Vec<Term>, deadline: Duration) -> Self {
        let sum = total(&predicted);
        let reserved = sum + total(&beyond);
        let spec = StageSpec { predicted: sum, reserved, device: Bytes::ZERO, deadline, batch: None };
        Self { spec, predicted, beyond, decides: None, batches: Vec::new() }
    }
}

pub fn build(memory: Bytes, timeout: Duration) -> Prediction {
    Prediction::new(
        Vec::new(),
        vec![Term { name: "build.memory", bytes: memory }, Term { name: "compiler", bytes: COMPILER_BASE }],
        stretched(timeout).saturating_add(Duration::from_secs(60)),
    )
}

/// First with entries that share runners, then with a runner for each where that takes less.
pub fn verify_ways(
    entries: &[EntryNumbers],
    limits: &LimitSettings,
    settings: &VerifySettings,
    cores: u32,
) -> Vec<Prediction> {
    let mut ways: Vec<Prediction> = Vec::new();
    for cap in [SHARED_RUNNER, Bytes::ZERO] {
        let way = verify(entries, cap, limits, settings, cores);
        if ways.last().is_none_or(|last| way.spec.reserved < last.spec.reserved) {
            ways.push(way);
        }
    }
    ways
}

/// U + O + 2c of the entries that owe most among those that share a runner, up to `shared`.
pub fn verify(
    entries: &[EntryNumbers],
    shared: Bytes,
    limits: &LimitSettings,
    settings: &VerifySettings,
    cores: u32,
) -> Prediction {
    let groups = runner_groups(entries, shared);
    let worst = largest(groups.iter().map(|group| total(&formula::verify(&entries[group.clone()]))));
    let group = worst.map_or(0..0, |index| groups[index].clone());
    let heaviest = largest(entries[group.clone()].iter().map(|entry| entry.unmapped + entry.outputs));
    // A runner each: loaded, planned, called, and once more where a call was right and then wrong. One that fails in a shared
    // runner has another one to itself.
    let calls = call(settings).saturating_mul(settings.repeats.saturating_add(4));
    let per_runner = calls.saturating_add(load(settings)).saturating_add(RUNNER_OVERHEAD);
    let per_entry = if groups.len() < entries.len() { per_runner.saturating_mul(2) } else { per_runner };
    let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    let mut prediction = Prediction::new(
        formula::verify(&entries[group.clone()]),
        beyond(&[limits], entries, cores),
        per_entry.saturating_mul(count).saturating_add(reading(entries)),
    );
    prediction.spec.batch = Some(shared);
    prediction.decides = heaviest.map(|index| group.start + index);
    if shared != Bytes::ZERO {
        prediction.batches = groups;
    }
    prediction
}

/// The pool, its staging, O of the step that owes most, 2c.
pub fn replay(
    pool: Bytes,
    bookkeeping: Bytes,
    steps: &[EntryNumbers],
    limits: &[&LimitSettings],
    settings: &VerifySettings,
    cores: u32,
) -> Prediction {
    let decides = largest(steps.iter().map(|step| step.outputs));
    let outputs = decides.map_or(Bytes::ZERO, |index| steps[index].outputs);
    // One runner at a time, of whichever job.
    let inputs = largest_inputs(steps);
    let most = limits.iter().copied().max_by_key(|limits| limits.memory_for(inputs, cores));
    let per_step =
        call(settings).saturating_mul(2).saturating_add(load(settings)).saturating_add(RUNNER_OVERHEAD);
    let count = u32::try_from(steps.len()).unwrap_or(u32::MAX);
    let prediction = Prediction::new(
        formula::replay(pool, bookkeeping, outputs),
        beyond(most.as_slice(), steps, cores),
        per_step.saturating_mul(count).saturating_add(reading(steps).saturating_mul(2)),
    );
    Prediction { decides, ..prediction }
}

/// Who is timed: a candidate, and its baseline beside it or nobody.
#[derive(Clone, Copy, Debug)]
pub struct Sides<'a> {
    pub candidate: &'a LimitSettings,
    pub baseline: Option<&'a LimitSettings>,
}

/// U of the batch that owes most and its ring, for every side, what is copied for all of them, + 2c; first in batches of `batch_bytes`, then in ever
/// smaller ones, down to an entry each.
pub fn profile(
    entries: &[EntryNumbers],
    sides: Sides<'_>,
    verify: &VerifySettings,
    settings: &ProfileSettings,
    cores: u32,
) -> Vec<Prediction> {
    let shares: Vec<Share<'_>> = entries.iter().map(EntryNumbers::share).collect();
    let mut steps: Vec<Prediction> = Vec::new();
    let mut cap = settings.batch_bytes;
    for _ in 0..MOST_CUTS {
        let cut = batches(&shares, cap);
        // What a coarser cut owes already is no help to anybody.
        let step = profile_step(entries, cut.clone(), cap, sides, verify, settings, cores);
        if steps.last().is_none_or(|last| step.spec.reserved < last.spec.reserved) {
            steps.push(step);
        }
        let largest =
            cut.iter().filter(|range| 1 < range.len()).map(|range| input_bytes(&shares[range.clone()])).max();
        // An entry each.
        let Some(largest) = largest else { break };
        // Below one byte, entries of nothing are all that is left together.
        if largest == Bytes::ZERO {
            break;
        }
        cap = largest.fraction(0.5);
    }
    steps
}

fn profile_step(
    entries: &[EntryNumbers],
    batches: Vec<Range<usize>>,
    cap: Bytes,
    sides: Sides<'_>,
    verify: &VerifySettings,
    settings: &ProfileSettings,
    cores: u32,
) -> Prediction {
    let limits: Vec<&LimitSettings> = std::iter::once(sides.candidate).chain(sides.baseline).collect();
    let count = limits.len() as u64;
    let terms = |batch: &[EntryNumbers]| formula::profile(batch, settings.inputs, &settings.vary, count);
    let worst = largest(batches.iter().map(|range| total(&terms(&entries[range.clone()]))));
    let batch = worst.map_or(0..0, |index| batches[index].clone());
    let heaviest =
        largest(entries[batch.clone()].iter().map(|entry| total(&terms(std::slice::from_ref(entry)))));
    let decides = heaviest.map(|index| batch.start + index);
    // Of each side and runner, warm-up and two blocks of a call at least; or entry_timeout. A trial and a repetition at most.
    let calls = formula::LEAST_RUNNERS * 2 * 4 + 20;
    let runners = formula::MOST_RUNNERS * 2 + 8;
    let per_entry = settings
        .entry_timeout
        .saturating_mul(4)
        .saturating_add(call(verify).saturating_mul(calls))
        // At worst an entry is a batch of its own.
        .saturating_add(load(verify).saturating_add(RUNNER_OVERHEAD).saturating_mul(runners));
    let entry_count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    let mut prediction = Prediction::new(
        terms(&entries[batch]),
        beyond(&limits, entries, cores),
        per_entry.saturating_mul(entry_count).saturating_add(reading(entries)),
    );
    prediction.spec.batch = Some(cap);
    Prediction { decides, batches, ..prediction }
}

/// What runners may owe beyond the formula.
fn beyond(limits: &[&LimitSettings], entries: &[EntryNumbers], cores: u32) -> Vec<Term> {
    formula::runners(limits, largest_inputs(entries), cores)
}

fn largest_inputs(entries: &[EntryNumbers]) -> Bytes {
    entries.iter().map(|entry| entry.inputs).max().unwrap_or_default()
}

/// The first of the largest.
fn largest(sizes: impl Iterator<Item = Bytes>) -> Option<usize> {
    sizes.enumerate().max_by_key(|&(index, size)| (size, std::cmp::Reverse(index))).map(|(index, _)| index)
}

/// How long a call may take where it waits for a CPU all the time.
fn call(settings: &VerifySettings) -> Duration {
    stretched(settings.call_timeout)
}

/// How long a load may take, the same way.
fn load(settings: &VerifySettings) -> Duration {
    stretched(load_timeout(settings.call_timeout))
}

fn reading(entries: &[EntryNumbers]) -> Duration {
    let bytes: Bytes = entries.iter().map(|entry| entry.file).sum();
    Duration::from_secs(60 + bytes.saturating_mul(4).get() / SLOWEST_READ_PER_SECOND)
}
