//! Predicts from file headers alone how much memory an attempt will owe, and how long it may take.
//!
//! Predictions use no measurements. If attempts owe more than predicted, `estimate` raises later reservations.
//!
//! In the formulas below, U is memory for inputs that are not mapped, O is memory for outputs, and c is the size of a
//! chunk in which outputs are compared.

use std::ops::Range;
use std::time::Duration;

use opt_shared::batch::{Share, batches, input_bytes};
use opt_shared::formula::{
    self, COMPILER_BASE, MIN_COMPILER_MEMORY, RunnerTerms, SHARED_RUNNER, Term, load_timeout, runner_groups,
    stretched, total,
};
use opt_shared::numbers::EntryNumbers;
use opt_shared::settings::{LimitSettings, ProfileSettings, VerifySettings};
use opt_shared::units::Bytes;

use super::spec::StageSpec;

/// The time that it takes on a busy machine to start a runner, pass it its mappings, kill it and reap it.
const RUNNER_OVERHEAD: Duration = Duration::from_secs(2);
/// The reading speed of the slowest disk for which deadlines are long enough, in bytes per second.
const SLOWEST_READ_PER_SECOND: u64 = 20 << 20;
/// The maximum number of batch sizes that are tried. Each size is half of the largest batch that resulted from the
/// previous size.
const MAX_SPLITS: usize = 40;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    pub spec: StageSpec,
    /// The terms of `spec.predicted`.
    pub predicted: Vec<Term>,
    /// The terms that `spec.reserved` adds to `spec.predicted`.
    pub beyond: Vec<Term>,
    /// The terms of `spec.device`.
    pub on_device: Vec<Term>,
    /// The index of the entry or step that determines the prediction, which is the largest one in the largest batch.
    pub decides: Option<usize>,
    /// The batches of a profile, or the groups of a verification in which entries share runners. Otherwise empty.
    pub batches: Vec<Range<usize>>,
}

impl Prediction {
    fn new(predicted: Vec<Term>, beyond: Vec<Term>, deadline: Duration) -> Self {
        let sum = total(&predicted);
        let reserved = sum + total(&beyond);
        let spec = StageSpec {
            predicted: sum,
            reserved,
            device: Bytes::ZERO,
            device_cap: Bytes::ZERO,
            deadline,
            batch: None,
        };
        Self { spec, predicted, beyond, on_device: Vec::new(), decides: None, batches: Vec::new() }
    }
}

/// Returns the ways to build. The first gives the compiler all the memory that the plan allows, the next one half of
/// that, and so on.
pub fn build_ways(memory: Bytes, timeout: Duration) -> Vec<Prediction> {
    let halves = std::iter::successors(Some(memory), |larger| {
        let half = Bytes::new(larger.get() / 2);
        (MIN_COMPILER_MEMORY <= half).then_some(half)
    });
    halves.map(|memory| build(memory, timeout)).collect()
}

fn build(memory: Bytes, timeout: Duration) -> Prediction {
    let mut prediction = Prediction::new(
        Vec::new(),
        vec![Term { name: "build.memory", bytes: memory }, Term { name: "compiler", bytes: COMPILER_BASE }],
        stretched(timeout).saturating_add(Duration::from_secs(60)),
    );
    prediction.spec.batch = Some(memory);
    prediction
}

/// Returns the ways to verify. In the first, entries share runners. A second way, with one runner for each entry, is
/// added if it reserves less.
pub fn verify_ways(
    entries: &[EntryNumbers],
    runner: RunnerTerms<'_>,
    settings: &VerifySettings,
    cores: u32,
) -> Vec<Prediction> {
    let mut ways: Vec<Prediction> = Vec::new();
    for cap in [SHARED_RUNNER, Bytes::ZERO] {
        let way = verify(entries, cap, runner, settings, cores);
        if ways.last().is_none_or(|last| way.spec.reserved < last.spec.reserved) {
            ways.push(way);
        }
    }
    ways
}

