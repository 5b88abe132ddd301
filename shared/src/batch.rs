//! How the entries of a profile are cut into batches: by bytes, in order, an entry above the cap alone.
//!
//! One implementation for the worker that maps them and the core that predicts them.

use std::ops::Range;

use crate::units::Bytes;

/// Ranges of `sizes`, none empty, in order, each at most `cap` in sum unless it holds one entry.
pub fn batches(sizes: &[Bytes], cap: Bytes) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut sum = Bytes::ZERO;
    for (index, &size) in sizes.iter().enumerate() {
        match ranges.last_mut() {
            Some(range) if sum + size <= cap => {
                range.end = index + 1;
                sum += size;
            }
            _ => {
                ranges.push(index..index + 1);
                sum = size;
            }
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn batches_cover_all_in_order_within_the_cap(
            sizes in proptest::collection::vec(0u64..100, 0..60), cap in 0u64..200
        ) {
            let sizes: Vec<Bytes> = sizes.into_iter().map(Bytes::new).collect();
            let ranges = batches(&sizes, Bytes::new(cap));
            let mut next = 0;
            for range in &ranges {
                prop_assert_eq!(range.start, next);
                prop_assert!(range.start < range.end);
                let sum: Bytes = sizes[range.clone()].iter().copied().sum();
                prop_assert!(sum <= Bytes::new(cap) || range.len() == 1);
                next = range.end;
            }
            prop_assert_eq!(next, sizes.len());
            // Greedy: no batch could have taken the first entry of the next one.
            for pair in ranges.windows(2) {
                let sum: Bytes = sizes[pair[0].start..pair[0].end + 1].iter().copied().sum();
                prop_assert!(Bytes::new(cap) < sum);
            }
        }
    }
}
