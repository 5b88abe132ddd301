//! How much may be subtracted from blocks: both sides have the same work to do for a hand-off.

use std::time::Duration;

use super::Side;
use crate::session::SessionError;

/// How much longer a hand-off of one side may take than the other's: their ways of waiting can differ.
const APART: Duration = Duration::from_micros(50);

/// Measures the sides' hand-offs where they are not known, and takes them for what they are: the same work of one machine.
pub(super) fn settle(sides: &mut [Side<'_>]) -> Result<(), SessionError> {
    for side in &mut *sides {
        side.session.clock().settle_handoff()?;
    }
    let measured: Vec<Duration> = sides.iter_mut().map(|side| side.session.clock().handoff()).collect();
    let Some(most) = most(&measured) else { return Ok(()) };
    for side in sides {
        side.session.clock().limit_handoff(most);
    }
    Ok(())
}

fn most(measured: &[Duration]) -> Option<Duration> {
    measured.iter().min().map(|&least| least + APART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_side_has_much_more_subtracted_than_the_other() {
        for (measured, expected) in [
            (&[2, 3][..], Some(52)),
            // One that delays its empty blocks gains little.
            (&[1500, 4], Some(54)),
            (&[90], Some(140)),
            (&[], None),
        ] {
            let measured: Vec<Duration> = measured.iter().map(|&us| Duration::from_micros(us)).collect();
            assert_eq!(most(&measured), expected.map(Duration::from_micros), "{measured:?}");
        }
    }
}
