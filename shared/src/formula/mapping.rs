//! Computes how much of an input cannot be mapped in place and must be copied.

use super::ALIGNMENT;
use crate::placement::whole_grains;
use crate::units::Bytes;

/// Computes U for one range of a file: the size of the anonymous pages that are needed to map the range. `phase` is the
/// offset from the alignment at which the range must begin in memory.
///
/// The pages at the ends of the range that also contain other bytes are filled by copying, and the pages between them
/// are mapped. A range whose offset in the file does not match `phase` is copied as a whole.
pub fn unmapped(file_offset: u64, bytes: Bytes, phase: u64, page: Bytes) -> Bytes {
    let size = page.get().max(1);
    let in_page = file_offset % size;
    if in_page % ALIGNMENT != phase {
        return whole_grains(Bytes::new(phase) + bytes, page);
    }
    let end = file_offset.saturating_add(bytes.get());
    let touched = end.div_ceil(size) - file_offset / size;
    let whole_pages = (end / size).saturating_sub(file_offset.div_ceil(size));
    page.saturating_mul(touched - whole_pages)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: u64 = 4096;

    fn pages(file_offset: u64, bytes: u64, phase: u64) -> u64 {
        unmapped(file_offset, Bytes::new(bytes), phase, Bytes::new(PAGE)).get() / PAGE
    }

    #[test]
    fn partial_pages_and_misaligned_ranges_are_owed() {
        for (file_offset, bytes, phase, owed) in [
            (4096, 8192, 0, 0),
            (4096, 8191, 0, 1),
            (4160, 8192, 0, 2),
            (64, 10, 0, 1),
            (4032, 128, 0, 2),
            (8192, 0, 0, 0),
            (4097, 4096, 1, 2),
            // This range is misaligned. All of it is copied, starting at its phase.
            (4097, 8192, 0, 2),
            (4097, 8193, 0, 3),
            (4096, 8192, 63, 3),
        ] {
            assert_eq!(pages(file_offset, bytes, phase), owed, "{file_offset} {bytes} {phase}");
        }
    }

    proptest! {
        #[test]
        fn aligned_range_owes_at_most_two_pages_and_covers_every_byte(
            file_offset in 0..100_000_u64, bytes in 1..100_000_u64,
        ) {
            let owed = pages(file_offset, bytes, file_offset % ALIGNMENT);
            let end = file_offset + bytes;
            let inside = (end / PAGE).saturating_sub(file_offset.div_ceil(PAGE));
            prop_assert!(owed <= 2 && bytes <= (owed + inside) * PAGE);
        }
    }
}
