//! Counts the allocated bytes of a device, and refuses an allocation that would exceed its capacity.

use opt_shared::placement::whole_grains;
use opt_shared::units::Bytes;

use super::device::{DeviceError, Marks};

#[derive(Debug)]
pub struct Budget {
    device: &'static str,
    capacity: Bytes,
    grain: Bytes,
    marks: Marks,
}

impl Budget {
    pub fn new(device: &'static str, capacity: Bytes, grain: Bytes) -> Self {
        Self { device, capacity, grain, marks: Marks::default() }
    }

    pub const fn capacity(&self) -> Bytes {
        self.capacity
    }

    pub const fn grain(&self) -> Bytes {
        self.grain
    }

    pub const fn marks(&self) -> Marks {
        self.marks
    }

    pub fn free(&self) -> Bytes {
        self.capacity - self.marks.placed
    }

    /// Rounds `bytes` up to whole grains. Returns an error if the result exceeds the free bytes.
    pub fn round_up(&self, bytes: Bytes) -> Result<Bytes, DeviceError> {
        let (asked, free) = (whole_grains(bytes, self.grain), self.free());
        if free < asked {
            return Err(DeviceError::NoRoom { device: self.device, asked, free, capacity: self.capacity });
        }
        Ok(asked)
    }

    /// Counts an allocation. `bytes` must be a result of `round_up`.
    pub fn place(&mut self, bytes: Bytes) {
        self.marks.placed += bytes;
        self.marks.placed_peak = self.marks.placed_peak.max(self.marks.placed);
    }

    pub fn release(&mut self, bytes: Bytes) {
        self.marks.placed = self.marks.placed - bytes;
    }

    /// Counts an allocated slot of host memory of this size.
    pub fn stage(&mut self, bytes: Bytes) {
        self.marks.staged += bytes;
        self.marks.staged_peak = self.marks.staged_peak.max(self.marks.staged);
    }

    pub fn unstage(&mut self, bytes: Bytes) {
        self.marks.staged = self.marks.staged - bytes;
    }

    /// Resets the peaks to the current values.
    pub fn reset_peaks(&mut self) {
        self.marks.placed_peak = self.marks.placed;
        self.marks.staged_peak = self.marks.staged;
    }
}
