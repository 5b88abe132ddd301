//! The terms O and R of the memory formulas: the memory that outputs take in a verification (O) and in a profile (R).

use super::{ALIGNMENT, DEVICE_ALIGNMENT};
use crate::placement::whole_grains;
use crate::units::Bytes;

/// The target size of a profile's ring of outputs. The ring has one slot for each call of a block, and at least two
/// slots even if these are larger.
pub const RING: Bytes = Bytes::mib(16);
/// The largest number of calls in one block, and therefore of slots in a ring.
pub const MAX_CALLS: u32 = 16_384;

fn slot(extent: Bytes) -> Bytes {
    whole_grains(extent, Bytes::new(ALIGNMENT))
}

/// O: the size of the outputs of a verification, where each output has its own pages. From call to call, an output
/// alternately starts right after a guard page or ends right before one. O is at least one page.
pub fn guarded(extents: impl Iterator<Item = Bytes>, page: Bytes) -> Bytes {
    extents.map(|extent| whole_grains(slot(extent), page)).sum::<Bytes>().max(page)
}

/// The number of calls whose outputs fit into the ring, but at least two and at most `MAX_CALLS`.
pub fn ring_slots(extents: impl Iterator<Item = Bytes>) -> u32 {
    let call: Bytes = extents.map(slot).sum();
    let fit = RING.get().checked_div(call.get()).unwrap_or(u64::MAX);
    u32::try_from(fit).unwrap_or(u32::MAX).clamp(2, MAX_CALLS)
}

/// The largest number of calls in one block on a device. A block lasts about half a millisecond and a launch takes at
/// least a microsecond, so more calls are not needed.
const DEVICE_CALLS: u32 = 512;

/// The number of calls whose outputs fit into the ring on a device, but at least two and at most `DEVICE_CALLS`. On a
/// device, each output in the ring is aligned like an allocation.
pub fn device_slots(extents: impl Iterator<Item = Bytes>) -> u32 {
    let call: Bytes = extents.map(|extent| whole_grains(extent, DEVICE_ALIGNMENT)).sum();
    let fit = RING.get().checked_div(call.get()).unwrap_or(u64::MAX);
    u32::try_from(fit).unwrap_or(u32::MAX).clamp(2, DEVICE_CALLS)
}

/// An upper bound for the size of an entry's ring on a device. `outputs` is the entry's O.
pub fn device_ring(outputs: Bytes) -> Bytes {
    RING.max(outputs.saturating_mul(2))
}

/// R: the size of the ring of outputs, where all slots of an output are adjacent, in pages that no other output uses. R
/// is at least one page.
pub fn ring(extents: impl Iterator<Item = Bytes> + Clone, page: Bytes) -> Bytes {
    let slots = u64::from(ring_slots(extents.clone()));
    extents.map(|extent| whole_grains(slot(extent).saturating_mul(slots), page)).sum::<Bytes>().max(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Bytes = Bytes::kib(4);

    #[test]
    fn ring_has_as_many_slots_as_fit_but_at_least_two_and_at_most_max_calls() {
        for (extents, slots, expected) in [
            (&[][..], MAX_CALLS, PAGE),
            (&[0], MAX_CALLS, PAGE),
            (&[1], MAX_CALLS, Bytes::mib(1)),
            (&[1024], MAX_CALLS, Bytes::mib(16)),
            (&[8192], 2048, Bytes::mib(16)),
            (&[8 << 20], 2, Bytes::mib(16)),
            (&[33 << 20], 2, Bytes::mib(66)),
            (&[4096, 4096, 10], 2032, Bytes::mib(16)),
            (&[u64::MAX], 2, Bytes::MAX),
        ] {
            let extents = || extents.iter().copied().map(Bytes::new);
            assert_eq!((ring_slots(extents()), ring(extents(), PAGE)), (slots, expected), "{expected}");
        }
    }

    #[test]
    fn ring_on_a_device_is_within_its_prediction() {
        for extents in [&[0][..], &[1], &[300, 4], &[8192], &[8 << 20], &[33 << 20, 5]] {
            let extents = || extents.iter().copied().map(Bytes::new);
            let slots = device_slots(extents());
            let call: Bytes = extents().map(|extent| whole_grains(extent, DEVICE_ALIGNMENT)).sum();
            assert!((2..=DEVICE_CALLS).contains(&slots));
            assert!(
                call.saturating_mul(u64::from(slots)) <= device_ring(guarded(extents(), PAGE)),
                "{slots}"
            );
        }
    }

    #[test]
    fn outputs_do_not_share_pages() {
        for (extents, expected) in
            [(&[][..], 1), (&[0], 1), (&[1], 1), (&[4096, 1], 2), (&[4097, 8192, 1], 5)]
        {
            let extents = extents.iter().copied().map(Bytes::new);
            assert_eq!(guarded(extents, PAGE), PAGE.saturating_mul(expected));
        }
    }
}
