//! Copies bytes from a source to a device in chunks, through a ring of slots in host memory.
//!
//! While one slot is being filled, the contents of the others can be copied to the device. Slots are freed only when
//! the ring is dissolved. A ring takes back whichever slot its device returns next, so no other code may use slots of
//! that device.

use std::io;

use opt_shared::units::Bytes;

use super::device::{Buffer, Device, DeviceError, Event};
use super::ledger::Accounted;

/// A storage's bytes, opened for reading.
pub trait Source {
    fn bytes(&self) -> Bytes;

    fn describe(&self) -> String;

    /// Fills all of `into`.
    fn read_at(&mut self, at: Bytes, into: &mut [u8]) -> io::Result<()>;
}

#[derive(Debug, thiserror::Error)]
pub enum StagingError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(
        "a tensor refers to storage {storage} (counted from 0), but the load has only {storages} storages"
    )]
    NoStorage { storage: usize, storages: usize },
    #[error("opening {source_name}")]
    Open {
        source_name: String,
        #[source]
        source: io::Error,
    },
    #[error("reading {bytes} at byte {at} of {source_name}")]
    Read {
        source_name: String,
        at: Bytes,
        bytes: Bytes,
        #[source]
        source: io::Error,
    },
    #[error("{source_name} has {has}, but its buffer has {wanted}")]
    Size { source_name: String, has: Bytes, wanted: Bytes },
    #[error("a copy did not return its slot (did an earlier copy fail?)")]
    SlotLost,
}

/// Slots of equal size, which copies use in turn.
pub struct Ring<D: Device> {
    /// The maximum number of slots.
    slots: u64,
    slot_bytes: Bytes,
    allocated: u64,
    idle: Vec<D::Slot>,
}

impl<D: Device> Ring<D> {
    /// Creates a ring of at most `slots` slots, each of `slot_bytes` bytes. Values below 1 are treated as 1.
    pub fn new(slots: u64, slot_bytes: Bytes) -> Self {
        Self {
            slots: slots.max(1),
            slot_bytes: slot_bytes.max(Bytes::new(1)),
            allocated: 0,
            idle: Vec::new(),
        }
    }

    /// Allocates slots for sources of these sizes: one for each chunk, up to the maximum number of slots.
    pub fn prepare(
        &mut self,
        on: &mut Accounted<D>,
        sizes: impl Iterator<Item = Bytes>,
    ) -> Result<(), DeviceError> {
        let chunks = sizes.map(|it| it.get().div_ceil(self.slot_bytes.get())).fold(0, u64::saturating_add);
        while self.allocated < chunks.min(self.slots) {
            self.idle.push(on.slot(self.slot_bytes)?);
            self.allocated += 1;
        }
        Ok(())
    }

    /// Queues copies of all bytes of `source` to `to`. Returns the event that completes with the last copy, or `None`
    /// if the source is empty.
    pub fn upload(
        &mut self,
        on: &mut Accounted<D>,
        source: &mut dyn Source,
        to: &Buffer,
    ) -> Result<Option<Event>, StagingError> {
        let all = source.bytes();
        if all != to.bytes() {
            return Err(StagingError::Size { source_name: source.describe(), has: all, wanted: to.bytes() });
        }
        self.prepare(on, std::iter::once(all))?;
        let mut at = Bytes::ZERO;
        let mut last = None;
        while at < all {
            let bytes = self.slot_bytes.min(all - at);
            let mut slot = self.slot(on)?;
            if let Err(error) = source.read_at(at, &mut slot.as_mut()[..bytes.to_usize()]) {
                self.idle.push(slot);
                return Err(StagingError::Read { source_name: source.describe(), at, bytes, source: error });
            }
            last = Some(on.device().upload(slot, bytes, to, at)?);
            at += bytes;
        }
        Ok(last)
    }

    /// Waits for all copies and frees all slots.
    pub fn dissolve(mut self, on: &mut Accounted<D>) -> Result<(), StagingError> {
        while let Some(slot) = on.device().reclaim()? {
            self.idle.push(slot);
        }
        for slot in self.idle.drain(..) {
            on.drop_slot(slot);
        }
        Ok(())
    }

    /// Returns an idle slot. If there is none, waits until a copy returns its slot.
    fn slot(&mut self, on: &mut Accounted<D>) -> Result<D::Slot, StagingError> {
        match self.idle.pop() {
            Some(slot) => Ok(slot),
            None => on.device().reclaim()?.ok_or(StagingError::SlotLost),
        }
    }
}
