//! V: inputs that are new for every timed call, as many variants of them as a block has calls.

use super::ALIGNMENT;
use crate::placement::whole_grains;
use crate::units::Bytes;

/// All variants of an entry's inputs lie within this. What is larger by itself does not vary.
pub const VARIED: Bytes = Bytes::mib(8);
/// What new values are drawn from: captured ones, at most this much of them for an entry.
pub const VALUES: Bytes = Bytes::mib(1);

/// How many variants of inputs that take `one` call's bytes are held for blocks of at most `calls` calls; 0 if not even one fits.
pub fn variants(one: Bytes, calls: u32) -> u32 {
    let fit = VARIED.get().checked_div(one.get()).unwrap_or(0);
    u32::try_from(fit).unwrap_or(u32::MAX).min(calls)
}

/// V: `inputs` are the extents of those that may vary. Which of them do is decided by trial, so it is what the hungriest choice takes.
pub fn varied(inputs: impl Iterator<Item = Bytes>, calls: u32, page: Bytes) -> Bytes {
    let place = |extent: Bytes| whole_grains(extent, Bytes::new(ALIGNMENT)) + Bytes::new(ALIGNMENT);
    let may: Vec<Bytes> = inputs.map(place).filter(|&bytes| bytes <= VARIED).collect();
    let all: Bytes = may.iter().copied().sum();
    if may.is_empty() {
        return Bytes::ZERO;
    }
    let pages = page.saturating_mul(may.len() as u64);
    if VARIED < all { VARIED + pages } else { all.saturating_mul(u64::from(variants(all, calls))) + pages }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_fill_their_room_and_no_more() {
        for (one, calls, expected) in [
            (Bytes::mib(8), 100, 1),
            (Bytes::mib(3), 100, 2),
            (Bytes::kib(1), 100, 100),
            (Bytes::mib(9), 100, 0),
            (Bytes::ZERO, 100, 0),
        ] {
            assert_eq!(variants(one, calls), expected, "{one}");
        }
    }

    #[test]
    fn inputs_that_are_too_large_by_themselves_cost_nothing() {
        let page = Bytes::kib(4);
        let of = |inputs: &[Bytes]| varied(inputs.iter().copied(), 4, page);
        assert_eq!(of(&[]), Bytes::ZERO);
        assert_eq!(of(&[Bytes::mib(9)]), Bytes::ZERO);
        assert_eq!(of(&[Bytes::new(128), Bytes::gib(1)]), Bytes::new(4 * 192) + page);
        assert_eq!(of(&[Bytes::mib(5), Bytes::mib(6)]), VARIED + page + page);
    }
}
