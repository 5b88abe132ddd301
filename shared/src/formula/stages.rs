//! Computes the terms of each stage's memory formula, such as U, O and 2c.

use super::{
    COMPARE_CHUNK, DEVICE_FLUSH, LIBTORCH_BASE, LOAD_SLOTS, PYTHON_BASE, PYTHON_COPY, REPLAY_SLOTS,
    RUNNER_BASE, STAGING_SLOT, device_ring, values,
};
use crate::batch::{BatchSum, Constant};
use crate::language::Launcher;
use crate::numbers::EntryNumbers;
use crate::settings::{InputMemory, LimitSettings, ProfileSettings, Vary};
use crate::units::Bytes;

/// One term of a memory formula, with the name that messages show for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    pub name: &'static str,
    pub bytes: Bytes,
}

pub fn total(terms: &[Term]) -> Bytes {
    terms.iter().map(|term| term.bytes).sum()
}

fn term(name: &'static str, bytes: Bytes) -> Term {
    Term { name, bytes }
}

fn chunks() -> Term {
    term("compare chunks (2c)", COMPARE_CHUNK.saturating_mul(2))
}

/// The memory of verifying entries that share a runner: U + O + 2c. All inputs are in memory before the candidate is
/// loaded, so the U of all entries are added. The entries use the same memory for outputs, one after another, so O is
/// the largest O of an entry.
pub fn verify(group: &[EntryNumbers]) -> Vec<Term> {
    vec![
        term("unmapped inputs (U)", group.iter().map(|entry| entry.unmapped).sum()),
        term("outputs (O)", group.iter().map(|entry| entry.outputs).max().unwrap_or_default()),
        chunks(),
    ]
}

/// The device memory for verifying a kernel without host code: I + O of one entry, because entries are loaded one after
/// another.
pub fn on_device(entry: &EntryNumbers) -> Vec<Term> {
    vec![term("inputs (I)", entry.inputs), term("outputs (O)", entry.outputs)]
}

/// The memory for profiling kernels without host code with a batch of entries. A side is the candidate or its baseline.
/// The first list is the worker's host memory: staging, the outputs of each side's last block, the values from which
/// new inputs are drawn, an input that may vary, and 2c. The second list is device memory, which all sides share: the
/// inputs, the ring, the varied inputs, and the memory that is written to flush the cache. The ring and the varied
/// inputs are sized for the entries that need most, because they are allocated once for `all` entries of the profile.
pub fn profile_on_device(
    batch: &[EntryNumbers],
    all: &[EntryNumbers],
    settings: &ProfileSettings,
    sides: u64,
) -> (Vec<Term>, Vec<Term>) {
    let ring = all.iter().map(|entry| device_ring(entry.outputs)).max().unwrap_or_default();
    let varies = settings.vary != Vary::None;
    let varied = all.iter().filter(|_| varies).map(|entry| entry.varied_on_card).max().unwrap_or_default();
    let host = vec![
        term("staging (k\u{b7}s)", STAGING_SLOT.saturating_mul(LOAD_SLOTS)),
        term("output rings (R)", ring.saturating_mul(sides)),
        term("values of varied inputs", values(varied).saturating_mul(batch.len() as u64)),
        // All captured values of an input must be in host memory at once, because they determine whether it may vary.
        term("an input that may vary", varied),
        chunks(),
    ];
    let device = vec![
        term("inputs (I)", batch.iter().map(|entry| entry.inputs).sum()),
        term("output ring (R)", ring),
        term("varied inputs (V)", varied),
        term("flush of the L2 cache", DEVICE_FLUSH),
    ];
    (host, device)
}

/// The worker's host memory while a kernel without host code runs: k·s for uploads, and 2c.
pub fn staged() -> Vec<Term> {
    vec![term("staging (k\u{b7}s)", STAGING_SLOT.saturating_mul(LOAD_SLOTS)), chunks()]
}

