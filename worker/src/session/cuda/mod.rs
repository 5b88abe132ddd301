//! Runs kernels that have no host code on a device: on a card, through its driver, or on the emulated device.
//!
//! The worker owns the context and launches the kernels itself. No code of the candidate runs on the CPU. A session
//! uploads the inputs one by one, allocates outputs and workspaces, loads the module, and makes each call as launches
//! on one queue. After every call, or every timed block, it checks the guard bands (known bytes beside each buffer)
//! of inputs and workspaces, and compares the digests of the inputs. In a verification, outputs have guard bands, too.
//! `fault` turns errors into verdicts, and `timed` times calls with the device's clock. `crate::residency` places
//! buffers under a cap.

mod buffers;
mod candidate;
mod digest;
mod driver;
mod entry_call;
mod fault;
mod groups;
mod held;
mod launched;
mod memory;
mod placed;
mod points;
#[cfg(test)]
mod scripted;
mod session;
#[cfg(test)]
mod tests;
mod timed;
pub mod trial;
mod untimed;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use opt_shared::formula::{LOAD_SLOTS, STAGING_SLOT};
use opt_shared::message::Callee;
use opt_shared::outcome::{DevicePoint, EmulatedKernel, MemoryPoint};
use opt_shared::placement::whole_grains;
use opt_shared::units::Bytes;

use self::candidate::DeviceCode;
use self::digest::{Digest, Digester, Part};
pub(crate) use self::driver::probe::tell as tell_card;
use self::driver::{DriverError, SharedDriver};
use self::entry_call::{EntryCall, Outputs};
use self::groups::DeviceGroups;
use self::held::HeldDevice;
pub(crate) use self::held::WorkerDevice;
use self::memory::CudaMemory;
use self::placed::{Key, OnDevice};
use self::points::Points;
use self::session::DeviceSession;
use self::timed::TimedDevice;
use self::timed::memory::TimingMemory;
use self::timed::variants::DeviceVariants;
use super::{Backend, Groups, InputFault, PoolSlot, Session, SessionError, TimedSession, Varied, Wanted};
use crate::recorded::Recorded;
use crate::residency::device::{Device as _, DeviceError};
use crate::residency::load::Residency;

pub(crate) struct CudaBackend<'d> {
    device: &'d HeldDevice,
    /// The maximum number of bytes that may be placed on the device.
    cap: Bytes,
    /// The part of the cap that is reserved for inputs with new values, or for a replay's pool.
    set_aside: Cell<Bytes>,
    seed: u64,
    points: Points,
    state: RefCell<State>,
}

/// The state that is lost with the context.
#[derive(Default)]
struct State {
    residency: Option<Residency<CudaMemory, Key>>,
    /// The inputs of the last session. They stay on the device until the next session has named its own, because it may
    /// use some of them again.
    uses: Vec<Key>,
    /// The digest of each input right after its upload; for a constant of a replay, at its first use.
    digests: BTreeMap<Key, Digest>,
    digester: Option<Digester>,
    timing: Option<TimingMemory>,
}

impl<'d> CudaBackend<'d> {
    pub(crate) fn new(device: &'d HeldDevice, cap: Bytes) -> std::io::Result<Self> {
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self {
            device,
            cap,
            set_aside: Cell::default(),
            seed: u64::from_le_bytes(seed),
            points: Points::default(),
            state: RefCell::default(),
        })
    }

    fn driver(&self) -> &SharedDriver {
        &self.device.driver
    }

    /// Raises the high-water marks of a named point to the memory in use now.
    fn note_memory(&self, point: MemoryPoint) {
        let mut state = self.state.borrow_mut();
        let placed = state.residency.as_mut().map_or(Bytes::ZERO, |it| it.device().marks().placed);
        self.points.note(point, placed, self.driver());
    }

    fn clear(&self) {
        *self.state.borrow_mut() = State::default();
    }

    fn replace_context(&self) {
        let replaced = self.driver().lock().replace();
        if replaced.is_err() {
            self.device.lost.set(true);
        }
        self.clear();
    }
}

/// Releases everything, including the digester's module and the staging memory.
impl Drop for CudaBackend<'_> {
    fn drop(&mut self) {
        let State { residency, digester, .. } = std::mem::take(&mut *self.state.borrow_mut());
        if let Some(digester) = digester {
            digester.unload(self.driver());
        }
        if let Some(residency) = residency {
            // Buffers that cannot be released now are released when their `CudaMemory` is dropped, or with the context.
            let _ = residency.dissolve();
        }
    }
}

impl State {
    /// Computes the digests of a call's inputs as they are now. `sums` is the address of device memory for one sum per
    /// input.
    fn digests_of(
        &mut self,
        driver: &SharedDriver,
        seed: u64,
        call: &EntryCall,
        sums: u64,
    ) -> Result<Vec<Digest>, DriverError> {
        let parts: Vec<Part> =
            call.inputs.iter().map(|it| Part { address: it.address, bytes: it.bands.bytes }).collect();
        let digester = match self.digester.take() {
            Some(digester) => digester,
            None => Digester::load(driver, seed)?,
        };
        let found = digester.of(driver, &parts, sums);
        self.digester = Some(digester);
        found
    }

