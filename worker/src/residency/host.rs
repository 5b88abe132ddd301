//! A device in host memory: an arena that runners can map, and a thread that copies bytes to and from it.
//!
//! The arena is a memfd sealed against resizing. Releasing a buffer removes its pages, so the memory that Linux
//! attributes to the arena is exactly that of the placed buffers that have been written. Runners get a read-only
//! descriptor and map only the ranges that belong to buffers, because touching a page outside these ranges would
//! allocate it. This process does not map the arena.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use opt_shared::placement::whole_grains;
use opt_shared::units::Bytes;
use rustix::fs::{FallocateFlags, fallocate};

use super::budget::Budget;
use super::device::{Buffer, Device, DeviceError, Event, Marks};
use super::free_list::FreeList;
use super::pages::Pages;
use crate::memfd;

const NAME: &str = "host memory";
const FILL_PIECE: usize = 64 * 1024;
/// The number of addresses per byte of capacity. First-fit allocation needs at most log2(n) addresses per byte, where n
/// is the capacity in pages.
const SPREAD: u64 = 32;
/// The largest size of an arena's file, in bytes.
const MAX_ADDRESSES: u64 = 1 << 46;

/// A device whose memory is an arena of host memory.
pub struct HostDevice {
    arena: Arc<File>,
    budget: Budget,
    free_list: FreeList,
    /// The placed buffers, by address.
    placed: BTreeMap<u64, Placed>,
    /// The last event on the queue.
    queued: Event,
    /// The last event whose completion was received from the copier.
    done: Event,
    /// The number of slots that queued copies are using.
    lent: u64,
    returned: VecDeque<Pages>,
    /// The reason why the device is poisoned; `None` if it is not.
    failed: Option<String>,
    orders: Option<Sender<Order>>,
    ends: Receiver<Completion>,
    copier: Option<JoinHandle<()>>,
}

/// A buffer that has been allocated and not released.
struct Placed {
    bytes: Bytes,
    placed: Bytes,
    /// The last queued operation that uses the buffer.
    last: Event,
}

/// A queued operation on the bytes of the arena from `at` on.
struct Order {
    event: Event,
    at: u64,
    bytes: usize,
    work: Work,
}

/// What an operation does: it copies from a slot, copies into a slot, or fills with a value.
enum Work {
    Up(Pages),
    Down(Pages),
    Fill(u8),
}

/// The copier's report that an operation has finished.
struct Completion {
    event: Event,
    slot: Option<Pages>,
    result: io::Result<()>,
}

impl HostDevice {
    /// Creates an arena for `capacity` bytes. Up to a capacity of 2 TiB, the arena has so many addresses that no
    /// sequence of allocations within the capacity fails for lack of a large enough free range.
    pub fn create(capacity: Bytes) -> Result<Self, DeviceError> {
        Self::with_addresses(capacity, capacity.saturating_mul(SPREAD).min(Bytes::new(MAX_ADDRESSES)))
    }

    /// Creates an arena with as many addresses as bytes of capacity. Even a process that touches every address then
    /// uses no more memory than the capacity. In exchange, an allocation may fail because no free range is large
    /// enough.
    pub fn dense(capacity: Bytes) -> Result<Self, DeviceError> {
        Self::with_addresses(capacity, capacity)
    }

    fn with_addresses(capacity: Bytes, addresses: Bytes) -> Result<Self, DeviceError> {
        let grain = Bytes::from(rustix::param::page_size());
        let addresses = whole_grains(addresses, grain);
        let arena = memfd::fixed("opt-arena", addresses)
            .map_err(|errno| failed("creating an arena", errno.into()))?;
        Self::from_arena(File::from(arena), capacity, addresses)
    }

    fn from_arena(arena: File, capacity: Bytes, addresses: Bytes) -> Result<Self, DeviceError> {
        let arena = Arc::new(arena);
        let (orders, queue) = channel();
        let (finished, ends) = channel();
        let arena_of_copier = Arc::clone(&arena);
        let copier = std::thread::Builder::new()
            .name("copies".to_owned())
            .spawn(move || copy_all(&arena_of_copier, &queue, &finished))
            .map_err(|source| failed("starting a copy queue", source))?;
        Ok(Self {
            arena,
            budget: Budget::new(NAME, capacity, Bytes::from(rustix::param::page_size())),
            free_list: FreeList::new(addresses.get()),
            placed: BTreeMap::new(),
            queued: Event(0),
            done: Event(0),
            lent: 0,
            returned: VecDeque::new(),
            failed: None,
            orders: Some(orders),
            ends,
            copier: Some(copier),
        })
    }

