//! How long a worker waits for a runner, and how many runners time an entry. The supervisor's deadlines depend on both.

use std::time::Duration;

/// The largest factor by which a timeout is extended while a runner waits for a CPU.
pub const MAX_STRETCH: u32 = 4;

/// The number of processes of each side (candidate or baseline) that must have timed an entry before its confidence
/// interval is used.
pub const MIN_RUNNERS: u32 = 3;
/// The largest number of processes of each side that time an entry.
pub const MAX_RUNNERS: u32 = 12;

/// The longest wait for a runner. The wait becomes this long if the runner itself waits for a CPU all the time.
pub fn stretched(limit: Duration) -> Duration {
    limit.saturating_mul(MAX_STRETCH)
}

/// The time that loading a candidate may take: as long as a call, but at least a second and at most two minutes.
pub fn load_timeout(call_timeout: Duration) -> Duration {
    call_timeout.clamp(Duration::from_secs(1), Duration::from_secs(120))
}
