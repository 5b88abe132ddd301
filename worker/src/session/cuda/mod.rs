//! Kernels without host code on a device: a card through its driver, or the emulated one.
//!
//! The worker holds the context and launches by itself: no process of the candidate's, nothing of its that runs on the CPU. A
//! session loads its module, has its inputs uploaded one by one, then outputs and workspaces allocated, and makes each
//! call launch by launch on one queue. After every call the bands beside all buffers are looked at, and the inputs' digests
//! compared. What a fault is called is `fault`'s; what lies where is `residency`'s, under a cap.

mod buffers;
mod candidate;
mod digest;
mod driver;
mod entry_call;
mod fault;
mod groups;
mod held;
mod memory;
mod placed;
mod points;
#[cfg(test)]
mod scripted;
mod session;
#[cfg(test)]
mod tests;
mod untimed;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;

use opt_shared::formula::{LOAD_SLOTS, STAGING_SLOT};
use opt_shared::message::Callee;
use opt_shared::outcome::{DevicePoint, MemoryPoint};
use opt_shared::units::Bytes;

use self::candidate::DeviceCode;
use self::digest::{Digest, Digester};
use self::driver::SharedDriver;
pub(crate) use self::driver::probe::tell as tell_card;
use self::groups::DeviceGroups;
use self::held::HeldDevice;
pub(crate) use self::held::WorkerDevice;
use self::memory::CudaMemory;
use self::placed::{Key, OnDevice};
use self::points::Points;
use self::session::DeviceSession;
use super::{Backend, Groups, InputFault, PoolSlot, Session, SessionError, VariantMemory, Varied, Wanted};
use crate::recorded::Recorded;
use crate::residency::device::{Device as _, DeviceError};
use crate::residency::host::HostDevice;
use crate::residency::load::Residency;

/// Said where a replay is asked for.
const NO_REPLAY: &str = "a replay on a device is not supported by this version";
/// Said where a profile is asked for.
const NO_TIMES: &str = "timing on a device is not supported by this version";

/// The backend of one lease: what lies on the device goes with it.
pub(crate) struct CudaBackend<'d> {
    device: &'d HeldDevice,
    /// Of digests.
    seed: u64,
    points: Points,
    state: RefCell<State>,
}

/// What belongs to the context.
#[derive(Default)]
struct State {
    residency: Option<Residency<CudaMemory, Key>>,
    /// What the session in hand uses; it stays until the next one has said what it needs.
    uses: Vec<Key>,
    /// Of inputs, as they were uploaded.
    digests: BTreeMap<Key, Digest>,
    digester: Option<Digester>,
}

impl<'d> CudaBackend<'d> {
    pub(crate) fn new(device: &'d HeldDevice) -> std::io::Result<Self> {
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self {
            device,
            seed: u64::from_le_bytes(seed),
            points: Points::default(),
            state: RefCell::default(),
        })
    }

    fn driver(&self) -> &SharedDriver {
        &self.device.driver
    }

    /// Looks at memory, as far as anything is placed.
    fn look(&self, point: MemoryPoint) {
        let mut state = self.state.borrow_mut();
        let placed = state.residency.as_mut().map_or(Bytes::ZERO, |it| it.device().marks().placed);
        self.points.look(point, placed, self.driver());
    }

    /// Nothing that lies on the device can be relied on: all of it goes, before the next session.
    fn clear(&self) {
        *self.state.borrow_mut() = State::default();
    }

    /// The context has failed. Another takes its place, where this process can have one.
    fn context_failed(&self) {
        let replaced = self.driver().borrow_mut().replace();
        if replaced.is_err() {
            self.device.lost.set(true);
        }
        self.clear();
    }
}

/// What was held for a lease goes with it, the digester's module and staging included.
impl Drop for CudaBackend<'_> {
    fn drop(&mut self) {
        let State { residency, digester, .. } = std::mem::take(&mut *self.state.borrow_mut());
        if let Some(digester) = digester {
            digester.unload(self.driver());
        }
        if let Some(residency) = residency {
            // What cannot be given back goes when the engine is dropped, or with the context.
            let _ = residency.dissolve();
        }
    }
}

impl State {
    fn residency(&mut self, device: &HeldDevice, points: &Points) -> &mut Residency<CudaMemory, Key> {
        self.residency.get_or_insert_with(|| {
            let memory = CudaMemory::new(Rc::clone(&device.driver), device.cap, points.clone());
            Residency::new(memory, LOAD_SLOTS, STAGING_SLOT)
        })
    }
}

/// Memory of a kind that this version does not have on a device.
pub(crate) struct NoMemory(Infallible);

impl VariantMemory for NoMemory {
    fn write(&self, _: u64, _: &[u8]) -> std::io::Result<()> {
        match self.0 {}
    }
}

impl Backend for CudaBackend<'_> {
    type Placed = OnDevice;
    type Pool = HostDevice;
    type Arena = Infallible;
    type Candidate = DeviceCode;
    type Variants = NoMemory;

    fn open(&self, callee: &Callee) -> Result<DeviceCode, SessionError> {
        DeviceCode::open(callee)
    }

    fn prepare(&self, _: &DeviceCode) {}

    fn groups<'b>(&'b self, wanted: &Wanted<'b>) -> Result<Box<dyn Groups<OnDevice> + 'b>, SessionError> {
        Ok(Box::new(DeviceGroups::new(*wanted, self.driver().borrow().card().clone())))
    }

    fn goes_on(&self) -> bool {
        self.device.is_usable()
    }

    fn device_points(&self) -> Vec<DevicePoint> {
        self.points.seen()
    }

    fn pool(&self, bytes: Bytes) -> Result<(HostDevice, Infallible), DeviceError> {
        Err(refused(NO_REPLAY, bytes))
    }

    fn place_in_pool(
        &self,
        _: Recorded,
        arena: &Infallible,
        _: &[Option<PoolSlot>],
    ) -> Result<OnDevice, InputFault> {
        match *arena {}
    }

    fn variants(&self, bytes: Bytes) -> Result<NoMemory, DeviceError> {
        Err(refused(NO_TIMES, bytes))
    }

    fn start<'b>(
        &'b self,
        candidate: &'b DeviceCode,
        entries: &'b [OnDevice],
    ) -> Result<Box<dyn Session + 'b>, SessionError> {
        Ok(Box::new(DeviceSession::start(self, candidate, entries)?))
    }

    fn start_timed<'b>(
        &'b self,
        candidate: &'b DeviceCode,
        _: &'b [OnDevice],
        _: Option<Varied<'b, NoMemory>>,
    ) -> Result<Box<dyn Session + 'b>, SessionError> {
        Err(SessionError::Run { candidate: candidate.callee.candidate.clone(), source: NO_TIMES.into() })
    }
}

fn refused(what: &'static str, _: Bytes) -> DeviceError {
    DeviceError::Failed { device: "the device", what: "making room", source: std::io::Error::other(what) }
}
