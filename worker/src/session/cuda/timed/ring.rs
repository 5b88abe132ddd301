//! The ring of outputs: each call of a block writes to a slot of its own.
//!
//! All sides use the same ring. After each block it is copied to the host and can be filled anew, so a side never finds
//! the other side's outputs on the device.

use std::io;

use opt_shared::formula::{DEVICE_ALIGNMENT, device_slots};
use opt_shared::placement::whole_grains;
use opt_shared::units::Bytes;

use super::super::driver::{Driver, DriverError};
use crate::judge::BytesSource;
use crate::recorded::{Recorded, allocated_bytes};

/// The places of an entry's outputs in the ring.
pub(super) struct Layout {
    pub(super) slots: u32,
    outputs: Vec<Place>,
}

#[derive(Clone, Copy)]
struct Place {
    /// The offset of its first slot.
    start: u64,
    /// The distance between two slots.
    stride: u64,
    bytes: u64,
}

impl Layout {
    /// `single` is true if a block is one call.
    pub(super) fn of(recorded: &Recorded, single: bool) -> Self {
        let sizes = || recorded.outputs.iter().map(|output| allocated_bytes(&output.tensor));
        let slots = if single { 1 } else { device_slots(sizes().map(Bytes::new)) };
        let mut start = 0;
        let outputs = sizes().map(|bytes| {
            let stride = whole_grains(Bytes::new(bytes), DEVICE_ALIGNMENT).get();
            let place = Place { start, stride, bytes };
            start += stride * u64::from(slots);
            place
        });
        Self { outputs: outputs.collect(), slots }
    }

    pub(super) fn bytes(&self) -> Bytes {
        let slots = u64::from(self.slots);
        self.outputs.last().map_or(Bytes::ZERO, |last| Bytes::new(last.start + last.stride * slots))
    }

    /// The offset of an output's slot.
    pub(super) fn at(&self, output: usize, slot: u32) -> u64 {
        self.outputs.get(output).map_or(0, |place| place.start + place.stride * u64::from(slot))
    }

    /// The size of all slots of an output that a block of `calls` calls uses.
    pub(super) fn used(&self, output: usize, calls: u32) -> Bytes {
        Bytes::new(self.outputs.get(output).map_or(0, |place| place.stride * u64::from(calls)))
    }

    /// Copies the outputs of `calls` calls to the host.
    pub(super) fn keep(
        &self,
        driver: &mut dyn Driver,
        ring: u64,
        calls: u32,
        kept: &mut Kept,
    ) -> Result<(), DriverError> {
        kept.outputs.resize(self.outputs.len(), Vec::new());
        for (output, bytes) in kept.outputs.iter_mut().enumerate() {
            bytes.clear();
            bytes.resize(self.used(output, calls).to_usize(), 0);
            if !bytes.is_empty() {
                driver.read(ring + self.at(output, 0), bytes)?;
            }
        }
        Ok(())
    }

    /// Reads one slot of the kept outputs.
    pub(super) fn source<'k>(&self, kept: &'k Kept, output: usize, slot: u32) -> KeptSource<'k> {
        let found = self.outputs.get(output).zip(kept.outputs.get(output)).and_then(|(place, bytes)| {
            let start = usize::try_from(place.stride * u64::from(slot)).ok()?;
            bytes.get(start..start.checked_add(Bytes::new(place.bytes).to_usize())?)
        });
        KeptSource(found.unwrap_or_default())
    }
}

/// The outputs of an entry's last block, by output.
#[derive(Default)]
pub(super) struct Kept {
    outputs: Vec<Vec<u8>>,
}

pub(super) struct KeptSource<'k>(&'k [u8]);

impl BytesSource for KeptSource<'_> {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let found = self.0.get(start..start.saturating_add(buffer.len()));
        buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
