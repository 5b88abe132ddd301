//! Determines how many calls are made in a block, so that the time to start the block is negligible. Single disturbed
//! measurements do not change the result. This file does no I/O and reads no clock.

use std::time::Duration;

/// The wanted length of a block. It is long enough for waking a runner to be a small part of it, and short enough for
/// few blocks to be preempted on a busy machine.
const WANTED_BLOCK: Duration = Duration::from_micros(500);
/// The length below which a block is discarded if it could have had more calls. Such a block got too few calls because
/// earlier calls were slower.
const SHORTEST_BLOCK: Duration = Duration::from_micros(250);

/// Returns an upper estimate of the time of a call: the average over a block, including everything that disturbed the
/// block. The shortest estimate of all blocks so far determines the number of calls. If a disturbed block determined
/// it, calls would seem slow, and later blocks would be so short that they consist mostly of hand-off.
pub(super) fn longest_call(elapsed: Duration, handoff: Duration, calls: u32) -> Duration {
    let net = elapsed.saturating_sub(handoff);
    // If the hand-off is at least half of the block, it is not subtracted, because its error would dominate the result.
    let time = if handoff < net { net } else { elapsed };
    (time / calls).max(Duration::from_nanos(1))
}

/// Returns true if a block of `calls` calls confirmed this number of calls. This is the case if `next`, the number that
/// follows from the block's time, differs from `calls` by at most a factor of two.
pub(super) fn agree(calls: u32, next: u32) -> bool {
    calls.max(next) <= calls.min(next).saturating_mul(2)
}

pub(super) fn calls_for_a_block(per_call: Duration, slots: u32) -> u32 {
    let wanted = WANTED_BLOCK.as_nanos().div_ceil(per_call.as_nanos().max(1));
    u32::try_from(wanted).unwrap_or(u32::MAX).clamp(1, slots)
}

/// Returns true if a block is too short for a reliable time and could have more calls.
pub(super) fn too_short(net: Duration, calls: u32, most: u32) -> bool {
    calls < most && net < SHORTEST_BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disturbed_block_does_not_set_the_number_of_calls() {
        // With calls of 4 us and a hand-off of 5 us, a block has 125 calls, even if single blocks show other times.
        let (slots, handoff) = (512, Duration::from_micros(5));
        let blocks = [(20_000, 1), (9, 1), (105, 25), (30_000, 50), (205, 50)];
        let estimate = blocks
            .into_iter()
            .map(|(elapsed, calls)| longest_call(Duration::from_micros(elapsed), handoff, calls))
            .min()
            .expect("blocks");
        assert_eq!(estimate, Duration::from_micros(4));
        assert_eq!(calls_for_a_block(estimate, slots), 125);
        assert_eq!(longest_call(Duration::ZERO, handoff, 1), Duration::from_nanos(1));
        assert_eq!(
            longest_call(2 * handoff, handoff, 1),
            2 * handoff,
            "a hand-off of half the block is not subtracted"
        );
        assert!(!agree(1, 500) && !agree(500, 50));
        assert!(agree(500, 400) && agree(1, 1) && agree(slots, slots));
    }

    #[test]
    fn short_block_is_discarded_while_more_calls_are_possible() {
        let us = Duration::from_micros;
        assert!(too_short(us(249), 1, 2) && too_short(Duration::ZERO, 511, 512));
        assert!(!too_short(us(250), 1, 2) && !too_short(us(1), 512, 512));
    }
}
