//! Sets the hand-off time and the way of waiting, which are the same for all sides of a profile.

use std::time::Duration;

use super::Side;
use crate::session::SessionError;

/// Measures the hand-off of each side if it is not known. The shortest counts for all, because waking is the same work
/// for all: if there are two sides, neither gains anything by slowing down its own empty blocks.
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

/// Measures the hand-off of all sides again. Used if a whole block took no longer than the known hand-off: the machine
/// was busier when that was measured.
pub(super) fn measure_again(sides: &mut [Side<'_>]) -> Result<(), SessionError> {
    sides.iter_mut().for_each(|side| side.session.clock().forget_handoff());
    settle(sides)
}

/// Decides, after the warm-up, whether this process spins while it waits, for both sides or for neither: spinning would
/// take time from a runner that needs all CPUs. Then settles the hand-off for that way of waiting. `threads` and
/// `cpus_busy` are the largest values of any side.
pub(super) fn settle_waiting(
    sides: &mut [Side<'_>],
    threads: u32,
    cpus_busy: f64,
) -> Result<(), SessionError> {
    let spin = sides.iter_mut().all(|side| side.session.clock().leaves_room(threads, cpus_busy));
    sides.iter_mut().for_each(|side| side.session.clock().wait_spinning(spin));
    settle(sides)
}
