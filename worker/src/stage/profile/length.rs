//! How many calls make a block: enough that starting one does not matter, found from blocks that may have been
//! disturbed. Pure.

use std::time::Duration;

/// A block is at least this long, so that waking a runner (some ten microseconds, known to a few) is little of it, and no longer, so
/// that few blocks are preempted on a busy machine.
const LEAST_BLOCK: Duration = Duration::from_micros(500);
/// One that turned out shorter, with more calls to be had, is thrown away: the calls before it had been slow.
const SHORTEST_BLOCK: Duration = Duration::from_micros(250);

/// The most that a call of this block can have taken. The least of these over the warm-up is what the number of calls
/// is found by: a block during which the machine did something else makes a call look slow, and blocks would then be
/// so short that the hand-off is all there is to measure.
pub(super) fn longest_call(elapsed: Duration, handoff: Duration, calls: u32) -> Duration {
    let net = elapsed.saturating_sub(handoff);
    // Where the hand-off is most of the block, its error would be most of the answer.
    let time = if handoff < net { net } else { elapsed };
    (time / calls).max(Duration::from_nanos(1))
}

/// Whether a block of `calls` confirmed its own length.
pub(super) fn agree(calls: u32, next: u32) -> bool {
    calls.max(next) <= calls.min(next).saturating_mul(2)
}

pub(super) fn calls_for_a_block(per_call: Duration, slots: u32) -> u32 {
    let wanted = LEAST_BLOCK.as_nanos().div_ceil(per_call.as_nanos().max(1));
    u32::try_from(wanted).unwrap_or(u32::MAX).clamp(1, slots)
}

/// Whether a block is too short to be believed, and could have had more calls.
pub(super) fn too_short(net: Duration, calls: u32, most: u32) -> bool {
    calls < most && net < SHORTEST_BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_was_disturbed_does_not_set_the_number_of_calls() {
        // 4 us a call and 5 us of hand-off: 125 calls make a block, whatever single blocks say.
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
        assert!(!agree(1, 500) && !agree(500, 50));
        assert!(agree(500, 400) && agree(1, 1) && agree(slots, slots));
    }

    #[test]
    fn a_short_block_is_thrown_away_while_more_calls_can_be_had() {
        let us = Duration::from_micros;
        assert!(too_short(us(249), 1, 2) && too_short(Duration::ZERO, 511, 512));
        assert!(!too_short(us(250), 1, 2) && !too_short(us(1), 512, 512));
    }
}
