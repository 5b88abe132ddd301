//! Waiting for a state: a short poll under a long bound.

use std::time::{Duration, Instant};

/// For what takes a moment on a machine with time, and is only bounded here.
pub const LONG: Duration = Duration::from_secs(180);
/// Most states that tests wait for last; a look costs little.
const POLL: Duration = Duration::from_millis(2);

/// Whether it held before the time was up.
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

/// Fails the test where it does not hold within `LONG`.
#[track_caller]
pub fn until(what: &str, holds: impl FnMut() -> bool) {
    assert!(holds_within(LONG, holds), "waited {LONG:?} in vain for {what}");
}
