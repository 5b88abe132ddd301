//! A device for tests that has no memory and copies nothing. It counts bytes, and records allocations and uploads.
//!
//! A copy ends at a random time that depends on a seed, but at the latest when the caller waits for it.

use std::collections::VecDeque;

use opt_shared::placement::whole_grains;
use opt_shared::units::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::device::{Buffer, Device, DeviceError, Event, Marks};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceCall {
    Allocated { bytes: Bytes, copies_under_way: usize },
    Uploading { bytes: Bytes },
}

pub(crate) struct Counting {
    /// All allocations and uploads, in order.
    pub(crate) calls: Vec<DeviceCall>,
    capacity: Bytes,
    grain: Bytes,
    next_address: u64,
    /// The number of the last queued event.
    queued: u64,
    /// The number of the last completed event.
    done: u64,
    /// The copies that are not finished: the number of each one's event, and its slot.
    under_way: VecDeque<(u64, Vec<u8>)>,
    returned: VecDeque<Vec<u8>>,
    marks: Marks,
    chance: SmallRng,
}

impl Counting {
    pub(crate) fn new(capacity: Bytes, grain: Bytes, seed: u64) -> Self {
        Self {
            calls: Vec::new(),
            capacity,
            grain,
            next_address: 0,
            queued: 0,
            done: 0,
            under_way: VecDeque::new(),
            returned: VecDeque::new(),
            marks: Marks::default(),
            chance: SmallRng::seed_from_u64(seed),
        }
    }

    fn end_one(&mut self) {
        if let Some((event, slot)) = self.under_way.pop_front() {
            self.done = event;
            self.returned.push_back(slot);
        }
        if self.under_way.is_empty() {
            self.done = self.queued;
        }
    }

    fn end_some(&mut self) {
        while !self.under_way.is_empty() && self.chance.random_bool(0.3) {
            self.end_one();
        }
    }

    fn queue(&mut self, slot: Vec<u8>) -> Event {
        self.queued += 1;
        self.under_way.push_back((self.queued, slot));
        self.end_some();
        Event(self.queued)
    }
}

impl Device for Counting {
    type Slot = Vec<u8>;

    fn name(&self) -> &'static str {
        "a counting device"
    }

    fn capacity(&self) -> Bytes {
        self.capacity
    }

    fn grain(&self) -> Bytes {
        self.grain
    }

    fn allocate(&mut self, bytes: Bytes) -> Result<Buffer, DeviceError> {
        self.end_some();
        let placed = whole_grains(bytes, self.grain);
        let free = self.capacity - self.marks.placed;
        if free < placed {
            let capacity = self.capacity;
            return Err(DeviceError::NoRoom { device: self.name(), asked: placed, free, capacity });
        }
        let copies_under_way = self.under_way.len();
        self.calls.push(DeviceCall::Allocated { bytes, copies_under_way });
        self.marks.placed += placed;
        self.marks.placed_peak = self.marks.placed_peak.max(self.marks.placed);
        self.next_address += placed.get();
        Ok(Buffer::new(self.next_address - placed.get(), bytes, placed))
    }

    fn release(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.marks.placed = self.marks.placed - buffer.placed();
        Ok(())
    }

    fn slot(&mut self, bytes: Bytes) -> Result<Vec<u8>, DeviceError> {
        self.marks.staged += bytes;
        self.marks.staged_peak = self.marks.staged_peak.max(self.marks.staged);
        Ok(vec![0; bytes.to_usize()])
    }

    fn drop_slot(&mut self, slot: Vec<u8>) {
        self.marks.staged = self.marks.staged - Bytes::from(slot.len());
    }

    fn upload(&mut self, slot: Vec<u8>, bytes: Bytes, _: &Buffer, _: Bytes) -> Result<Event, DeviceError> {
        self.calls.push(DeviceCall::Uploading { bytes });
        Ok(self.queue(slot))
    }

    fn download(&mut self, slot: Vec<u8>, _: Bytes, _: &Buffer, _: Bytes) -> Result<Event, DeviceError> {
        Ok(self.queue(slot))
    }

    fn fill(&mut self, _: &Buffer, _: u8) -> Result<Event, DeviceError> {
        self.queued += 1;
        Ok(Event(self.queued))
    }

    fn reclaim(&mut self) -> Result<Option<Vec<u8>>, DeviceError> {
        if self.returned.is_empty() {
            self.end_one();
        }
        Ok(self.returned.pop_front())
    }

    fn is_done(&mut self, event: Event) -> Result<bool, DeviceError> {
        self.end_some();
        Ok(event.0 <= self.done)
    }

    fn wait(&mut self, event: Event) -> Result<(), DeviceError> {
        while self.done < event.0.min(self.queued) {
            self.end_one();
        }
        Ok(())
    }

    fn marks(&self) -> Marks {
        self.marks
    }

    fn reset_marks(&mut self) {
        self.marks.placed_peak = self.marks.placed;
        self.marks.staged_peak = self.marks.staged;
    }
}
