//! Kernels on the CPU: each session is a confined runner process, and all that this worker knows of it.
//!
//! Owns the trusted side of a runner: what it maps (`placed`, `copied`, `outputs`), its start, its commands and its end
//! (`process`, `session`), its times (`clock`), what its death is called (`death`), and how captures are read for it
//! (`groups`, `read_ahead`).

mod callable;
mod clock;
mod copied;
mod death;
mod elf;
mod groups;
mod libraries;
mod outputs;
mod placed;
mod process;
pub mod read_ahead;
mod session;

use std::fs::File;
use std::sync::Arc;

use opt_shared::ids::LeaseId;
use opt_shared::message::{Callee, FromWorker};
use opt_shared::units::Bytes;

use self::callable::Callable;
use self::groups::HostGroups;
use self::placed::Placed;
use self::session::HostSession;
use super::{Backend, Groups, InputFault, PoolSlot, Session, SessionError, Slots, Wanted};
use crate::link::Link;
use crate::recorded::Recorded;
use crate::residency::device::DeviceError;
use crate::residency::host::HostDevice;

/// The CPU backend of one lease.
pub(crate) struct HostBackend<'l> {
    link: &'l Link,
    lease: LeaseId,
}

impl<'l> HostBackend<'l> {
    pub(crate) fn new(link: &'l Link, lease: LeaseId) -> Self {
        Self { link, lease }
    }
}

impl Backend for HostBackend<'_> {
    type Placed = Placed;
    type Pool = HostDevice;
    type Arena = Arc<File>;
    type Candidate = Callable;

    fn open(&self, callee: &Callee) -> Result<Callable, SessionError> {
        Callable::open(callee)
    }

    fn groups<'b>(&'b self, wanted: &Wanted<'b>) -> Result<Box<dyn Groups<Placed> + 'b>, SessionError> {
        Ok(Box::new(HostGroups::new(self.link, wanted)?))
    }

    fn pool(&self, bytes: Bytes) -> Result<(HostDevice, Arc<File>), DeviceError> {
        let device = HostDevice::create(bytes)?;
        // A supervisor that is gone ends this worker.
        let _ = self.link.send(FromWorker::Holds { bytes });
        let arena = device.reader()?;
        Ok((device, Arc::new(arena)))
    }

    fn place_in_pool(
        &self,
        recorded: Recorded,
        arena: &Arc<File>,
        slots: &[Option<PoolSlot>],
    ) -> Result<Placed, InputFault> {
        let mut placed = Placed::in_files(recorded)?;
        placed.move_into_pool(arena, slots);
        Ok(placed)
    }

    fn start<'b>(
        &'b self,
        candidate: &'b Callable,
        entries: &'b [Placed],
        slots: Slots,
    ) -> Result<Box<dyn Session + 'b>, SessionError> {
        Ok(Box::new(HostSession::start(self.link, self.lease, candidate, entries, slots)?))
    }
}
