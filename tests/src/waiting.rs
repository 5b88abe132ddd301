//! Functions that wait until a condition holds, with a short polling interval and a long limit.

use std::time::{Duration, Instant};

/// The time limit for conditions that hold within moments unless the machine is busy.
pub const LONG: Duration = Duration::from_secs(180);
/// The polling interval. It can be short, because the checks are cheap.
const POLL: Duration = Duration::from_millis(2);

/// Polls `holds`, and returns whether it became true before the limit.
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

/// Waits until `holds` is true. Fails the test if that takes longer than `LONG`.
#[track_caller]
pub fn until(what: &str, holds: impl FnMut() -> bool) {
    assert!(holds_within(LONG, holds), "timed out after {LONG:?} waiting for: {what}");
}
