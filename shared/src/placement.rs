//! Computes the peak memory of loading storages onto a device, and the order in which to upload them. Loads follow
//! `upload_order`, and tests compare their actual peaks with the formula.
//!
//! Peak = W + max(A, w) + k·s, with these terms:
//!
//! - W is the size of all distinct storages that are used, each rounded up to a multiple of the device's allocation
//!   unit (grain). A storage that several tensors share is counted once, and a storage that nothing uses is not
//!   counted.
//! - A is the size of all allocations after the last upload (outputs, activations, workspace), each rounded up in the
//!   same way.
//! - w is the additional host memory that sources take at the worst moment. A source is what a storage's bytes are read
//!   from. While a storage is uploaded, its source has `held` bytes in memory, and later storages are not allocated
//!   yet. w is therefore the largest value of `held` minus the size of the later storages, and at least 0. A source
//!   that is read directly into staging slots holds nothing. Storages are uploaded in falling order of `held`, because
//!   no other order has a lower peak.
//! - s is the size of a staging slot, and k is the number of slots: one for each chunk of s bytes in the load, up to
//!   the allowed maximum. Slots are allocated before the first upload and kept to the end, so k·s is added to all other
//!   terms.

use std::cmp::Reverse;

use crate::units::Bytes;

/// A storage that is to be loaded onto a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placing {
    pub bytes: Bytes,
    /// The host memory that the storage's source takes during the upload.
    pub held: Bytes,
}

/// The properties of a device and of its staging memory that determine the peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The device's allocation unit: every allocation takes a multiple of it.
    pub grain: Bytes,
    /// The number of staging slots, and the size of each.
    pub slots: u64,
    pub slot: Bytes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// W: the size of all distinct storages.
    pub weights: Bytes,
    /// A: the size of all later allocations.
    pub after: Bytes,
    /// w: the additional host memory of the sources.
    pub source: Bytes,
    /// k·s: the size of all staging slots.
    pub staging: Bytes,
}

impl Peak {
    /// Computes the terms of the peak for loading these distinct storages, none of which is resident yet, and for the
    /// allocations that follow.
    pub fn of(storages: &[Placing], after: &[Bytes], terms: Terms) -> Self {
        let placed = |bytes| whole_grains(bytes, terms.grain);
        let weights: Bytes = storages.iter().map(|it| placed(it.bytes)).sum();
        let mut rest = weights;
        let mut source = Bytes::ZERO;
        for index in upload_order(storages.iter().map(|it| it.held)) {
            let it = storages[index];
            rest = rest - placed(it.bytes);
            source = source.max(it.held - rest);
        }
        let chunks = storages
            .iter()
            .map(|it| it.bytes.get().div_ceil(terms.slot.get().max(1)))
            .fold(0, u64::saturating_add);
        Self {
            weights,
            after: after.iter().map(|&bytes| placed(bytes)).sum(),
            source,
            staging: terms.slot.saturating_mul(chunks.min(terms.slots)),
        }
    }

    pub fn bytes(&self) -> Bytes {
        self.weights + self.after.max(self.source) + self.staging
    }
}

/// The order in which to upload storages whose sources hold these amounts of memory. Equal amounts keep their order.
pub fn upload_order(held: impl Iterator<Item = Bytes>) -> Vec<usize> {
    let mut order: Vec<(Reverse<Bytes>, usize)> =
        held.enumerate().map(|(index, held)| (Reverse(held), index)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, index)| index).collect()
}

pub fn whole_grains(bytes: Bytes, grain: Bytes) -> Bytes {
    let grain = grain.get().max(1);
    Bytes::new(bytes.get().div_ceil(grain).saturating_mul(grain))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TERMS: Terms = Terms { grain: Bytes::new(4), slots: 2, slot: Bytes::new(10) };

    fn peak_of(storages: &[(u64, u64)], after: &[u64]) -> Peak {
        let storages: Vec<Placing> = storages
            .iter()
            .map(|&(bytes, held)| Placing { bytes: Bytes::new(bytes), held: Bytes::new(held) })
            .collect();
        let after: Vec<Bytes> = after.iter().copied().map(Bytes::new).collect();
        Peak::of(&storages, &after, TERMS)
    }

    #[test]
    fn terms_match_their_definitions() {
        for (storages, after, terms, peak) in [
            (&[][..], &[][..], [0, 0, 0, 0], 0),
            (&[], &[9], [0, 12, 0, 0], 12),
            // The storages of this row and the next are streamed: their sources hold nothing, and there are one or two
            // slots.
            (&[(10, 0)], &[1], [12, 4, 0, 10], 26),
            (&[(11, 0)], &[1], [12, 4, 0, 20], 36),
            (&[(0, 0), (5, 0), (5, 0), (5, 0)], &[], [24, 0, 0, 20], 44),
            // The last source adds all the memory that it holds. An earlier source adds only what exceeds the size of
            // the later storages.
            (&[(8, 8)], &[4], [8, 4, 8, 10], 26),
            (&[(8, 8)], &[40], [8, 40, 8, 10], 58),
            (&[(8, 0), (8, 8)], &[], [16, 0, 0, 20], 36),
            (&[(4, 4), (8, 8)], &[], [12, 0, 4, 20], 36),
            (&[(4, 0), (100, 100)], &[], [104, 0, 96, 20], 220),
        ] {
            let found = peak_of(storages, after);
            let found_terms = [found.weights, found.after, found.source, found.staging].map(Bytes::get);
            assert_eq!((found_terms, found.bytes().get()), (terms, peak), "{storages:?} {after:?}");
        }
    }

    /// Computes the peak of loading storages in this order by simulating the load step by step.
    fn walk(storages: &[(u64, u64)], order: &[usize]) -> u64 {
        let mut placed = 0;
        let mut peak = 0;
        for &index in order {
            placed += storages[index].0;
            peak = peak.max(placed + storages[index].1);
        }
        peak.max(placed)
    }

    fn permutations(rest: &mut Vec<usize>, from: usize, each: &mut impl FnMut(&[usize])) {
        if from == rest.len() {
            return each(rest);
        }
        for at in from..rest.len() {
            rest.swap(from, at);
            permutations(rest, from + 1, each);
            rest.swap(from, at);
        }
    }

    proptest! {
        #[test]
        fn no_order_has_a_lower_peak(
            storages in prop::collection::vec((0u64..30, 0u64..30), 0..6)
        ) {
            let order = upload_order(storages.iter().map(|it| Bytes::new(it.1)));
            let chosen = walk(&storages, &order);
            let placings: Vec<Placing> = storages
                .iter()
                .map(|&(bytes, held)| Placing { bytes: Bytes::new(bytes), held: Bytes::new(held) })
                .collect();
            let terms = Terms { grain: Bytes::new(1), slots: 0, slot: Bytes::new(1) };
            prop_assert_eq!(Peak::of(&placings, &[], terms).bytes().get(), chosen);
            let mut lowest_peak = u64::MAX;
            let mut indices: Vec<usize> = (0..storages.len()).collect();
            permutations(&mut indices, 0, &mut |order| lowest_peak = lowest_peak.min(walk(&storages, order)));
            prop_assert_eq!(chosen, lowest_peak);
        }
    }
}
