//! Kernels on a CUDA device: refused until there is one.

use std::convert::Infallible;

use opt_shared::language::NO_CUDA;
use opt_shared::message::Callee;
use opt_shared::units::Bytes;

use super::{
    Backend, Candidate, Groups, InputFault, PoolSlot, Session, SessionError, VariantMemory, Varied, Wanted,
};
use crate::recorded::Recorded;
use crate::residency::device::DeviceError;
use crate::residency::host::HostDevice;

pub(crate) struct CudaBackend;

/// An artifact for the device. There is none.
pub(crate) struct Module(Infallible);

impl Candidate for Module {
    fn cpus(&self) -> &[u32] {
        match self.0 {}
    }
}

/// An entry on the device. There is none.
pub(crate) struct OnDevice(Infallible);

impl AsRef<Recorded> for OnDevice {
    fn as_ref(&self) -> &Recorded {
        match self.0 {}
    }
}

/// Memory of the device. There is none.
pub(crate) struct NoMemory(Infallible);

impl VariantMemory for NoMemory {
    fn write(&self, _: u64, _: &[u8]) -> std::io::Result<()> {
        match self.0 {}
    }
}

fn refused(candidate: &str) -> SessionError {
    SessionError::Run { candidate: candidate.to_owned(), source: NO_CUDA.into() }
}

impl Backend for CudaBackend {
    type Placed = OnDevice;
    type Pool = HostDevice;
    type Arena = Infallible;
    type Candidate = Module;
    type Variants = NoMemory;

    fn open(&self, callee: &Callee) -> Result<Module, SessionError> {
        Err(refused(&callee.candidate))
    }

    fn prepare(&self, candidate: &Module) {
        match candidate.0 {}
    }

    fn groups<'b>(&'b self, wanted: &Wanted<'b>) -> Result<Box<dyn Groups<OnDevice> + 'b>, SessionError> {
        Err(refused(&wanted.callee.candidate))
    }

    fn pool(&self, bytes: Bytes) -> Result<(HostDevice, Infallible), DeviceError> {
        Err(DeviceError::NoRoom { device: "cuda", asked: bytes, free: Bytes::ZERO, capacity: Bytes::ZERO })
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
        Err(DeviceError::NoRoom { device: "cuda", asked: bytes, free: Bytes::ZERO, capacity: Bytes::ZERO })
    }

    fn start<'b>(
        &'b self,
        candidate: &'b Module,
        _: &'b [OnDevice],
    ) -> Result<Box<dyn Session + 'b>, SessionError> {
        match candidate.0 {}
    }

    fn start_timed<'b>(
        &'b self,
        candidate: &'b Module,
        _: &'b [OnDevice],
        _: Option<Varied<'b, NoMemory>>,
    ) -> Result<Box<dyn Session + 'b>, SessionError> {
        match candidate.0 {}
    }
}
