//! Counts what a device holds, and keeps that within its capacity before anything is allocated. The host and a card count in the same way.

use opt_shared::placement::whole_grains;
use opt_shared::units::Bytes;

use super::device::{DeviceError, Marks};

/// A device's capacity and what of it is taken.
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

    /// The whole grains that `bytes` take, if that many are free.
    pub fn whole(&self, bytes: Bytes) -> Result<Bytes, DeviceError> {
        let (asked, free) = (whole_grains(bytes, self.grain), self.free());
        if free < asked {
            return Err(DeviceError::NoRoom { device: self.device, asked, free, capacity: self.capacity });
        }
        Ok(asked)
    }

    /// `bytes`: whole grains that were found free.
    pub fn place(&mut self, bytes: Bytes) {
        self.marks.placed += bytes;
        self.marks.placed_peak = self.marks.placed_peak.max(self.marks.placed);
    }

    pub fn release(&mut self, bytes: Bytes) {
        self.marks.placed = self.marks.placed - bytes;
    }

    /// A slot of host memory of this size was allocated.
    pub fn stage(&mut self, bytes: Bytes) {
        self.marks.staged += bytes;
        self.marks.staged_peak = self.marks.staged_peak.max(self.marks.staged);
    }

    pub fn unstage(&mut self, bytes: Bytes) {
        self.marks.staged = self.marks.staged - bytes;
    }

    /// Resets the peaks to what is held now.
    pub fn reset_peaks(&mut self) {
        self.marks.placed_peak = self.marks.placed;
        self.marks.staged_peak = self.marks.staged;
    }
}
