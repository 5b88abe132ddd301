//! Decides which entries of a verification share a runner.

use std::ops::Range;

use crate::numbers::EntryNumbers;
use crate::units::Bytes;

/// The largest sum of U + O (unmapped inputs and outputs) over the entries that share a runner.
pub const SHARED_RUNNER: Bytes = Bytes::mib(64);
/// The largest number of entries that share a runner. The number is limited because every entry takes descriptors and
/// mappings.
pub const MAX_SHARING: usize = 64;

/// Divides `entries` into groups of consecutive entries. No group is empty. A group has at most `MAX_SHARING` entries,
/// and the sum of their U + O is at most `cap`. An entry that exceeds the cap is a group by itself. If the cap is zero,
/// every entry is a group by itself.
pub fn runner_groups<'a>(
    entries: impl IntoIterator<Item = &'a EntryNumbers>,
    cap: Bytes,
) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut together = Bytes::ZERO;
    for (index, entry) in entries.into_iter().enumerate() {
        let owed = entry.unmapped + entry.outputs;
        match groups.last_mut() {
            Some(group) if cap != Bytes::ZERO && group.len() < MAX_SHARING && together + owed <= cap => {
                group.end = index + 1;
                together += owed;
            }
            _ => {
                groups.push(index..index + 1);
                together = owed;
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entries(owed: &[(u64, u64)]) -> Vec<EntryNumbers> {
        let entry = |&(unmapped, outputs): &(u64, u64)| EntryNumbers {
            unmapped: Bytes::new(unmapped),
            outputs: Bytes::new(outputs),
            ..EntryNumbers::default()
        };
        owed.iter().map(entry).collect()
    }

    proptest! {
        #[test]
        fn groups_cover_all_entries_in_order_within_the_cap(
            owed in prop::collection::vec((0u64..20, 0u64..20), 0..200), cap in 0u64..100,
        ) {
            let entries = entries(&owed);
            let groups = runner_groups(&entries, Bytes::new(cap));
            let sum = |range: Range<usize>| owed[range].iter().map(|(one, other)| one + other).sum::<u64>();
            let mut next = 0;
            for group in &groups {
                prop_assert_eq!(group.start, next);
                prop_assert!(!group.is_empty() && group.len() <= MAX_SHARING);
                prop_assert!(group.len() == 1 || (cap != 0 && sum(group.clone()) <= cap));
                next = group.end;
            }
            prop_assert_eq!(next, owed.len());
            // Every group is filled as far as possible, so the first entry of the next group would not have fitted into
            // it.
            for pair in groups.windows(2) {
                let taken = pair[0].start..pair[0].end + 1;
                prop_assert!(cap == 0 || MAX_SHARING < taken.len() || cap < sum(taken));
            }
        }
    }

    #[test]
    fn empty_entries_share_a_runner_only_if_the_cap_allows_sharing() {
        let nothing = entries(&vec![(0, 0); MAX_SHARING + 1]);
        assert_eq!(runner_groups(&nothing, Bytes::ZERO).len(), MAX_SHARING + 1);
        assert_eq!(runner_groups(&nothing, Bytes::new(1)), [0..MAX_SHARING, MAX_SHARING..MAX_SHARING + 1]);
    }
}
