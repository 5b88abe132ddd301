//! Samples one device in a separate thread, so that the main loop never waits for NVML.
//!
//! Only the latest reading is kept. The main loop polls a descriptor, which becomes readable when there is a new
//! reading.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use rustix::event::{EventfdFlags, eventfd};

use super::{DeviceError, DeviceIdentity, Nvml, Reading};

/// The time between samples while a lease uses the device, or while the run waits for the device memory of a dead
/// worker to come back.
pub const BUSY: Duration = Duration::from_millis(20);
/// The time between samples at all other times.
pub const IDLE: Duration = Duration::from_secs(1);

/// The latest reading, or `None` if the main loop has already taken it.
type Latest = Arc<Mutex<Option<Result<Reading, DeviceError>>>>;

pub struct DeviceWatch {
    identity: DeviceIdentity,
    /// Passes the interval to the thread, which then takes a sample at once.
    intervals: Sender<Duration>,
    interval: Duration,
    latest: Latest,
    /// Readable when there is a new reading.
    new_reading: Arc<OwnedFd>,
}

impl DeviceWatch {
    /// Starts the thread, which takes the first sample at once. It ends when this value is dropped, unless it is stuck
    /// in NVML.
    pub fn start(nvml: Nvml, identity: DeviceIdentity) -> std::io::Result<Self> {
        let (intervals, received) = unbounded();
        let latest = Latest::default();
        let new_reading = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (shared, notifier, index) = (latest.clone(), new_reading.clone(), identity.index);
        thread::Builder::new()
            .name("device".to_owned())
            .spawn(move || watch(&nvml, index, &received, &shared, &notifier))?;
        Ok(Self { identity, intervals, interval: IDLE, latest, new_reading })
    }

    pub fn identity(&self) -> &DeviceIdentity {
        &self.identity
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.new_reading.as_fd()
    }

    /// Sets the interval between samples. If it changes, takes a sample at once.
    pub fn set_interval(&mut self, interval: Duration) {
        if self.interval != interval {
            self.interval = interval;
            self.sample_now();
        }
    }

    pub fn sample_now(&self) {
        // This fails only after the device was lost and the thread has ended.
        let _ = self.intervals.send(self.interval);
    }

    /// Takes the latest reading, if it has not been taken yet.
    pub fn take(&self) -> Option<Result<Reading, DeviceError>> {
        let mut count = [0; 8];
        // Reading fails if the counter is 0, that is, if there is no new reading. The lock below is enough to find out.
        let _ = rustix::io::read(&*self.new_reading, &mut count);
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Samples the device until it is lost, or until `intervals` is closed.
fn watch(nvml: &Nvml, index: u32, intervals: &Receiver<Duration>, latest: &Latest, new_reading: &OwnedFd) {
    let mut interval = IDLE;
    loop {
        let reading = nvml.read(index);
        let is_lost = matches!(reading, Err(DeviceError::Lost { .. }));
        *latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
        // This fails only if the counter is full, so the reader has been notified anyway.
        let _ = rustix::io::write(new_reading, &1_u64.to_ne_bytes());
        if is_lost {
            return;
        }
        match intervals.recv_timeout(interval) {
            Ok(wanted) => interval = intervals.try_iter().last().unwrap_or(wanted),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
