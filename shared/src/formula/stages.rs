//! The sum of each stage, term by term.

use super::{COMPARE_CHUNK, LOAD_SLOTS, REPLAY_SLOTS, RUNNER_BASE, STAGING_SLOT, VALUES};
use crate::batch::{BatchSum, Constant};
use crate::numbers::EntryNumbers;
use crate::settings::{InputMemory, LimitSettings, Vary};
use crate::units::Bytes;

/// One term of a sum, for people.
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

/// U + O + 2c of the entries that share a runner: their inputs are all there before the candidate is loaded, and the outputs of
/// one after the other lie in the same memory.
pub fn verify(group: &[EntryNumbers]) -> Vec<Term> {
    vec![
        term("unmapped inputs (U)", group.iter().map(|entry| entry.unmapped).sum()),
        term("outputs (O)", group.iter().map(|entry| entry.outputs).max().unwrap_or_default()),
        chunks(),
    ]
}

/// U of a batch and its largest ring, for every side; V of the entry that has most of it, once; what is copied for all of them, once, with what entries have in common once;
/// k·s and 2c.
pub fn profile(batch: &[EntryNumbers], inputs: InputMemory, vary: &Vary, sides: u64) -> Vec<Term> {
    let unmapped: Bytes = batch.iter().map(|entry| entry.unmapped).sum();
    let ring = batch.iter().map(|entry| entry.ring).max().unwrap_or_default();
    // One memory for all sides and entries, and the values that theirs are drawn from.
    let varied = match batch.iter().map(|entry| entry.varied).max().unwrap_or_default() {
        Bytes::ZERO => Bytes::ZERO,
        _ if *vary == Vary::None => Bytes::ZERO,
        varied => varied + VALUES,
    };
    let (copied, staging) = match inputs {
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

/// The pool, its staging and what is read while it is recorded, O of a step, 2c.
pub fn replay(pool: Bytes, bookkeeping: Bytes, outputs: Bytes) -> Vec<Term> {
    vec![
        term("pool", pool),
        term("catalog and schedule", bookkeeping),
        term("staging", STAGING_SLOT.saturating_mul(REPLAY_SLOTS + 1)),
        term("outputs (O)", outputs),
        chunks(),
    ]
}

/// What runners of these limits may owe beyond the sums, all alive at once; `inputs` are those of the largest entry.
pub fn runners(limits: &[&LimitSettings], inputs: Bytes, cores: u32) -> Vec<Term> {
    let memory = limits.iter().map(|limits| limits.memory_for(inputs, cores)).sum();
    vec![term("limits.memory", memory), term("runners", RUNNER_BASE.saturating_mul(limits.len() as u64))]
}
