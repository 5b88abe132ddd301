//! How long a worker waits for a runner; the supervisor's deadlines leave room for it.

use std::time::Duration;

/// A runner that waits for a CPU has so many times its time, and no more.
pub const MOST_STRETCH: u32 = 4;

/// Processes of each side that an entry is timed in: before an interval is believed, and at most.
pub const LEAST_RUNNERS: u32 = 3;
pub const MOST_RUNNERS: u32 = 12;

/// Factor on a wait in which the runner waits for a CPU all the time.
pub fn stretched(limit: Duration) -> Duration {
    limit.saturating_mul(MOST_STRETCH)
}

/// How long a load may take: a call's time, but not hours.
pub fn load_timeout(call_timeout: Duration) -> Duration {
    call_timeout.clamp(Duration::from_secs(1), Duration::from_secs(120))
}