    /// Records the digest of each input that has none yet. If an input in a pool has changed since it was loaded or
    /// since an earlier step used it, returns its name.
    fn note_digests(
        &mut self,
        driver: &SharedDriver,
        seed: u64,
        (entry, call): (&OnDevice, &EntryCall),
        sums: u64,
    ) -> Result<Option<String>, DriverError> {
        let digests = self.digests_of(driver, seed, call, sums)?;
        for (input, digest) in entry.inputs.iter().zip(digests) {
            let altered = match self.digests.get(&input.key) {
                // An input that an earlier session has uploaded keeps its first digest.
                Some(first) => input.pool_address().is_some() && *first != digest,
                None => {
                    self.digests.insert(input.key.clone(), digest);
                    input.is_altered(driver)?
                }
            };
            if altered {
                return Ok(Some(input.name.clone()));
            }
        }
        Ok(None)
    }

    fn residency(&mut self, backend: &CudaBackend<'_>) -> &mut Residency<CudaMemory, Key> {
        self.residency.get_or_insert_with(|| {
            let cap = backend.cap - backend.set_aside.get();
            let memory = CudaMemory::new(backend.driver().clone(), cap, backend.points.clone());
            Residency::new(memory, LOAD_SLOTS, STAGING_SLOT)
        })
    }
}

impl Backend for CudaBackend<'_> {
    type Placed = OnDevice;
    type Pool = CudaMemory;
    type Arena = ();
    type Candidate = DeviceCode;
    type Variants = DeviceVariants;

    fn open(&self, callee: &Callee) -> Result<DeviceCode, SessionError> {
        DeviceCode::open(callee)
    }

    fn prepare(&self, _: &DeviceCode) {}

    fn groups<'b>(&'b self, wanted: &Wanted<'b>) -> Result<Box<dyn Groups<OnDevice> + 'b>, SessionError> {
        // Discards the counts that a failed task may have left.
        self.driver().lock().take_counts();
        Ok(Box::new(DeviceGroups::new(*wanted, self.driver().lock().card().clone())))
    }

    fn can_start_sessions(&self) -> bool {
        self.device.is_usable()
    }

    fn is_device(&self) -> bool {
        true
    }

    fn device_points(&self) -> Vec<DevicePoint> {
        self.points.seen()
    }

    fn emulated_kernels(&self) -> Vec<EmulatedKernel> {
        let mut kernels = self.driver().lock().take_counts();
        kernels.retain(|it| it.symbol != digest::SYMBOL);
        kernels
    }

    fn pool_grain(&self) -> Bytes {
        self.driver().lock().card().grain
    }

    fn pool(&self, bytes: Bytes) -> Result<(CudaMemory, ()), DeviceError> {
        if self.cap < bytes {
            return Err(refused("the pool", bytes, self.cap));
        }
        self.set_aside.set(bytes);
        Ok((CudaMemory::new(self.driver().clone(), bytes, self.points.clone()), ()))
    }

    fn place_in_pool(
        &self,
        recorded: Recorded,
        (): &(),
        slots: &[Option<PoolSlot>],
    ) -> Result<OnDevice, InputFault> {
        Ok(OnDevice::in_pool(recorded, slots))
    }

    fn variants(&self, bytes: Bytes) -> Result<DeviceVariants, DeviceError> {
        let taken = whole_grains(bytes, self.driver().lock().card().grain);
        if self.cap < taken {
            return Err(refused("inputs with new values", taken, self.cap));
        }
        let variants = DeviceVariants::allocate(self.driver(), bytes)?;
        self.set_aside.set(taken);
        Ok(variants)
    }

    fn start<'b>(
        &'b self,
        candidate: &'b DeviceCode,
        entries: &'b [OnDevice],
    ) -> Result<Box<dyn Session + 'b>, SessionError> {
        Ok(Box::new(DeviceSession::start(self, candidate, entries, Outputs::OfOneCall)?))
    }

    fn start_timed<'b>(
        &'b self,
        candidate: &'b DeviceCode,
        entries: &'b [OnDevice],
        varied: Option<Varied<'b, DeviceVariants>>,
        how: TimedSession,
    ) -> Result<Box<dyn Session + 'b>, SessionError> {
        Ok(Box::new(TimedDevice::start(self, candidate, entries, varied, how)?))
    }
}

fn refused(what: &str, bytes: Bytes, cap: Bytes) -> DeviceError {
    let source = std::io::Error::other(format!("{what} would take {bytes}, and the lease's cap is {cap}"));
    DeviceError::Failed { device: "the device", what: "making room", source }
}
