//! The `Device` of `crate::residency` in a card's memory: allocates buffers under a cap, and copies in order on a
//! separate queue.
//!
//! The cap is checked before memory is requested from the driver. Dropping a `CudaMemory` releases the buffers that a
//! failed load has left behind.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use opt_shared::outcome::MemoryPoint;
use opt_shared::units::Bytes;

use super::driver::{Driver, DriverError, Mark, Pinned, Queue, SharedDriver};
use super::points::Points;
use crate::residency::budget::Budget;
use crate::residency::device::{Buffer, Device, DeviceError, Event, Marks};

const NAME: &str = "the device";
/// The bus moves gigabytes per second, so an operation that takes longer than this will not end.
const COPY_LIMIT: Duration = Duration::from_secs(60);
/// The first and the longest pause between two polls. Pauses start short, for operations that end at once, and double
/// each time.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

/// Waits until a mark is reached. Returns false if this takes longer than `limit`.
pub(super) fn wait_for(driver: &SharedDriver, mark: Mark, limit: Duration) -> Result<bool, DriverError> {
    let started = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        if driver.lock().is_over(mark)? {
            return Ok(true);
        }
        if limit <= started.elapsed() {
            return Ok(false);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The part of a device's memory that one lease uses.
pub(crate) struct CudaMemory {
    driver: SharedDriver,
    budget: Budget,
    live: BTreeMap<u64, Live>,
    queued: Event,
    /// The last operation that is known to be complete.
    done: Event,
    /// Queued operations that may not be complete, oldest first. Each copy keeps its slot until it is complete.
    under_way: VecDeque<UnderWay>,
    /// Slots whose copies are complete.
    returned: VecDeque<Pinned>,
    /// The error after which the state of copies is unknown.
    failed: Option<String>,
    points: Points,
}

/// A buffer that is allocated.
struct Live {
    placed: Bytes,
    /// The last queued operation that uses the buffer.
    last: Event,
}

/// An operation that was queued and may not be complete.
struct UnderWay {
    event: Event,
    mark: Mark,
    slot: Option<Pinned>,
}

impl CudaMemory {
    pub(super) fn new(driver: SharedDriver, capacity: Bytes, points: Points) -> Self {
        let grain = driver.lock().card().grain;
        Self {
            driver,
            budget: Budget::new(NAME, capacity, grain),
            live: BTreeMap::new(),
            queued: Event(0),
            done: Event(0),
            under_way: VecDeque::new(),
            returned: VecDeque::new(),
            failed: None,
            points,
        }
    }

    fn check_usable(&self) -> Result<(), DeviceError> {
        match &self.failed {
            Some(why) => Err(DeviceError::Poisoned { device: NAME, why: why.clone() }),
            None => Ok(()),
        }
    }

    /// Records an error after which the state of copies is unknown.
    fn poison(&mut self, why: String) -> DeviceError {
        DeviceError::Poisoned { device: NAME, why: self.failed.get_or_insert(why).clone() }
    }

    /// Removes completed operations from the queue.
    fn collect_completed(&mut self) -> Result<(), DeviceError> {
        while let Some(first) = self.under_way.front() {
            let is_over = self.driver.lock().is_over(first.mark);
            match is_over {
                Ok(false) => break,
                Ok(true) => {}
                Err(error) => return Err(self.poison(error.to_string())),
            }
            if let Some(UnderWay { event, slot, .. }) = self.under_way.pop_front() {
                self.done = event;
                self.returned.extend(slot);
            }
        }
        self.check_usable()
    }

    fn wait_for_first(&mut self) -> Result<(), DeviceError> {
        if let Some(first) = self.under_way.front() {
            let waited = wait_for(&self.driver, first.mark, COPY_LIMIT);
            match waited {
                Ok(true) => {}
                Ok(false) => {
                    return Err(self.poison(format!("a copy or fill was not complete after {COPY_LIMIT:?}")));
                }
                Err(error) => return Err(self.poison(error.to_string())),
            }
        }
        self.collect_completed()
    }

    /// Queues an operation on `bytes` bytes of `buffer`, starting at offset `at`.
    fn order(
        &mut self,
        buffer: &Buffer,
        at: Bytes,
        bytes: Bytes,
        slot: Option<Pinned>,
        order: impl FnOnce(&mut dyn Driver, u64, Option<&mut Pinned>) -> Result<(), DriverError>,
    ) -> Result<Event, DeviceError> {
        self.check_usable()?;
        let mut slot = slot;
        let room = slot.as_ref().map_or(Bytes::MAX, |slot| Bytes::from(slot.as_ref().len()));
        if room < bytes || at.checked_add(bytes).is_none_or(|end| buffer.bytes() < end) {
            return Err(DeviceError::OutOfRange { bytes, at, size: buffer.bytes(), slot: room.min(bytes) });
        }
        let event = Event(self.queued.0 + 1);
        if buffer.placed() != Bytes::ZERO {
            self.known(buffer)?.last = event;
        }
        let ordered = {
            let mut driver = self.driver.lock();
            order(&mut **driver, buffer.address() + at.get(), slot.as_mut())
                .and_then(|()| driver.mark(Queue::Copies))
        };
        // The copy may have been queued in spite of the error. Its end cannot be observed, so its slot is leaked.
        let mark = match ordered {
            Ok(mark) => mark,
            Err(error) => {
                std::mem::forget(slot);
                return Err(self.poison(error.to_string()));
            }
        };
        self.queued = event;
        self.under_way.push_back(UnderWay { event, mark, slot });
        Ok(event)
    }

    fn known(&mut self, buffer: &Buffer) -> Result<&mut Live, DeviceError> {
        let address = buffer.address();
        self.live
            .get_mut(&address)
            .filter(|known| known.placed == buffer.placed())
            .ok_or(DeviceError::Unknown { device: NAME, address })
    }
}

fn failed(what: &'static str, error: DriverError) -> DeviceError {
    DeviceError::Failed { device: NAME, what, source: io::Error::other(error) }
}

impl Device for CudaMemory {
    type Slot = Pinned;

    fn name(&self) -> &'static str {
        NAME
    }

    fn enter_thread(&mut self) -> Result<(), DeviceError> {
        self.driver.lock().enter_thread().map_err(|it| failed("making the context current", it))
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
        let address = self.driver.lock().allocate(bytes).map_err(|it| failed("allocating", it))?;
        self.live.insert(address, Live { placed, last: Event(0) });
        self.budget.place(placed);
        Ok(Buffer::new(address, bytes, placed))
    }

    fn release_waits_for_kernels(&self) -> bool {
        true
    }

    fn release(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        if buffer.placed() == Bytes::ZERO {
            return Ok(());
        }
        let last = self.known(&buffer)?.last;
        self.wait(last)?;
        self.driver.lock().free(buffer.address()).map_err(|it| failed("freeing", it))?;
        self.live.remove(&buffer.address());
        self.budget.release(buffer.placed());
        Ok(())
    }

    fn slot(&mut self, bytes: Bytes) -> Result<Pinned, DeviceError> {
        let pinned = self.driver.lock().pinned(bytes);
        let slot = pinned
            .map_err(|error| DeviceError::NoStaging { asked: bytes, source: io::Error::other(error) })?;
        self.budget.stage(bytes);
        Ok(slot)
    }

    fn drop_slot(&mut self, slot: Pinned) {
        self.budget.unstage(Bytes::from(slot.as_ref().len()));
    }

    fn upload(&mut self, slot: Pinned, bytes: Bytes, to: &Buffer, at: Bytes) -> Result<Event, DeviceError> {
        let event = self.order(to, at, bytes, Some(slot), |driver, to, slot| {
            let Some(slot) = slot else { return Ok(()) };
            let from = (*slot).as_ref().as_ptr();
            // SAFETY: the slot has at least `bytes` bytes, and is kept in `under_way` until a mark after the copy is
            // reached.
            unsafe { driver.upload(to, from, bytes.to_usize()) }
        })?;
        if at + bytes == to.bytes() {
            self.points.note(MemoryPoint::Uploaded, self.budget.marks().placed, &self.driver);
        }
        Ok(event)
    }

    fn download(
        &mut self,
        slot: Pinned,
        bytes: Bytes,
        from: &Buffer,
        at: Bytes,
    ) -> Result<Event, DeviceError> {
        self.order(from, at, bytes, Some(slot), |driver, from, slot| {
            let Some(slot) = slot else { return Ok(()) };
            let into = slot.as_mut().as_mut_ptr();
            // SAFETY: as above; no other code can reach the slot until then.
            unsafe { driver.download(into, from, bytes.to_usize()) }
        })
    }

    fn fill(&mut self, buffer: &Buffer, value: u8) -> Result<Event, DeviceError> {
        let bytes = buffer.bytes();
        self.order(buffer, Bytes::ZERO, bytes, None, |driver, at, _| {
            if bytes == Bytes::ZERO { Ok(()) } else { driver.fill(Queue::Copies, at, value, bytes) }
        })
    }

    fn reclaim(&mut self) -> Result<Option<Pinned>, DeviceError> {
        self.collect_completed()?;
        while self.returned.is_empty() && self.under_way.iter().any(|it| it.slot.is_some()) {
            self.wait_for_first()?;
        }
        Ok(self.returned.pop_front())
    }

    fn is_done(&mut self, event: Event) -> Result<bool, DeviceError> {
        self.collect_completed()?;
        Ok(event <= self.done)
    }

    fn wait(&mut self, event: Event) -> Result<(), DeviceError> {
        while self.done < event.min(self.queued) {
            self.wait_for_first()?;
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

impl Drop for CudaMemory {
    fn drop(&mut self) {
        while !self.under_way.is_empty() && self.failed.is_none() {
            let _ = self.wait_for_first();
        }
        // After a failure, the device may still be copying, so the slots are leaked.
        self.under_way.drain(..).for_each(|it| std::mem::forget(it.slot));
        let mut driver = self.driver.lock();
        for &address in self.live.keys() {
            // Releasing fails in a failed context, but that context's memory is released as a whole.
            let _ = driver.free(address);
        }
    }
}