    /// Returns a descriptor of the arena that can only be read and mapped for reading. A buffer's address is its offset
    /// in the arena.
    pub fn reader(&self) -> Result<File, DeviceError> {
        File::open(format!("/proc/self/fd/{}", self.arena.as_raw_fd()))
            .map_err(|source| failed("opening the arena for reading", source))
    }

    /// Returns the amount of memory that Linux attributes to the arena.
    pub fn counted(&self) -> Result<Bytes, DeviceError> {
        use std::os::unix::fs::MetadataExt;
        let metadata = self.arena.metadata().map_err(|source| failed("querying the arena's size", source))?;
        Ok(Bytes::new(metadata.blocks()).saturating_mul(512))
    }

    fn queue(&mut self, buffer: &Buffer, at: Bytes, bytes: Bytes, work: Work) -> Result<Event, DeviceError> {
        self.check_usable()?;
        let event = Event(self.queued.0 + 1);
        let has_slot = matches!(work, Work::Up(_) | Work::Down(_));
        let out_of_range = || DeviceError::OutOfRange {
            bytes,
            at,
            size: buffer.bytes(),
            slot: match &work {
                Work::Up(slot) | Work::Down(slot) => Bytes::from(slot.as_ref().len()),
                Work::Fill(_) => bytes,
            },
        };
        let room = match &work {
            Work::Up(slot) | Work::Down(slot) => Bytes::from(slot.as_ref().len()),
            Work::Fill(_) => Bytes::MAX,
        };
        if room < bytes || at.checked_add(bytes).is_none_or(|end| buffer.bytes() < end) {
            return Err(out_of_range());
        }
        if buffer.placed() != Bytes::ZERO {
            self.find(buffer)?.last = event;
        }
        let order = Order { event, at: buffer.address() + at.get(), bytes: bytes.to_usize(), work };
        let sent = self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok());
        if !sent {
            return Err(self.poison("its copy queue has ended".to_owned()));
        }
        self.queued = event;
        self.lent += u64::from(has_slot);
        Ok(event)
    }

    /// Returns the record of a buffer. Fails unless the device has placed a buffer with this address and these sizes.
    fn find(&mut self, buffer: &Buffer) -> Result<&mut Placed, DeviceError> {
        let address = buffer.address();
        self.placed
            .get_mut(&address)
            .filter(|known| known.bytes == buffer.bytes() && known.placed == buffer.placed())
            .ok_or(DeviceError::Unknown { device: NAME, address })
    }

    fn complete(&mut self, end: Completion) {
        self.done = self.done.max(end.event);
        if let Some(slot) = end.slot {
            self.lent -= 1;
            self.returned.push_back(slot);
        }
        if let Err(error) = end.result {
            self.poison(format!("a copy or fill failed: {error}"));
        }
    }

    fn wait_for_next(&mut self) -> Result<(), DeviceError> {
        match self.ends.recv() {
            Ok(end) => self.complete(end),
            Err(_) => return Err(self.poison("its copy queue has ended".to_owned())),
        }
        self.check_usable()
    }

    fn check_usable(&self) -> Result<(), DeviceError> {
        match &self.failed {
            Some(why) => Err(DeviceError::Poisoned { device: NAME, why: why.clone() }),
            None => Ok(()),
        }
    }

    /// Marks the device as poisoned, and returns the error that says so. If it was poisoned before, the first reason is
    /// kept.
    fn poison(&mut self, why: String) -> DeviceError {
        let why = self.failed.get_or_insert(why).clone();
        DeviceError::Poisoned { device: NAME, why }
    }
}

fn failed(what: &'static str, source: io::Error) -> DeviceError {
    DeviceError::Failed { device: NAME, what, source }
}

impl Device for HostDevice {
    type Slot = Pages;