/// The memory for profiling a batch. Every side (the candidate, and its baseline if there is one) takes the U of the
/// batch and one ring of outputs. The ring's size is the largest R of an entry or, if entries are timed in turns and
/// this is more, the size of one slot for each entry. All sides share the rest: the largest V of an entry, the values
/// from which new inputs of every entry are drawn, the copies of inputs (tensors that entries share count once), k·s
/// and 2c.
pub fn profile(batch: &[EntryNumbers], settings: &ProfileSettings, sides: u64) -> Vec<Term> {
    let unmapped: Bytes = batch.iter().map(|entry| entry.unmapped).sum();
    let mut ring = batch.iter().map(|entry| entry.ring).max().unwrap_or_default();
    if settings.rotates(batch.len()) {
        // When entries are timed in turns, each has a slot that takes as much memory as the guarded outputs of a
        // verification (O). The larger size is used, because the trial of varied inputs still uses a ring.
        ring = ring.max(batch.iter().map(|entry| entry.outputs).sum());
    }
    // All sides and entries share one buffer for varied inputs. Each entry keeps the values from which its new inputs
    // are drawn.
    let varied = if settings.vary == Vary::None {
        Bytes::ZERO
    } else {
        let values: Bytes = batch.iter().map(|entry| values(entry.varied)).sum();
        batch.iter().map(|entry| entry.varied).max().unwrap_or_default() + values
    };
    let (copied, staging) = match settings.inputs {
        InputMemory::Mapped => (Bytes::ZERO, Bytes::ZERO),
        InputMemory::Copied => (copied(batch), STAGING_SLOT.saturating_mul(LOAD_SLOTS)),
    };
    vec![
        term("unmapped inputs (U)", unmapped.saturating_mul(sides)),
        term("copied inputs", copied),
        term("staging (k\u{b7}s)", staging),
        term("output rings (R)", ring.saturating_mul(sides)),
        term("varied inputs (V)", varied),
        chunks(),
    ]
}

fn copied(batch: &[EntryNumbers]) -> Bytes {
    let mut sum = BatchSum::default();
    let placed = |constant: &Constant| constant.placed;
    let sums = batch.iter().map(|entry| sum.add(entry.copied, &entry.constants, placed));
    sums.last().unwrap_or_default()
}

/// The memory of a replay: the pool, the O of the step with the largest outputs, and the terms of `replay_on_host`.
pub fn replay(pool: Bytes, bookkeeping: Bytes, outputs: Bytes) -> Vec<Term> {
    [replay_pool(pool, outputs), replay_on_host(bookkeeping)].concat()
}

/// The part of a replay's memory that is in its device's memory: the pool and O.
pub fn replay_pool(bytes: Bytes, outputs: Bytes) -> Vec<Term> {
    vec![term("pool", bytes), term("outputs (O)", outputs)]
}

/// The part of a replay's memory that is always in the host's memory: the catalog and schedule, staging, and 2c.
/// Staging consists of k slots, and of one buffer of the same size, into which constants are read to compute their
/// digests.
pub fn replay_on_host(bookkeeping: Bytes) -> Vec<Term> {
    let staging = STAGING_SLOT.saturating_mul(REPLAY_SLOTS + 1);
    vec![term("catalog and schedule", bookkeeping), term("staging", staging), chunks()]
}

/// The settings that determine how much memory a runner may owe in addition to the terms of its stage.
#[derive(Clone, Copy, Debug)]
pub struct RunnerTerms<'a> {
    pub limits: &'a LimitSettings,
    pub launcher: Launcher,
}

impl RunnerTerms<'_> {
    /// The most that the runner may owe in addition to the terms of its stage.
    pub fn limit(&self, inputs: Bytes, cores: u32) -> Bytes {
        self.limits.memory_for(inputs, cores) + runner_base(self.launcher)
    }
}

/// Memory that a runner owes before its candidate does anything.
pub fn runner_base(launcher: Launcher) -> Bytes {
    match launcher {
        Launcher::Dlopen | Launcher::CudaRuntime | Launcher::Kernel => RUNNER_BASE,
        Launcher::Interpreter | Launcher::Triton | Launcher::Graphs => PYTHON_COPY,
        Launcher::Libtorch | Launcher::CudaLibtorch => LIBTORCH_BASE,
    }
}

/// The memory of the interpreters in these runners: a zygote with torch, and the runners that are copied from it.
/// Unlike the memory that candidates may owe, it is used in full.
pub fn interpreters(runners: &[RunnerTerms<'_>]) -> Vec<Term> {
    let copies: Vec<Bytes> = runners
        .iter()
        .filter(|runner| runner.launcher.is_interpreter())
        .map(|runner| runner_base(runner.launcher))
        .collect();
    if copies.is_empty() {
        return Vec::new();
    }
    vec![term("zygote", PYTHON_BASE), term("interpreters", copies.into_iter().sum())]
}

/// The memory that these runners may owe together in addition to the terms of their stage and to `interpreters`.
/// `inputs` is the size of the largest entry's inputs.
pub fn runners(runners: &[RunnerTerms<'_>], inputs: Bytes, cores: u32) -> Vec<Term> {
    let memory = runners.iter().map(|runner| runner.limits.memory_for(inputs, cores)).sum();
    let native = runners.iter().filter(|runner| !runner.launcher.is_interpreter());
    let base: Bytes = native.map(|runner| runner_base(runner.launcher)).sum();
    let mut terms = vec![term("limits.memory", memory)];
    if base != Bytes::ZERO {
        terms.push(term("runners", base));
    }
    terms
}
