//! The device memory that all timed sessions of a lease share. When it is allocated, it is used to measure how long a
//! flush of the L2 cache takes, and how fast the device copies.

use std::time::Duration;

use opt_shared::formula::DEVICE_FLUSH;
use opt_shared::units::Bytes;

use super::super::driver::code::Code;
use super::super::driver::timing::Stamp;
use super::super::driver::{Driver, DriverError, Queue, SharedDriver};
use super::super::memory::wait_for;
use crate::residency::device::Buffer;

const REPEATS: usize = 5;
/// The size of the flush buffer divided by the size of a small copy. The source and the target of a small copy fit into
/// the L2 cache together, which makes such a copy faster per byte.
const CACHED_DIVISOR: u64 = 16;
/// The time limit of the measurements. They take milliseconds.
const LIMIT: Duration = Duration::from_secs(60);
const FLUSH_BYTE: u8 = 0x3c;

/// The shared buffers, and the figures that were measured with them.
pub(in super::super) struct TimingMemory {
    /// The slots for outputs, one for each call of a block.
    pub(super) ring: Buffer,
    flush: Buffer,
    pub(super) figures: Figures,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// The median time of a flush.
    pub(super) flush: Duration,
    /// The fastest rate of a copy within the device, in bytes read and written per second. `None` if the driver has no
    /// function for such copies, or if every copy took no time.
    pub(super) copy_rate: Option<f64>,
}

/// Returns the size of the flush buffer: twice the size of the L2 cache, but at most `DEVICE_FLUSH`. If the size of the
/// cache is unknown, returns `DEVICE_FLUSH`.
pub(super) fn flush_bytes(l2: Bytes) -> Bytes {
    if l2 == Bytes::ZERO { DEVICE_FLUSH } else { l2.saturating_mul(2).min(DEVICE_FLUSH) }
}

impl TimingMemory {
    /// Measures the figures, using the flush buffer as scratch memory.
    pub(super) fn new(driver: &SharedDriver, ring: Buffer, flush: Buffer) -> Result<Self, DriverError> {
        let figures = measure(driver, flush.address(), flush.bytes())?;
        Ok(Self { ring, flush, figures })
    }

    /// Takes the ring out, so that it can be released, and leaves an empty buffer in its place.
    pub(super) fn take_ring(&mut self) -> Buffer {
        std::mem::replace(&mut self.ring, Buffer::new(0, Bytes::ZERO, Bytes::ZERO))
    }

    /// Queues the write that flushes the L2 cache.
    pub(super) fn flush(&self, driver: &mut dyn Driver) -> Result<(), DriverError> {
        driver.fill(Queue::Calls, self.flush.address(), FLUSH_BYTE, self.flush.bytes())
    }
}

fn measure(driver: &SharedDriver, memory: u64, bytes: Bytes) -> Result<Figures, DriverError> {
    let flush = times(driver, |driver| driver.fill(Queue::Calls, memory, FLUSH_BYTE, bytes).map(|()| true))?;
    let mut copy_rate: Option<f64> = None;
    for share in [2, CACHED_DIVISOR] {
        let part = Bytes::new(bytes.get() / share);
        let copies = times(driver, |driver| driver.copy(memory + part.get(), memory, part))?;
        let fastest = copies.first().filter(|time| !time.is_zero());
        let rate = fastest.map(|time| 2.0 * part.as_f64() / time.as_secs_f64());
        copy_rate = copy_rate.into_iter().chain(rate).reduce(f64::max);
    }
    Ok(Figures { flush: flush.get(flush.len() / 2).copied().unwrap_or_default(), copy_rate })
}

/// Returns the times of `REPEATS` operations in ascending order. An operation that is not timed precedes them. Empty if
/// the driver lacks the operation.
fn times(
    driver: &SharedDriver,
    mut queue: impl FnMut(&mut dyn Driver) -> Result<bool, DriverError>,
) -> Result<Vec<Duration>, DriverError> {
    let mut stamps: Vec<(Stamp, Stamp)> = Vec::with_capacity(REPEATS);
    let end = {
        let mut driver = driver.lock();
        let driver = &mut **driver;
        driver.clear_stamps();
        if !queue(driver)? {
            return Ok(Vec::new());
        }
        for _ in 0..REPEATS {
            let start = driver.stamp()?;
            queue(driver)?;
            stamps.push((start, driver.stamp()?));
        }
        driver.mark(Queue::Calls)?
    };
    if !wait_for(driver, end, LIMIT)? {
        return Err(DriverError::new("measuring the device", Code::LAUNCH_TIMEOUT));
    }
    let mut driver = driver.lock();
    let times: Result<Vec<Duration>, DriverError> =
        stamps.into_iter().map(|(start, end)| driver.between(start, end)).collect();
    let mut times = times?;
    times.sort_unstable();
    Ok(times)
}
