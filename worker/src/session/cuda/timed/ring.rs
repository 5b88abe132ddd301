//! The layout of the ring of outputs, in which each call of a block writes to a separate slot.
//!
//! The candidate and the baseline use the same ring. The slots of a block are filled before it, so that the calls of
//! one of the two do not find the other's outputs in them. After each block, its outputs are copied to the host.

use std::io;

use opt_shared::formula::{DEVICE_ALIGNMENT, device_slots};
use opt_shared::placement::whole_grains;
use opt_shared::units::Bytes;

use super::super::driver::{Driver, DriverError};
use crate::judge::BytesSource;
use crate::recorded::{Recorded, allocated_bytes};

pub(super) struct Layout {
    pub(super) slots: u32,
    outputs: Vec<OutputSlots>,
}

#[derive(Clone, Copy)]
struct OutputSlots {
    /// The offset of the first slot, in bytes.
    start: u64,
    /// The distance between two slots, in bytes.
    stride: u64,
    bytes: u64,
}

impl Layout {
    /// Returns the layout for the outputs of a recorded call. `single` is true if a block is one call.
    pub(super) fn of(recorded: &Recorded, single: bool) -> Self {
        let sizes = || recorded.outputs.iter().map(|output| allocated_bytes(&output.tensor));
        let slots = if single { 1 } else { device_slots(sizes().map(Bytes::new)) };
        let mut start = 0;
        let outputs = sizes().map(|bytes| {
            let stride = whole_grains(Bytes::new(bytes), DEVICE_ALIGNMENT).get();
            let output = OutputSlots { start, stride, bytes };
            start += stride * u64::from(slots);
            output
        });
        Self { outputs: outputs.collect(), slots }
    }

    pub(super) fn bytes(&self) -> Bytes {
        let slots = u64::from(self.slots);
        self.outputs.last().map_or(Bytes::ZERO, |last| Bytes::new(last.start + last.stride * slots))
    }

    pub(super) fn at(&self, output: usize, slot: u32) -> u64 {
        self.outputs.get(output).map_or(0, |slots| slots.start + slots.stride * u64::from(slot))
    }

    pub(super) fn used(&self, output: usize, calls: u32) -> Bytes {
        Bytes::new(self.outputs.get(output).map_or(0, |slots| slots.stride * u64::from(calls)))
    }

    pub(super) fn keep(
        &self,
        driver: &mut dyn Driver,
        ring: u64,
        calls: u32,
        kept: &mut KeptOutputs,
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

    pub(super) fn source<'k>(&self, kept: &'k KeptOutputs, output: usize, slot: u32) -> KeptSource<'k> {
        let found = self.outputs.get(output).zip(kept.outputs.get(output)).and_then(|(slots, bytes)| {
            let start = usize::try_from(slots.stride * u64::from(slot)).ok()?;
            bytes.get(start..start.checked_add(Bytes::new(slots.bytes).to_usize())?)
        });
        KeptSource(found.unwrap_or_default())
    }
}

#[derive(Default)]
pub(super) struct KeptOutputs {
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
