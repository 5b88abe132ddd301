//! What an attempt will owe, from file headers alone (DESIGN, "Memory model").
//!
//! Predicted is the formula; reserved adds what the candidate may owe beyond it in every runner alive. Nothing
//! here is measured, and nothing is learned: that is `estimate`'s.

use std::ops::Range;
use std::time::Duration;

use opt_shared::batch::{Constant, Share, Together, batches, input_bytes};
use opt_shared::numbers::EntryNumbers;
use opt_shared::placement::{STAGING_SLOT, STAGING_SLOTS};
use opt_shared::replay;
use opt_shared::settings::{
    InputMemory, LimitSettings, MOST_STRETCH, ProfileSettings, RUNNER_BASE, VerifySettings,
};
use opt_shared::units::Bytes;

use super::spec::StageSpec;

/// c: what the judge holds of each of the two sides it compares.
pub const COMPARE_CHUNK: Bytes = Bytes::mib(1);
/// A profile's ring of outputs: at most this, and at most so many calls.
const RING: Bytes = Bytes::mib(64);
const RING_CALLS: u64 = 16_384;
/// To start a runner, hand it its maps, kill and reap it, on a machine that is busy.
const RUNNER_OVERHEAD: Duration = Duration::from_secs(2);
/// A capture is gone through at no less than this, whatever disk it lies on.
const SLOWEST_READ_PER_SECOND: u64 = 20 << 20;
/// Batches are cut finer at most so often: each cut halves the largest.
const MOST_CUTS: usize = 40;

/// One term of a sum, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    pub name: &'static str,
    pub bytes: Bytes,
}

/// A stage's sum with all that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    pub spec: StageSpec,
    /// What `spec.predicted` adds up from.
    pub predicted: Vec<Term>,
    /// What `spec.reserved` has beyond it.
    pub beyond: Vec<Term>,
    /// Of the entries: the one whose figures these are, or that weighs most in the batch whose figures they are.
    pub decides: Option<usize>,
    /// Of the entries: which are timed together.
    pub batches: Vec<Range<usize>>,
}

impl Prediction {
    fn new(predicted: Vec<Term>, beyond: Vec<Term>, deadline: Duration) -> Self {
        let sum: Bytes = predicted.iter().map(|term| term.bytes).sum();
        let reserved = sum + beyond.iter().map(|term| term.bytes).sum();
        let spec = StageSpec { predicted: sum, reserved, device: Bytes::ZERO, deadline, batch: None };
        Self { spec, predicted, beyond, decides: None, batches: Vec::new() }
    }
}

fn term(name: &'static str, bytes: Bytes) -> Term {
    Term { name, bytes }
}

pub fn build(memory: Bytes, timeout: Duration) -> Prediction {
    Prediction::new(
        Vec::new(),
        vec![term("build.memory", memory), term("runner", RUNNER_BASE)],
        timeout.saturating_mul(MOST_STRETCH).saturating_add(Duration::from_secs(60)),
    )
}

