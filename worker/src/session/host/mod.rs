//! Runs kernels on the CPU. Each session is a sandboxed runner process that this module controls.

mod callable;
mod clock;
mod copied;
mod death;
mod elf;
mod error;
mod evict;
mod fresh;
mod groups;
mod libraries;
mod outputs;
mod placed;
mod process;
pub mod read_ahead;
mod session;
mod spread;
mod variants;
mod view;
mod waits;
mod wire_call;
mod zygotes;

use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;

use opt_shared::ids::LeaseId;
use opt_shared::message::Callee;
use opt_shared::units::Bytes;

use self::callable::Callable;
use self::groups::HostGroups;
use self::outputs::Slots;
use self::placed::Placed;
use self::session::HostSession;
use self::variants::HostVariants;
pub(crate) use self::zygotes::Zygotes;
use super::{Backend, Groups, InputFault, PoolSlot, Session, SessionError, TimedSession, Varied, Wanted};
use crate::link::{Held, Link};
use crate::recorded::Recorded;
use crate::residency::device::DeviceError;
use crate::residency::host::HostDevice;
use crate::sandbox::scheduling::{Scheduling, set_scheduling};

pub(crate) struct HostBackend<'l> {
    link: &'l Link,
    lease: LeaseId,
    zygotes: &'l Rc<Zygotes>,
}

impl<'l> HostBackend<'l> {
    pub(crate) fn new(link: &'l Link, lease: LeaseId, zygotes: &'l Rc<Zygotes>) -> Self {
        Self { link, lease, zygotes }
    }
}

impl Backend for HostBackend<'_> {
    type Placed = Placed;
    type Pool = HostDevice;
    type Arena = Arc<File>;
    type Candidate = Callable;
    type Variants = HostVariants;

    fn open(&self, callee: &Callee) -> Result<Callable, SessionError> {
        Callable::open(callee, Rc::clone(self.zygotes))
    }

    fn prepare(&self, candidate: &Callable) {
        candidate.start_ahead(self.link);
    }

    fn prepare_beside(&self, candidate: &Callable) {
        candidate.start_beside(self.link);
    }

    fn make_ahead(&self, candidate: &Callable) {
        candidate.copy_ahead(self.link);
    }

    fn groups<'b>(&'b self, wanted: &Wanted<'b>) -> Result<Box<dyn Groups<Placed> + 'b>, SessionError> {
        Ok(Box::new(HostGroups::new(self.link, wanted)?))
    }

    fn pool_grain(&self) -> Bytes {
        Bytes::from(rustix::param::page_size())
    }

    fn pool(&self, bytes: Bytes) -> Result<(HostDevice, Arc<File>), DeviceError> {
        let device = HostDevice::create(bytes)?;
        self.link.holds(Held::Inputs, bytes);
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

    fn variants(&self, bytes: Bytes) -> Result<HostVariants, DeviceError> {
        let variants = HostVariants::create(bytes)?;
        self.link.holds(Held::Variants, bytes);
        Ok(variants)
    }

    fn start<'b>(
        &'b self,
        candidate: &'b Callable,
        entries: &'b [Placed],
    ) -> Result<Box<dyn Session + 'b>, SessionError> {
        let session =
            HostSession::start(self.link, self.lease, candidate, entries, Slots::AgainstGuards, None)?;
        Ok(Box::new(session))
    }

    fn start_timed<'b>(
        &'b self,
        candidate: &'b Callable,
        entries: &'b [Placed],
        varied: Option<Varied<'b, HostVariants>>,
        how: TimedSession,
    ) -> Result<Box<dyn Session + 'b>, SessionError> {
        // If the operating system refuses this, timing still works.
        let _ = set_scheduling(0, Scheduling::Short);
        let slots = if how.in_turns { Slots::Separate } else { Slots::Ring };
        let mut session = HostSession::start(self.link, self.lease, candidate, entries, slots, varied)?;
        session.watch.set_priority(how.priority);
        session.watch.set_brief(how.brief);
        Ok(Box::new(session))
    }
}