/// Predicts a verification. It owes U + O + 2c of its largest group. The entries of a group share a runner, and have at
/// most `shared` bytes together.
pub fn verify(
    entries: &[EntryNumbers],
    shared: Bytes,
    runner: RunnerTerms<'_>,
    settings: &VerifySettings,
    cores: u32,
) -> Prediction {
    let groups = runner_groups(entries, shared);
    let worst = largest(groups.iter().map(|group| total(&formula::verify(&entries[group.clone()]))));
    let group = worst.map_or(0..0, |index| groups[index].clone());
    let heaviest = largest(entries[group.clone()].iter().map(|entry| entry.unmapped + entry.outputs));
    // Each entry may need a separate runner, which loads the candidate and makes a plan call and the repeats. If a
    // wrong call follows a right one, the runner makes two more calls. The deadline allows for one further call. If an
    // entry fails in a shared runner, it is repeated in a separate one.
    let calls = call_limit(settings).saturating_mul(settings.repeats.saturating_add(4));
    let per_runner = calls.saturating_add(load_limit(settings)).saturating_add(RUNNER_OVERHEAD);
    let per_entry = if groups.len() < entries.len() { per_runner.saturating_mul(2) } else { per_runner };
    let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    let mut prediction = Prediction::new(
        [formula::verify(&entries[group.clone()]), formula::interpreters(&[runner])].concat(),
        beyond(&[runner], entries, cores),
        per_entry.saturating_mul(count).saturating_add(reading_timeout(entries)),
    );
    prediction.spec.batch = Some(shared);
    prediction.decides = heaviest.map(|index| group.start + index);
    if shared != Bytes::ZERO {
        prediction.batches = groups;
    }
    prediction
}

/// Predicts the verification of a kernel without host code, which the worker launches itself. The memory of an emulated
/// device belongs to its worker, so all of it is counted on the host. `workspaces` is the number of workspaces, which
/// together may take `limits.memory`.
pub fn verify_on_device(
    entries: &[EntryNumbers],
    emulated: bool,
    workspaces: usize,
    limits: &LimitSettings,
    settings: &VerifySettings,
    cores: u32,
) -> Prediction {
    let decides = largest(entries.iter().map(|entry| entry.inputs + entry.outputs));
    let terms = decides.map_or_else(Vec::new, |index| formula::on_device(&entries[index]));
    let buffers = entries.iter().map(|entry| u64::from(entry.buffers)).max().unwrap_or(0);
    let rounding = formula::device_rounding(buffers.saturating_add(workspaces as u64), emulated);
    let rounding = Term { name: "bands and rounding", bytes: rounding };
    let has_workspaces = workspaces != 0;
    let workspaces = Term { name: "limits.memory", bytes: limits.memory_for(largest_inputs(entries), cores) };
    let device_cap = total(&terms) + workspaces.bytes + rounding.bytes;
    let calls = call_limit(settings).saturating_mul(settings.repeats.saturating_add(4));
    let per_entry = calls.saturating_add(load_limit(settings)).saturating_add(RUNNER_OVERHEAD);
    let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    let deadline = per_entry.saturating_mul(count).saturating_add(reading_timeout(entries));
    let mut prediction = if emulated {
        let outputs = entries.iter().map(|entry| entry.outputs).max().unwrap_or_default();
        let tracked = if has_workspaces { outputs + workspaces.bytes } else { outputs };
        let written = formula::written_bits(tracked);
        let written = Term { name: "bits of written bytes", bytes: written };
        Prediction::new([formula::staged(), terms, vec![written]].concat(), vec![workspaces], deadline)
    } else {
        let mut prediction = Prediction::new(formula::staged(), Vec::new(), deadline);
        let context = Term { name: "context", bytes: formula::DEVICE_CONTEXT };
        prediction.on_device = [vec![context], terms, vec![rounding, workspaces]].concat();
        prediction.spec.device = total(&prediction.on_device);
        prediction
    };
    prediction.spec.device_cap = device_cap;
    prediction.spec.batch = Some(Bytes::ZERO);
    Prediction { decides, ..prediction }
}

