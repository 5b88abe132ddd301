//! O and R: what outputs take as they are laid out for a verification, and for a profile.

use super::ALIGNMENT;
use crate::placement::whole_grains;
use crate::units::Bytes;

/// A profile's ring of outputs has a slot for each call of a block: within this, but two always …
pub const RING: Bytes = Bytes::mib(16);
/// … and never more: the most calls of one block.
pub const MOST_CALLS: u32 = 16_384;

fn slot(extent: Bytes) -> Bytes {
    whole_grains(extent, Bytes::new(ALIGNMENT))
}

/// O: each output in pages of its own, flush with a guard at either end in turns. No outputs still have a page.
pub fn guarded(extents: impl Iterator<Item = Bytes>, page: Bytes) -> Bytes {
    extents.map(|extent| whole_grains(slot(extent), page)).sum::<Bytes>().max(page)
}

/// Calls whose outputs the ring holds.
pub fn ring_slots(extents: impl Iterator<Item = Bytes>) -> u32 {
    let call: Bytes = extents.map(slot).sum();
    let fit = RING.get().checked_div(call.get()).unwrap_or(u64::MAX);
    u32::try_from(fit).unwrap_or(u32::MAX).clamp(2, MOST_CALLS)
}

/// R: the slots of each output side by side, in pages of its own. No outputs still have a page.
pub fn ring(extents: impl Iterator<Item = Bytes> + Clone, page: Bytes) -> Bytes {
    let slots = u64::from(ring_slots(extents.clone()));
    extents.map(|extent| whole_grains(slot(extent).saturating_mul(slots), page)).sum::<Bytes>().max(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Bytes = Bytes::kib(4);

    #[test]
    fn a_ring_holds_a_blocks_calls_within_its_cap_and_two_always() {
        for (extents, slots, expected) in [
            (&[][..], MOST_CALLS, PAGE),
            (&[0], MOST_CALLS, PAGE),
            (&[1], MOST_CALLS, Bytes::mib(1)),
            (&[1024], MOST_CALLS, Bytes::mib(16)),
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
    fn every_output_has_pages_of_its_own() {
        for (extents, expected) in
            [(&[][..], 1), (&[0], 1), (&[1], 1), (&[4096, 1], 2), (&[4097, 8192, 1], 5)]
        {
            let extents = extents.iter().copied().map(Bytes::new);
            assert_eq!(guarded(extents, PAGE), PAGE.saturating_mul(expected));
        }
    }
}
