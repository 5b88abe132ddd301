//! Device memory for inputs that differ in every timed call. All sessions that are timed together read it.

use std::io;
use std::time::Duration;

use opt_shared::units::Bytes;

use super::super::driver::{Queue, SharedDriver};
use super::super::memory::wait_for;
use crate::residency::device::DeviceError;
use crate::session::VariantMemory;

const DEVICE: &str = "the device";
/// The time limit for filling the memory. Filling takes milliseconds.
const FILL_LIMIT: Duration = Duration::from_secs(60);

/// Device memory, which is freed on drop.
pub(crate) struct DeviceVariants {
    driver: SharedDriver,
    pub(super) address: u64,
    bytes: Bytes,
}

impl DeviceVariants {
    pub(in super::super) fn allocate(driver: &SharedDriver, bytes: Bytes) -> Result<Self, DeviceError> {
        let failed = |source| DeviceError::Failed {
            device: DEVICE,
            what: "making room for variants of inputs",
            source: io::Error::other(source),
        };
        let address = driver.lock().allocate(bytes).map_err(failed)?;
        let variants = Self { driver: driver.clone(), address, bytes };
        variants.clear().map_err(|source| DeviceError::Failed {
            device: DEVICE,
            what: "clearing variants of inputs",
            source,
        })?;
        Ok(variants)
    }
}

impl VariantMemory for DeviceVariants {
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if self.bytes.get() < at.saturating_add(bytes.len() as u64) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.driver.lock().write(self.address + at, bytes).map_err(io::Error::other)
    }

    fn clear(&self) -> io::Result<()> {
        let filled = {
            let mut driver = self.driver.lock();
            driver
                .fill(Queue::Calls, self.address, 0, self.bytes)
                .and_then(|()| driver.mark(Queue::Calls))
                .map_err(io::Error::other)?
        };
        match wait_for(&self.driver, filled, FILL_LIMIT).map_err(io::Error::other)? {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Drop for DeviceVariants {
    fn drop(&mut self) {
        // Freeing fails only in a failed context, whose memory is released as a whole.
        let _ = self.driver.lock().free(self.address);
    }
}
