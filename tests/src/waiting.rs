//! Waits for a state, with a short poll interval and a long limit.

use std::time::{Duration, Instant};

/// For something that takes a moment unless the machine is busy.
pub const LONG: Duration = Duration::from_secs(180);
/// Most awaited states persist, and checking costs little.
const POLL: Duration = Duration::from_millis(2);

/// Whether it became true in time.
#[must_use]
pub fn holds_within(timeout: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + timeout;
    while !holds() {
        if deadline <= Instant::now() {
            return false;
        }
        std::thread::sleep(POLL);
    }
    true
}

/// Fails the test if it does not become true within `LONG`.
#[track_caller]
pub fn until(what: &str, holds: impl FnMut() -> bool) {
    assert!(holds_within(LONG, holds), "waited {LONG:?} in vain for {what}");
}
