//! Sets one hand-off time for all sides of a profile, and one way of waiting.

use std::time::Duration;

use super::Side;
use crate::session::SessionError;

/// Measures the hand-off of each side if it is not known, and takes the shortest. The work is the same for all
/// sides, so a side gains nothing by making its empty blocks slow.
pub(super) fn settle(sides: &mut [Side<'_>]) -> Result<(), SessionError> {
    let mut least: Option<Duration> = None;
    for side in &mut *sides {
        let clock = side.session.clock();
        clock.settle_handoff()?;
        let handoff = clock.handoff();
        least = Some(least.map_or(handoff, |least| least.min(handoff)));
    }
    if let Some(least) = least {
        sides.iter_mut().for_each(|side| side.session.clock().limit_handoff(least));
    }
    Ok(())
}

/// Called after warm-up; `threads` and `cpus_busy` are the most that any side showed. This process spins while it
/// waits for either side or for neither, because spinning takes time from a runner that needs all CPUs. Then settles
/// the hand-off for that way of waiting.
pub(super) fn settle_waiting(
    sides: &mut [Side<'_>],
    threads: u32,
    cpus_busy: f64,
) -> Result<(), SessionError> {
    let spin = sides.iter_mut().all(|side| side.session.clock().leaves_room(threads, cpus_busy));
    sides.iter_mut().for_each(|side| side.session.clock().wait_spinning(spin));
    settle(sides)
}