/// One of the kernels that are timed in turn on a card: the candidate, or the baseline beside it.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSide<'a> {
    pub limits: &'a LimitSettings,
    pub workspaces: usize,
}

/// Predicts the profile of kernels without host code on a card. Each entry is timed alone, because the workspaces of
/// all entries of a batch would be allocated together. The deadline is the same as on the CPU.
pub fn profile_on_device(
    entries: &[EntryNumbers],
    sides: &[DeviceSide<'_>],
    verify: &VerifySettings,
    settings: &ProfileSettings,
    cores: u32,
) -> Prediction {
    let shares: Vec<Share<'_>> = entries.iter().map(EntryNumbers::share).collect();
    let cut = batches(&shares, Bytes::ZERO);
    let terms = |range: &Range<usize>| {
        formula::profile_on_device(&entries[range.clone()], entries, settings, sides.len() as u64)
    };
    let worst = largest(cut.iter().map(|range| total(&terms(range).1)));
    let batch = worst.map_or(0..0, |index| cut[index].clone());
    let (host, device) = terms(&batch);
    let workspaces: usize = sides.iter().map(|side| side.workspaces).sum();
    // The ring of outputs, the varied inputs and the buffer that flushes the cache add one buffer each.
    let buffers_of = |range: &Range<usize>| {
        let entries = &entries[range.clone()];
        let inputs: u64 = entries.iter().map(|entry| u64::from(entry.buffers)).sum();
        inputs.saturating_add((workspaces * entries.len() + 3) as u64)
    };
    let rounding = formula::device_rounding(cut.iter().map(buffers_of).max().unwrap_or(0), false);
    let inputs = largest_inputs(entries);
    let limits = sides.iter().map(|side| side.limits.memory_for(inputs, cores)).sum();
    let beyond =
        [Term { name: "bands and rounding", bytes: rounding }, Term { name: "limits.memory", bytes: limits }];
    let deadline = profile_deadline(entries, verify, settings);
    let mut prediction = Prediction::new(host, Vec::new(), deadline);
    let context = Term { name: "context", bytes: formula::DEVICE_CONTEXT };
    prediction.spec.device_cap = total(&device) + total(&beyond);
    prediction.on_device = [vec![context], device, beyond.to_vec()].concat();
    prediction.spec.device = total(&prediction.on_device);
    prediction.spec.batch = Some(Bytes::ZERO);
    Prediction { decides: worst.map(|_| batch.start), batches: cut, ..prediction }
}

/// Predicts a replay. It owes the pool, the pool's bookkeeping and staging memory, O of the step with the largest
/// outputs, and 2c.
pub fn replay(
    pool: Bytes,
    bookkeeping: Bytes,
    steps: &[EntryNumbers],
    runners: &[RunnerTerms<'_>],
    settings: &VerifySettings,
    cores: u32,
) -> Prediction {
    let decides = largest(steps.iter().map(|step| step.outputs));
    let outputs = decides.map_or(Bytes::ZERO, |index| steps[index].outputs);
    // Only one runner is at work at a time, and it may belong to any job. The process of the next runner may already be
    // waiting.
    let inputs = largest_inputs(steps);
    let largest_runner = runners.iter().copied().max_by_key(|runner| runner.limit(inputs, cores));
    // The zygote may stay while a runner without an interpreter makes a call.
    let interpreter = runners.iter().find(|runner| runner.launcher.is_interpreter()).copied();
    let interpreters = formula::interpreters(interpreter.as_slice());
    let per_step = call_limit(settings)
        .saturating_mul(2)
        .saturating_add(load_limit(settings))
        .saturating_add(RUNNER_OVERHEAD);
    let count = u32::try_from(steps.len()).unwrap_or(u32::MAX);
    // A copy of a zygote does not wait.
    let waits = runners.iter().any(|runner| !runner.launcher.is_interpreter());
    let waiting = waits.then_some(Term { name: "next runner", bytes: formula::RUNNER_BASE });
    let prediction = Prediction::new(
        [formula::replay(pool, bookkeeping, outputs), interpreters].concat(),
        [beyond(largest_runner.as_slice(), steps, cores), waiting.into_iter().collect()].concat(),
        per_step.saturating_mul(count).saturating_add(reading_timeout(steps).saturating_mul(2)),
    );
    Prediction { decides, ..prediction }
}

/// Predicts a replay on a device, in whose memory the pool and the outputs are. Workspaces may take the largest
/// `limits.memory` of any kernel that the replay calls. `workspaces` is the largest number of workspaces that any of
/// these kernels has. The memory of an emulated device is counted on the host.
pub fn replay_on_device(
    pool: Bytes,
    bookkeeping: Bytes,
    steps: &[EntryNumbers],
    (limits, workspaces): (&[&LimitSettings], usize),
    emulated: bool,
    settings: &VerifySettings,
    cores: u32,
) -> Prediction {
    let inputs = largest_inputs(steps);
    let memory = limits.iter().map(|limits| limits.memory_for(inputs, cores)).max().unwrap_or_default();
    let beyond = Term { name: "limits.memory", bytes: memory };
    let plain = replay(pool, bookkeeping, steps, &[], settings, cores);
    let outputs = plain.decides.map_or(Bytes::ZERO, |index| steps[index].outputs);
    let buffers = steps.iter().map(|entry| u64::from(entry.buffers)).max().unwrap_or(0);
    let rounding = formula::device_rounding(buffers.saturating_add(workspaces as u64), emulated);
    let rounding = Term { name: "bands and rounding", bytes: rounding };
    let device_cap = pool + outputs + rounding.bytes + beyond.bytes;
    let (decides, deadline) = (plain.decides, plain.spec.deadline);
    let mut prediction = if emulated {
        let tracked = if workspaces == 0 { outputs } else { outputs + beyond.bytes };
        let written = Term { name: "bits of written bytes", bytes: formula::written_bits(tracked) };
        Prediction::new([plain.predicted, vec![rounding, written]].concat(), vec![beyond], deadline)
    } else {
        let host = formula::replay_on_host(bookkeeping);
        let mut prediction = Prediction::new(host, Vec::new(), deadline);
        let context = Term { name: "context", bytes: formula::DEVICE_CONTEXT };
        prediction.on_device =
            [vec![context], formula::replay_pool(pool, outputs), vec![rounding, beyond]].concat();
        prediction.spec.device = total(&prediction.on_device);
        prediction
    };
    prediction.spec.device_cap = device_cap;
    Prediction { decides, ..prediction }
}

#[derive(Clone, Copy, Debug)]
pub struct Sides<'a> {
    pub candidate: RunnerTerms<'a>,
    pub baseline: Option<RunnerTerms<'a>>,
}

/// Returns the ways to profile. Each way reserves less than the one before. The first way uses batches of up to
/// `batch_bytes`. Later ways use smaller and smaller batches, down to one entry each.
///
/// The prediction of a way is `formula::profile`, applied to its largest batch.
pub fn profile(
    entries: &[EntryNumbers],
    sides: Sides<'_>,
    verify: &VerifySettings,
    settings: &ProfileSettings,
    cores: u32,
) -> Vec<Prediction> {
    let shares: Vec<Share<'_>> = entries.iter().map(EntryNumbers::share).collect();
    let mut ways: Vec<Prediction> = Vec::new();
    let mut cap = settings.batch_bytes;
    for _ in 0..MAX_SPLITS {
        let cut = batches(&shares, cap);
        // Skip a finer split that does not reserve less than a coarser one.
        let way = profile_way(entries, cut.clone(), cap, sides, verify, settings, cores);
        if ways.last().is_none_or(|last| way.spec.reserved < last.spec.reserved) {
            ways.push(way);
        }
        let largest =
            cut.iter().filter(|range| 1 < range.len()).map(|range| input_bytes(&shares[range.clone()])).max();
        // If every batch is a single entry, nothing is left to split.
        let Some(largest) = largest else { break };
        // If only entries without input bytes still share a batch, splitting it would save nothing.
        if largest == Bytes::ZERO {
            break;
        }
        cap = largest.fraction(0.5);
    }
    ways
}

fn profile_way(
    entries: &[EntryNumbers],
    batches: Vec<Range<usize>>,
    cap: Bytes,
    sides: Sides<'_>,
    verify: &VerifySettings,
    settings: &ProfileSettings,
    cores: u32,
) -> Prediction {
    let both: Vec<RunnerTerms<'_>> = std::iter::once(sides.candidate).chain(sides.baseline).collect();
    let count = both.len() as u64;
    let terms = |batch: &[EntryNumbers]| formula::profile(batch, settings, count);
    let worst = largest(batches.iter().map(|range| total(&terms(&entries[range.clone()]))));
    let batch = worst.map_or(0..0, |index| batches[index].clone());
    let heaviest =
        largest(entries[batch.clone()].iter().map(|entry| total(&terms(std::slice::from_ref(entry)))));
    let decides = heaviest.map(|index| batch.start + index);
    let mut prediction = Prediction::new(
        [terms(&entries[batch]), formula::interpreters(&both)].concat(),
        beyond(&both, entries, cores),
        profile_deadline(entries, verify, settings),
    );
    prediction.spec.batch = Some(cap);
    Prediction { decides, batches, ..prediction }
}

/// The number of processes in which a profile searches for the inputs that it can vary. These are the inputs for whose
/// new values the candidate's results are right.
const SEARCH: u32 = 32;

fn profile_deadline(
    entries: &[EntryNumbers],
    verify: &VerifySettings,
    settings: &ProfileSettings,
) -> Duration {
    // The candidate and the baseline each have several runners. Each runner makes at least a warm-up and two blocks of
    // one call, or runs until `entry_timeout`. The constants also allow for a trial of the varied inputs, a search for
    // those that the candidate gets right, and one repetition.
    let calls = formula::MIN_RUNNERS * 2 * 4 + 20 + SEARCH;
    let runners = formula::MAX_RUNNERS * 2 + 8 + SEARCH;
    let per_entry = settings
        .entry_timeout
        .saturating_mul(4)
        .saturating_add(call_limit(verify).saturating_mul(calls))
        // At worst, each entry is a separate batch.
        .saturating_add(load_limit(verify).saturating_add(RUNNER_OVERHEAD).saturating_mul(runners));
    let entry_count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    per_entry.saturating_mul(entry_count).saturating_add(reading_timeout(entries))
}

/// Returns the terms for the memory that the runners may owe in addition to the formula.
fn beyond(runners: &[RunnerTerms<'_>], entries: &[EntryNumbers], cores: u32) -> Vec<Term> {
    formula::runners(runners, largest_inputs(entries), cores)
}

fn largest_inputs(entries: &[EntryNumbers]) -> Bytes {
    entries.iter().map(|entry| entry.inputs).max().unwrap_or_default()
}

/// Returns the index of the largest size. If several sizes are equal, returns the first.
fn largest(sizes: impl Iterator<Item = Bytes>) -> Option<usize> {
    sizes.enumerate().max_by_key(|&(index, size)| (size, std::cmp::Reverse(index))).map(|(index, _)| index)
}

/// Returns the longest time that a call may take. A call takes this long only if it waits for a CPU most of the time.
fn call_limit(settings: &VerifySettings) -> Duration {
    stretched(settings.call_timeout)
}

/// Returns the longest time that loading a candidate may take. Loading takes this long only if it waits for a CPU most
/// of the time.
fn load_limit(settings: &VerifySettings) -> Duration {
    stretched(load_timeout(settings.call_timeout))
}

/// Returns the time that it takes to read all captures four times at the slowest rate, plus a minute.
fn reading_timeout(entries: &[EntryNumbers]) -> Duration {
    let bytes: Bytes = entries.iter().map(|entry| entry.file).sum();
    Duration::from_secs(60 + bytes.saturating_mul(4).get() / SLOWEST_READ_PER_SECOND)
}
