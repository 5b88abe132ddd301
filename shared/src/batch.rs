//! Divides the entries of a profile, in their order, into batches of limited size. An entry that is larger than the
//! limit is a batch by itself.
//!
//! A constant that several entries of a batch share is counted once. The workers form the batches with this code, and
//! the core uses it to predict their memory, so both get the same batches.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// A part of a storage that several entries of a job use, recognised by the digest of the stored content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constant {
    /// Unique within the job.
    pub id: u32,
    pub bytes: Bytes,
    /// Bytes that the constant takes when copied.
    pub placed: Bytes,
}

/// What an entry adds to a batch: the size of its inputs, and the constants that are part of them.
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    pub inputs: Bytes,
    pub constants: &'a [Constant],
}

/// The total size of a batch, in which every constant is counted once.
#[derive(Debug, Default)]
pub struct BatchSum {
    seen: BTreeSet<u32>,
    sum: Bytes,
}

impl BatchSum {
    /// Adds an entry of size `total` and returns the new sum. `part` returns how many of these bytes belong to a
    /// constant. These bytes are not added again if an earlier entry has the same constant.
    pub fn add(&mut self, total: Bytes, constants: &[Constant], part: fn(&Constant) -> Bytes) -> Bytes {
        let again: Bytes = constants.iter().filter(|it| !self.seen.insert(it.id)).map(part).sum();
        self.sum += total - again;
        self.sum
    }

    fn with(&self, share: &Share<'_>) -> Bytes {
        let again = share.constants.iter().filter(|it| self.seen.contains(&it.id)).map(|it| it.bytes).sum();
        self.sum + (share.inputs - again)
    }
}

/// Returns the total size of the inputs of a batch.
pub fn input_bytes(entries: &[Share<'_>]) -> Bytes {
    let mut sum = BatchSum::default();
    entries.iter().for_each(|entry| {
        sum.add(entry.inputs, entry.constants, |constant| constant.bytes);
    });
    sum.sum
}

/// Returns the batches as ranges of `entries`, in order. No range is empty. The inputs of a range take at most `cap`
/// bytes, unless the range has only one entry.
pub fn batches(entries: &[Share<'_>], cap: Bytes) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut sum = BatchSum::default();
    for (index, entry) in entries.iter().enumerate() {
        match ranges.last_mut() {
            Some(range) if sum.with(entry) <= cap => range.end = index + 1,
            _ => {
                ranges.push(index..index + 1);
                sum = BatchSum::default();
            }
        }
        sum.add(entry.inputs, entry.constants, |constant| constant.bytes);
    }
    ranges
}

/// Returns the order in which entries should be batched. Entries with the same largest constant are placed together,
/// at the position of the first of them. Without constants, the order is unchanged.
pub fn compose(entries: &[Share<'_>]) -> Vec<usize> {
    let largest = |entry: &Share<'_>| {
        let constants = entry.constants.iter();
        constants.max_by_key(|it| (it.bytes, std::cmp::Reverse(it.id))).map(|it| it.id)
    };
    let mut first_of = std::collections::BTreeMap::new();
    let mut order: Vec<(usize, usize)> = entries
        .iter()
        .enumerate()
        .map(|(index, entry)| {
            let group = largest(entry).map_or(index, |id| *first_of.entry(id).or_insert(index));
            (group, index)
        })
        .collect();
    order.sort_unstable();
    order.into_iter().map(|(_, index)| index).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn constant(id: u32, bytes: u64) -> Constant {
        Constant { id, bytes: Bytes::new(bytes), placed: Bytes::new(bytes) }
    }

    /// Makes entries, each with the size of its own inputs and its constants. A constant's size follows from its
    /// number.
    fn owned(entries: &[(u64, BTreeSet<u32>)]) -> Vec<(Bytes, Vec<Constant>)> {
        entries
            .iter()
            .map(|(own, ids)| {
                let constants: Vec<_> = ids.iter().map(|&id| constant(id, u64::from(id) * 7)).collect();
                (Bytes::new(*own) + constants.iter().map(|it| it.bytes).sum(), constants)
            })
            .collect()
    }

    fn shares(owned: &[(Bytes, Vec<Constant>)]) -> Vec<Share<'_>> {
        owned.iter().map(|(inputs, constants)| Share { inputs: *inputs, constants }).collect()
    }

    fn sum(entries: &[(u64, BTreeSet<u32>)]) -> Bytes {
        let own_bytes: u64 = entries.iter().map(|(own_bytes, _)| own_bytes).sum();
        let distinct: BTreeSet<u32> = entries.iter().flat_map(|(_, ids)| ids.iter().copied()).collect();
        Bytes::new(own_bytes + distinct.iter().map(|&id| u64::from(id) * 7).sum::<u64>())
    }

    proptest! {
        #[test]
        fn batches_cover_all_in_order_within_the_cap(
            entries in prop::collection::vec((0u64..100, prop::collection::btree_set(0u32..6, 0..3)), 0..60),
            cap in 0u64..200,
        ) {
            let owned = owned(&entries);
            let ranges = batches(&shares(&owned), Bytes::new(cap));
            let mut next = 0;
            for range in &ranges {
                prop_assert_eq!(range.start, next);
                prop_assert!(range.start < range.end);
                let together = sum(&entries[range.clone()]);
                prop_assert_eq!(input_bytes(&shares(&owned)[range.clone()]), together);
                prop_assert!(together <= Bytes::new(cap) || range.len() == 1);
                next = range.end;
            }
            prop_assert_eq!(next, entries.len());
            // Every batch is filled as far as possible, so the first entry of the next batch would not have fitted into
            // it.
            for pair in ranges.windows(2) {
                prop_assert!(Bytes::new(cap) < sum(&entries[pair[0].start..pair[0].end + 1]));
            }
        }

        #[test]
        fn composed_order_is_a_permutation_and_stays_when_composed_again(
            entries in prop::collection::vec((0u64..100, prop::collection::btree_set(0u32..6, 0..3)), 0..30)
        ) {
            let owned = owned(&entries);
            let order = compose(&shares(&owned));
            let mut all = order.clone();
            all.sort_unstable();
            prop_assert_eq!(all, (0..entries.len()).collect::<Vec<_>>());
            let again: Vec<_> = order.iter().map(|&index| owned[index].clone()).collect();
            prop_assert_eq!(compose(&shares(&again)), (0..entries.len()).collect::<Vec<_>>());
        }
    }

    /// The entries use two tables alternately, and the two tables together exceed the cap. Without reordering, every
    /// entry would therefore be a batch by itself.
    #[test]
    fn entries_with_the_same_table_are_batched_together() {
        let tables = [constant(0, 470), constant(1, 80)];
        let entry = |table: usize| (Bytes::new(1) + tables[table].bytes, vec![tables[table]]);
        let owned: Vec<_> = [0, 1, 0, 1, 0, 1].map(entry).into();
        let order = compose(&shares(&owned));
        assert_eq!(order, [0, 2, 4, 1, 3, 5]);
        let composed: Vec<_> = order.iter().map(|&index| owned[index].clone()).collect();
        assert_eq!(batches(&shares(&composed), Bytes::new(500)), [0..3, 3..6]);
        assert_eq!(batches(&shares(&owned), Bytes::new(500)).len(), 6);
        assert_eq!(batches(&shares(&owned), Bytes::new(556)).len(), 1);
    }
}
