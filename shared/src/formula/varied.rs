//! The term V: the memory for variants of inputs, so that every timed call of a block can have new values.

use super::ALIGNMENT;
use crate::placement::whole_grains;
use crate::settings::CacheState;
use crate::units::Bytes;

/// The largest total size of all variants of an entry's inputs, unless `largest_varied` is larger.
pub const VARIED: Bytes = with_room_for_phases(8);
/// The largest total size of those inputs of one call on a card that may vary. It is larger than `VARIED`, because
/// kernels for cards are usually tried with larger inputs, and cards have enough memory. If the inputs of one call
/// exceed `VARIED`, there is only one variant, so each block is a single call. The host takes about a tenth of a second
/// to write the variant.
const VARIED_ON_CARD: Bytes = with_room_for_phases(64);

/// The size of `mib` MiB of inputs, with space for the phases of 64 inputs (see `variant`).
const fn with_room_for_phases(mib: u64) -> Bytes {
    Bytes::new((mib << 20) + 64 * ALIGNMENT)
}

/// The largest total size of those captured values of an entry from which new values are drawn.
pub const VALUES: Bytes = Bytes::mib(1);

/// The memory for the captured values from which an entry's new values are drawn. It is at most as large as the memory
/// for the entry's variants.
pub fn values(varied: Bytes) -> Bytes {
    varied.min(VALUES)
}

/// The largest total size of those inputs of one call that may vary. A single input that is larger than this does not
/// vary. If the inputs together exceed `VARIED`, a block is a single call, which is too short to be timed from warm
/// caches.
pub fn largest_varied(on_card: bool, state: CacheState) -> Bytes {
    if on_card && state != CacheState::Warm { VARIED_ON_CARD } else { VARIED }
}

/// The number of variants for blocks of at most `calls` calls, if the inputs of one call take `one` bytes; 0 if not
/// even one variant fits, or if `one` is 0.
pub fn variants(one: Bytes, calls: u32, largest: Bytes) -> u32 {
    let fit = VARIED.get().checked_div(one.get()).unwrap_or(0);
    let fit = if fit == 0 && one != Bytes::ZERO && one <= largest { 1 } else { fit };
    u32::try_from(fit).unwrap_or(u32::MAX).min(calls)
}

/// The memory that one variant of an input of this size takes. The added `ALIGNMENT` is space for its phase: its first
/// byte has the same position as in the recorded storage, modulo `ALIGNMENT`.
pub fn variant(extent: Bytes) -> Bytes {
    whole_grains(extent, Bytes::new(ALIGNMENT)) + Bytes::new(ALIGNMENT)
}

/// V for inputs of these sizes, all of which may vary. A later trial decides which of them do vary, so this is an upper
/// bound.
pub fn varied(inputs: impl Iterator<Item = Bytes>, calls: u32, page: Bytes, largest: Bytes) -> Bytes {
    let slots: Vec<Bytes> = inputs.map(variant).filter(|&bytes| bytes <= largest).collect();
    let all: Bytes = slots.iter().copied().sum();
    if slots.is_empty() {
        return Bytes::ZERO;
    }
    let pages = page.saturating_mul(slots.len() as u64);
    // If only some of the inputs vary, more variants fit into the memory.
    let most = if VARIED < all {
        all.min(largest).max(VARIED)
    } else {
        all.saturating_mul(u64::from(calls)).min(VARIED)
    };
    most + pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_fill_the_available_memory() {
        for (one, calls, expected) in [
            (Bytes::mib(8), 100, 1),
            (Bytes::mib(3), 100, 2),
            (Bytes::kib(1), 100, 100),
            (Bytes::mib(9), 100, 0),
            (Bytes::ZERO, 100, 0),
        ] {
            assert_eq!(variants(one, calls, VARIED), expected, "{one}");
        }
        for (one, on_the_cpu, on_a_card) in
            [(4, 2, 2), (5, 1, 1), (8, 1, 1), (9, 0, 1), (64, 0, 1), (65, 0, 0)]
        {
            let of =
                |on_card| variants(variant(Bytes::mib(one)), 100, largest_varied(on_card, CacheState::Auto));
            assert_eq!((of(false), of(true)), (on_the_cpu, on_a_card), "{one} MiB");
        }
    }

    #[test]
    fn memory_for_variants_leaves_out_inputs_that_are_too_large() {
        let page = Bytes::kib(4);
        let of = |inputs: &[Bytes]| varied(inputs.iter().copied(), 4, page, VARIED);
        let on_card = |inputs: &[Bytes]| {
            varied(inputs.iter().copied(), 4, page, largest_varied(true, CacheState::Auto))
        };
        assert_eq!(of(&[]), Bytes::ZERO);
        assert_eq!(of(&[Bytes::mib(9)]), Bytes::ZERO);
        assert_eq!(of(&[Bytes::new(128), Bytes::gib(1)]), Bytes::new(4 * 192) + page);
        assert_eq!(of(&[Bytes::mib(5), Bytes::mib(6)]), VARIED + page + page);
        assert_eq!(on_card(&[Bytes::mib(9)]), variant(Bytes::mib(9)) + page);
        assert_eq!(on_card(&[Bytes::mib(64)]), variant(Bytes::mib(64)) + page);
        assert_eq!(on_card(&[Bytes::mib(65)]), Bytes::ZERO);
        assert_eq!(
            on_card(&[Bytes::mib(40), Bytes::mib(41)]),
            largest_varied(true, CacheState::Auto) + page + page
        );
        assert_eq!(
            on_card(&[Bytes::mib(1), Bytes::mib(80)]),
            variant(Bytes::mib(1)).saturating_mul(4) + page
        );
    }
}
