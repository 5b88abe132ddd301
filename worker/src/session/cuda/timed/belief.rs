//! Compares a device's times with those of the host, which measures each block from outside. Reads no clock itself.

use std::time::Duration;

/// The device may show more time than the host by one part in `DRIFT_PARTS`, because two clocks drift, and by `STEP`,
/// because a device's clock advances in steps.
const DRIFT_PARTS: u32 = 50;
const STEP: Duration = Duration::from_micros(20);

/// Returns true if the device shows more time than the host, beyond both tolerances.
pub(super) fn is_too_long(device: Duration, host: Duration) -> bool {
    host + host / DRIFT_PARTS + STEP < device
}

/// Returns the host's time for a block without the time of its flushes. `flush` is the usual time of one flush. A
/// quarter of that is added, because a flush after a call also writes back what the call has left in the cache.
pub(super) fn host_share(host: Duration, flushes: u32, flush: Duration) -> Duration {
    host.saturating_sub(flush.saturating_mul(flushes).saturating_mul(5) / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_cannot_show_more_time_than_has_passed() {
        let us = Duration::from_micros;
        assert!(!is_too_long(us(500), us(500)) && !is_too_long(us(10), us(5)));
        assert!(!is_too_long(us(10_200), us(10_000)), "clocks drift");
        assert!(is_too_long(us(600), us(500)) && is_too_long(us(30), us(5)));
    }

    #[test]
    fn flushes_are_not_part_of_the_calls() {
        let us = Duration::from_micros;
        assert_eq!(host_share(us(1000), 4, us(100)), us(500));
        assert_eq!(host_share(us(1000), 0, us(100)), us(1000));
        assert_eq!(host_share(us(100), 1, us(100)), Duration::ZERO);
    }
}
