//! What an attempt will owe, from file headers alone (DESIGN, "Memory model").
//!
//! Predicted is the formula; reserved adds what the candidate may owe beyond it in every runner alive. Nothing
//! here is measured.

use std::time::Duration;

use opt_shared::batch::batches;
use opt_shared::settings::{LimitSettings, ProfileSettings, VerifySettings};
use opt_shared::units::Bytes;

use super::spec::StageSpec;

/// c: what the judge holds of each of the two sides it compares.
pub const COMPARE_CHUNK: Bytes = Bytes::mib(1);
/// What a runner owes before its candidate does anything. The worker's limit has the same.
pub const RUNNER_BASE: Bytes = Bytes::mib(16);
/// A profile's ring of outputs: at most this, and at most so many calls.
const RING: Bytes = Bytes::mib(64);
const RING_CALLS: u64 = 16_384;
const LEAST_MEMORY: Bytes = Bytes::mib(256);
const PER_THREAD: Bytes = Bytes::mib(8);
/// To start a runner, hand it its maps, kill and reap it, on a machine that is busy.
const RUNNER_OVERHEAD: Duration = Duration::from_secs(2);
/// A capture is gone through at no less than this, whatever disk it lies on.
const SLOWEST_READ_PER_SECOND: u64 = 20 << 20;

/// What the formula needs to know of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryNumbers {
    pub file: Bytes,
    /// I.
    pub inputs: Bytes,
    /// O: allocated, all outputs together.
    pub outputs: Bytes,
    /// U.
    pub unmapped: Bytes,
}

/// `limits.memory` with `"auto"` resolved.
pub fn runner_memory(limits: &LimitSettings, largest_inputs: Bytes, cores: u32) -> Bytes {
    let threads = limits.threads.unwrap_or(cores).max(1);
    limits.memory.unwrap_or(LEAST_MEMORY.max(largest_inputs)) + PER_THREAD.saturating_mul(u64::from(threads))
}

pub fn build(memory: Bytes, timeout: Duration) -> StageSpec {
    StageSpec {
        predicted: Bytes::ZERO,
        reserved: memory + RUNNER_BASE,
        deadline: timeout.saturating_add(Duration::from_secs(60)),
    }
}

/// U + O + 2c of the entry that owes most.
pub fn verify(
    entries: &[EntryNumbers],
    limits: &LimitSettings,
    settings: &VerifySettings,
    cores: u32,
) -> StageSpec {
    let predicted = entries.iter().map(|entry| entry.unmapped + entry.outputs).max().unwrap_or_default()
        + COMPARE_CHUNK.saturating_mul(2);
    let largest = entries.iter().map(|entry| entry.inputs).max().unwrap_or_default();
    // A runner each: loaded, planned, called, and once more where a call was right and then wrong.
    let calls = settings.call_timeout.saturating_mul(settings.repeats.saturating_add(4));
    let per_entry = calls.saturating_add(load(settings)).saturating_add(RUNNER_OVERHEAD);
    let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    StageSpec {
        predicted,
        reserved: predicted + runner_memory(limits, largest, cores) + RUNNER_BASE,
        deadline: per_entry.saturating_mul(count).saturating_add(reading(entries)),
    }
}

/// U of the batch that owes most + 2 · max R, and both runners' memory.
pub fn profile(
    entries: &[EntryNumbers],
    limits: [&LimitSettings; 2],
    verify: &VerifySettings,
    settings: &ProfileSettings,
    cores: u32,
) -> StageSpec {
    let sizes: Vec<Bytes> = entries.iter().map(|entry| entry.inputs).collect();
    let predicted = batches(&sizes, settings.batch_bytes)
        .into_iter()
        .map(|range| {
            let batch = &entries[range];
            let unmapped: Bytes = batch.iter().map(|entry| entry.unmapped).sum();
            let copied: Bytes = match settings.inputs {
                opt_shared::settings::InputMemory::Mapped => Bytes::ZERO,
                opt_shared::settings::InputMemory::Copied => batch.iter().map(|entry| entry.inputs).sum(),
            };
            let ring = batch.iter().map(|entry| ring(entry.outputs)).max().unwrap_or_default();
            (unmapped + copied + ring).saturating_mul(2)
        })
        .max()
        .unwrap_or_default()
        + COMPARE_CHUNK.saturating_mul(2);
    let largest = entries.iter().map(|entry| entry.inputs).max().unwrap_or_default();
    let runners: Bytes =
        limits.iter().map(|limits| runner_memory(limits, largest, cores) + RUNNER_BASE).sum();
    let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    // Warm-up and at least five pairs of blocks of at most call_timeout each, or entry_timeout.
    let per_entry = settings
        .entry_timeout
        .saturating_mul(4)
        .saturating_add(verify.call_timeout.saturating_mul(20))
        // At worst an entry is a batch of its own, with two runners.
        .saturating_add(load(verify).saturating_add(RUNNER_OVERHEAD).saturating_mul(2));
    StageSpec {
        predicted,
        reserved: predicted + runners,
        deadline: per_entry.saturating_mul(count).saturating_add(reading(entries)),
    }
}

/// How long a load may take; the worker clamps it the same way.
fn load(settings: &VerifySettings) -> Duration {
    settings.call_timeout.clamp(Duration::from_secs(1), Duration::from_secs(120))
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