/// U + O + 2c of the entry that owes most.
pub fn verify(
    entries: &[EntryNumbers],
    limits: &LimitSettings,
    settings: &VerifySettings,
    cores: u32,
) -> Prediction {
    let decides = largest(entries.iter().map(|entry| entry.unmapped + entry.outputs));
    let worst = decides.map(|index| &entries[index]);
    let of_worst = |part: fn(&EntryNumbers) -> Bytes| worst.map_or(Bytes::ZERO, part);
    // A runner each: loaded, planned, called, and once more where a call was right and then wrong.
    let calls = call(settings).saturating_mul(settings.repeats.saturating_add(4));
    let per_entry = calls.saturating_add(load(settings)).saturating_add(RUNNER_OVERHEAD);
    let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    let prediction = Prediction::new(
        vec![
            term("unmapped inputs (U)", of_worst(|entry| entry.unmapped)),
            term("outputs (O)", of_worst(|entry| entry.outputs)),
            term("compare chunks (2c)", COMPARE_CHUNK.saturating_mul(2)),
        ],
        of_runners(&[limits], entries, cores),
        per_entry.saturating_mul(count).saturating_add(reading(entries)),
    );
    Prediction { decides, ..prediction }
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
    // One runner at a time, of whichever job.
    let most = limits.iter().copied().max_by_key(|limits| {
        limits.memory_for(steps.iter().map(|step| step.inputs).max().unwrap_or_default(), cores)
    });
    let per_step =
        call(settings).saturating_mul(2).saturating_add(load(settings)).saturating_add(RUNNER_OVERHEAD);
    let count = u32::try_from(steps.len()).unwrap_or(u32::MAX);
    let staging = replay::STAGING_SLOT.saturating_mul(replay::STAGING_SLOTS + 1);
    let prediction = Prediction::new(
        vec![
            term("pool", pool),
            term("catalog and schedule", bookkeeping),
            term("staging", staging),
            term("outputs (O)", decides.map_or(Bytes::ZERO, |index| steps[index].outputs)),
            term("compare chunks (2c)", COMPARE_CHUNK.saturating_mul(2)),
        ],
        of_runners(most.as_slice(), steps, cores),
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
    // Per side: U and R. For all sides together: what is copied, and what entries have in common once.
    let parts = |range: &Range<usize>| {
        let batch = &entries[range.clone()];
        let unmapped: Bytes = batch.iter().map(|entry| entry.unmapped).sum();
        let copied: Bytes = match settings.inputs {
            InputMemory::Mapped => Bytes::ZERO,
            InputMemory::Copied => {
                let mut together = Together::default();
                let placed = |constant: &Constant| constant.placed;
                let sums = batch.iter().map(|entry| together.add(entry.copied, &entry.constants, placed));
                sums.last().unwrap_or_default()
            }
        };
        let ring = batch.iter().map(|entry| ring(entry.outputs)).max().unwrap_or_default();
        (unmapped, copied, ring)
    };
    let worst = largest(batches.iter().map(|range| {
        let (unmapped, copied, ring) = parts(range);
        (unmapped + ring).saturating_mul(count) + copied
    }));
    let (unmapped, copied, ring_bytes) = worst.map_or(Default::default(), |index| parts(&batches[index]));
    let decides = worst.and_then(|index| {
        let range = batches[index].clone();
        let heaviest = largest(entries[range.clone()].iter().map(|entry| match settings.inputs {
            InputMemory::Mapped => entry.unmapped + ring(entry.outputs),
            InputMemory::Copied => {
                entry.copied + (entry.unmapped + ring(entry.outputs)).saturating_mul(count)
            }
        }))?;
        Some(range.start + heaviest)
    });
    // Warm-up and at least five pairs of blocks of at most call_timeout each, or entry_timeout.
    let per_entry = settings
        .entry_timeout
        .saturating_mul(4)
        .saturating_add(call(verify).saturating_mul(20))
        // At worst an entry is a batch of its own, with two runners.
        .saturating_add(load(verify).saturating_add(RUNNER_OVERHEAD).saturating_mul(2));
    let entry_count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    let staging = match settings.inputs {
        InputMemory::Mapped => Bytes::ZERO,
        InputMemory::Copied => STAGING_SLOT.saturating_mul(STAGING_SLOTS),
    };
    let mut prediction = Prediction::new(
        vec![
            term("unmapped inputs (U)", unmapped.saturating_mul(count)),
            term("copied inputs", copied),
            term("staging (k\u{b7}s)", staging),
            term("output rings (R)", ring_bytes.saturating_mul(count)),
            term("compare chunks (2c)", COMPARE_CHUNK.saturating_mul(2)),
        ],
        of_runners(&limits, entries, cores),
        per_entry.saturating_mul(entry_count).saturating_add(reading(entries)),
    );
    prediction.spec.batch = Some(cap);
    Prediction { decides, batches, ..prediction }
}

/// What runners may owe beyond the formula.
fn of_runners(limits: &[&LimitSettings], entries: &[EntryNumbers], cores: u32) -> Vec<Term> {
    let inputs = entries.iter().map(|entry| entry.inputs).max().unwrap_or_default();
    let memory = limits.iter().map(|limits| limits.memory_for(inputs, cores)).sum();
    vec![term("limits.memory", memory), term("runners", RUNNER_BASE.saturating_mul(limits.len() as u64))]
}

/// The first of the largest.
fn largest(sizes: impl Iterator<Item = Bytes>) -> Option<usize> {
    sizes.enumerate().max_by_key(|&(index, size)| (size, std::cmp::Reverse(index))).map(|(index, _)| index)
}

/// How long a call may take where it waits for a CPU all the time.
fn call(settings: &VerifySettings) -> Duration {
    settings.call_timeout.saturating_mul(MOST_STRETCH)
}

/// How long a load may take; the worker clamps it the same way.
fn load(settings: &VerifySettings) -> Duration {
    settings.call_timeout.clamp(Duration::from_secs(1), Duration::from_secs(120)).saturating_mul(MOST_STRETCH)
}

/// R of DESIGN, "Timing": a slot for each call of a block, at least two.
pub fn ring(outputs: Bytes) -> Bytes {
    let all = outputs.saturating_mul(RING_CALLS);
    RING.min(all).max(outputs.saturating_mul(2))
}

fn reading(entries: &[EntryNumbers]) -> Duration {
    let bytes: Bytes = entries.iter().map(|entry| entry.file).sum();
    Duration::from_secs(60 + bytes.saturating_mul(4).get() / SLOWEST_READ_PER_SECOND)
}
