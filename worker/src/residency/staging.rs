//! From where bytes lie to where they are wanted, in chunks, through at most k slots of s bytes.
//!
//! While one slot is filled the others are being copied. Slots are made when they are first needed and kept until the
//! ring is dissolved. The ring takes its slots back itself: nobody else may have copies with slots out on its device.

use std::io;

use opt_shared::units::Bytes;

use super::device::{Buffer, Device, DeviceError, Event};
use super::ledger::Accounted;

/// Where a storage's bytes come from.
pub trait Source {
    fn bytes(&self) -> Bytes;

    /// Host memory that it takes while it is open, beside what a read is given.
    fn held(&self) -> Bytes {
        Bytes::ZERO
    }

    /// For messages.
    fn describe(&self) -> String;

    /// Fills all of `into`.
    fn read_at(&mut self, at: Bytes, into: &mut [u8]) -> io::Result<()>;
}

#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("reading {bytes} at byte {at} of {source_name}")]
    Read {
        source_name: String,
        at: Bytes,
        bytes: Bytes,
        #[source]
        source: io::Error,
    },
    #[error("{source_name} has {has} and its buffer {wanted}")]
    Size { source_name: String, has: Bytes, wanted: Bytes },
    #[error("a slot that a copy had did not come back (did an earlier copy fail?)")]
    SlotLost,
}

pub struct Ring<D: Device> {
    /// k.
    slots: u64,
    /// s.
    slot_bytes: Bytes,
    made: u64,
    idle: Vec<D::Slot>,
}

impl<D: Device> Ring<D> {
    /// At least one slot, of at least one byte.
    pub fn new(slots: u64, slot_bytes: Bytes) -> Self {
        Self { slots: slots.max(1), slot_bytes: slot_bytes.max(Bytes::new(1)), made: 0, idle: Vec::new() }
    }

    /// Queues all of `source` for `to`. The bytes are there when the event is done; none where there are no bytes.
    pub fn upload(
        &mut self,
        on: &mut Accounted<D>,
        source: &mut dyn Source,
        to: &Buffer,
    ) -> Result<Option<Event>, PlaceError> {
        let all = source.bytes();
        if all != to.bytes() {
            return Err(PlaceError::Size { source_name: source.describe(), has: all, wanted: to.bytes() });
        }
        let mut at = Bytes::ZERO;
        let mut last = None;
        while at < all {
            let bytes = self.slot_bytes.min(all - at);
            let mut slot = self.slot(on)?;
            if let Err(error) = source.read_at(at, &mut slot.as_mut()[..bytes.to_usize()]) {
                self.idle.push(slot);
                return Err(PlaceError::Read { source_name: source.describe(), at, bytes, source: error });
            }
            last = Some(on.device().upload(slot, bytes, to, at)?);
            at += bytes;
        }
        Ok(last)
    }

    /// Waits for all copies, and gives all slots back.
    pub fn dissolve(mut self, on: &mut Accounted<D>) -> Result<(), PlaceError> {
        while let Some(slot) = on.device().reclaim()? {
            self.idle.push(slot);
        }
        for slot in self.idle.drain(..) {
            on.drop_slot(slot);
        }
        Ok(())
    }

    fn slot(&mut self, on: &mut Accounted<D>) -> Result<D::Slot, PlaceError> {
        if let Some(slot) = self.idle.pop() {
            return Ok(slot);
        }
        if self.made < self.slots {
            let slot = on.slot(self.slot_bytes)?;
            self.made += 1;
            return Ok(slot);
        }
        on.device().reclaim()?.ok_or(PlaceError::SlotLost)
    }
}
