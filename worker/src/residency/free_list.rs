//! A first-fit allocator for the addresses of an arena, which merges free ranges that are neighbours.
//!
//! An arena may have more addresses than bytes of capacity, so that there is a large enough range for every buffer,
//! however fragmented the arena is. The device itself limits the number of allocated bytes.

use std::collections::BTreeMap;

/// The free ranges, as a map from the start of each range to its length.
#[derive(Debug)]
pub(super) struct FreeList {
    free: BTreeMap<u64, u64>,
}

impl FreeList {
    pub(super) fn new(addresses: u64) -> Self {
        Self { free: std::iter::once((0, addresses)).filter(|&(_, length)| 0 < length).collect() }
    }

    /// Takes the beginning of the first range that is long enough, and returns its start. Returns `None` if no range is
    /// long enough, or if `length` is 0.
    pub(super) fn allocate(&mut self, length: u64) -> Option<u64> {
        if length == 0 {
            return None;
        }
        let (&at, &found) = self.free.iter().find(|&(_, &found)| length <= found)?;
        self.free.remove(&at);
        if length < found {
            self.free.insert(at + length, found - length);
        }
        Some(at)
    }

    /// Gives a range back, and merges it with its free neighbours.
    pub(super) fn free(&mut self, at: u64, length: u64) {
        let (mut at, mut length) = (at, length);
        if let Some((&before, &its_length)) = self.free.range(..at).next_back()
            && before + its_length == at
        {
            self.free.remove(&before);
            at = before;
            length += its_length;
        }
        if let Some(after) = self.free.remove(&(at + length)) {
            length += after;
        }
        self.free.insert(at, length);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Ranges never overlap or leave the arena, and merge into one when all are given back.
        #[test]
        fn ranges_are_disjoint_and_merge_again(
            steps in prop::collection::vec((1u64..40, any::<prop::sample::Index>(), any::<bool>()), 0..200)
        ) {
            let mut free_list = FreeList::new(500);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (length, which, give) in steps {
                if give && !taken.is_empty() {
                    let (at, length) = taken.swap_remove(which.index(taken.len()));
                    free_list.free(at, length);
                } else if let Some(at) = free_list.allocate(length) {
                    prop_assert!(at + length <= 500);
                    prop_assert!(taken.iter().all(|&(other, long)| at + length <= other || other + long <= at));
                    taken.push((at, length));
                }
            }
            for (at, length) in taken.drain(..) {
                free_list.free(at, length);
            }
            prop_assert_eq!(free_list.allocate(500), Some(0));
        }
    }

    #[test]
    fn empty_or_too_long_range_is_not_allocated() {
        assert_eq!(FreeList::new(0).allocate(1), None);
        assert_eq!(FreeList::new(10).allocate(0), None);
        assert_eq!(FreeList::new(10).allocate(11), None);
    }
}
