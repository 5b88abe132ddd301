//! Looks at one device again and again, in a thread of its own: whoever waits for figures never waits for NVML.
//!
//! Keeps the latest reading alone. That a new one is there is said through a descriptor that can be polled.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use rustix::event::{EventfdFlags, eventfd};

use super::{DeviceError, DeviceIdentity, Nvml, Reading};

/// While a lease on the device is out: 50 times a second …
pub const BUSY: Duration = Duration::from_millis(20);
/// … and otherwise.
pub const IDLE: Duration = Duration::from_secs(1);

type Latest = Arc<Mutex<Option<Result<Reading, DeviceError>>>>;

pub struct DeviceWatch {
    identity: DeviceIdentity,
    /// How long to wait between looks; that it is sent asks for a look at once.
    pace: Sender<Duration>,
    paced: Duration,
    latest: Latest,
    news: Arc<OwnedFd>,
}

impl DeviceWatch {
    /// The first reading follows at once. The thread ends with this value; one that NVML does not let go is left behind.
    pub fn start(nvml: Nvml, identity: DeviceIdentity) -> std::io::Result<Self> {
        let (pace, paces) = unbounded();
        let latest = Latest::default();
        let news = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (shared, told, index) = (latest.clone(), news.clone(), identity.index);
        thread::Builder::new()
            .name("device".to_owned())
            .spawn(move || watch(&nvml, index, &paces, &shared, &told))?;
        Ok(Self { identity, pace, paced: IDLE, latest, news })
    }

    pub fn identity(&self) -> &DeviceIdentity {
        &self.identity
    }

    /// Readable when there is a new reading.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// From now on so long between two looks, the first of them at once.
    pub fn look_every(&mut self, pace: Duration) {
        if self.paced != pace {
            self.paced = pace;
            self.look_now();
        }
    }

    pub fn look_now(&self) {
        // The thread ends after a lost device, and has nothing more to say.
        let _ = self.pace.send(self.paced);
    }

    /// The latest reading, once.
    pub fn take(&self) -> Option<Result<Reading, DeviceError>> {
        let mut count = [0; 8];
        // Nothing to read is no news.
        let _ = rustix::io::read(&*self.news, &mut count);
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn watch(nvml: &Nvml, index: u32, paces: &Receiver<Duration>, latest: &Latest, news: &OwnedFd) {
    let mut pace = IDLE;
    loop {
        let reading = nvml.read(index);
        let is_lost = matches!(reading, Err(DeviceError::Lost { .. }));
        *latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
        // A counter that is full has been told already.
        let _ = rustix::io::write(news, &1_u64.to_ne_bytes());
        if is_lost {
            return;
        }
        match paces.recv_timeout(pace) {
            Ok(wanted) => pace = paces.try_iter().last().unwrap_or(wanted),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