    fn name(&self) -> &'static str {
        NAME
    }

    fn capacity(&self) -> Bytes {
        self.budget.capacity()
    }

    fn grain(&self) -> Bytes {
        self.budget.grain()
    }

    fn allocate(&mut self, bytes: Bytes) -> Result<Buffer, DeviceError> {
        self.check_usable()?;
        let placed = self.budget.round_up(bytes)?;
        if placed == Bytes::ZERO {
            return Ok(Buffer::new(0, bytes, placed));
        }
        let address = self.free_list.allocate(placed.get());
        let address =
            address.ok_or(DeviceError::NoPlace { device: NAME, asked: placed, free: self.budget.free() })?;
        self.placed.insert(address, Placed { bytes, placed, last: Event(0) });
        self.budget.place(placed);
        Ok(Buffer::new(address, bytes, placed))
    }

    fn release(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        if buffer.placed() == Bytes::ZERO {
            return Ok(());
        }
        let last = self.find(&buffer)?.last;
        self.wait(last)?;
        let (at, placed) = (buffer.address(), buffer.placed());
        fallocate(&*self.arena, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, placed.get())
            .map_err(|errno| failed("freeing the pages of a buffer", errno.into()))?;
        self.placed.remove(&at);
        self.free_list.free(at, placed.get());
        self.budget.release(placed);
        Ok(())
    }

    fn slot(&mut self, bytes: Bytes) -> Result<Pages, DeviceError> {
        let slot = Pages::new(bytes).map_err(|source| DeviceError::NoStaging { asked: bytes, source })?;
        self.budget.stage(bytes);
        Ok(slot)
    }

    fn drop_slot(&mut self, slot: Pages) {
        self.budget.unstage(Bytes::from(slot.as_ref().len()));
    }

    fn upload(&mut self, slot: Pages, bytes: Bytes, to: &Buffer, at: Bytes) -> Result<Event, DeviceError> {
        self.queue(to, at, bytes, Work::Up(slot))
    }

    fn download(
        &mut self,
        slot: Pages,
        bytes: Bytes,
        from: &Buffer,
        at: Bytes,
    ) -> Result<Event, DeviceError> {
        self.queue(from, at, bytes, Work::Down(slot))
    }

    fn fill(&mut self, buffer: &Buffer, value: u8) -> Result<Event, DeviceError> {
        self.queue(buffer, Bytes::ZERO, buffer.bytes(), Work::Fill(value))
    }

    fn reclaim(&mut self) -> Result<Option<Pages>, DeviceError> {
        while self.returned.is_empty() && 0 < self.lent {
            self.wait_for_next()?;
        }
        self.check_usable()?;
        Ok(self.returned.pop_front())
    }

    fn is_done(&mut self, event: Event) -> Result<bool, DeviceError> {
        while let Ok(end) = self.ends.try_recv() {
            self.complete(end);
        }
        self.check_usable()?;
        Ok(event <= self.done)
    }

    fn wait(&mut self, event: Event) -> Result<(), DeviceError> {
        while self.done < event.min(self.queued) {
            self.wait_for_next()?;
        }
        self.check_usable()
    }

    fn marks(&self) -> Marks {
        self.budget.marks()
    }

    fn reset_marks(&mut self) {
        self.budget.reset_peaks();
    }
}

impl Drop for HostDevice {
    fn drop(&mut self) {
        // Dropping the sender ends the copier, so the join below returns.
        self.orders = None;
        if let Some(copier) = self.copier.take() {
            let _ = copier.join();
        }
    }
}

/// Executes the operations in order, until the device is dropped.
fn copy_all(arena: &File, orders: &Receiver<Order>, ends: &Sender<Completion>) {
    for Order { event, at, bytes, work } in orders {
        let (slot, result) = match work {
            Work::Up(slot) => {
                let result = arena.write_all_at(&slot.as_ref()[..bytes], at);
                (Some(slot), result)
            }
            Work::Down(mut slot) => {
                let result = arena.read_exact_at(&mut slot.as_mut()[..bytes], at);
                (Some(slot), result)
            }
            Work::Fill(value) => (None, fill(arena, value, bytes, at)),
        };
        if ends.send(Completion { event, slot, result }).is_err() {
            return;
        }
    }
}

fn fill(arena: &File, value: u8, bytes: usize, at: u64) -> io::Result<()> {
    let piece = [value; FILL_PIECE];
    let mut done = 0;
    while done < bytes {
        let length = (bytes - done).min(FILL_PIECE);
        arena.write_all_at(&piece[..length], at + done as u64)?;
        done += length;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
