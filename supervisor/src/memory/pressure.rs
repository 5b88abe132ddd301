//! Arms a trigger with which Linux reports that tasks are waiting for memory. The trigger is part of Linux's pressure
//! stall information (PSI).
//!
//! The main loop polls the trigger's descriptor. The core decides what to do when the trigger fires.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The definition of the trigger, which fires when tasks were stalled for 150 ms within a window of 2 s. For a process
/// without privileges, the window must be a multiple of 2 s.
pub(super) const TRIGGER: &[u8] = b"some 150000 2000000\0";

#[derive(Debug)]
pub struct PressureTrigger(OwnedFd);

impl PressureTrigger {
    /// Arms the trigger. Fails if Linux has no PSI, or does not allow triggers.
    pub fn arm(proc: &Path) -> Result<Self, Errno> {
        let path = proc.join("pressure/memory");
        let file = rustix::fs::open(&path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, TRIGGER)?;
        Ok(Self(file))
    }
}

impl AsFd for PressureTrigger {
    /// Returns the descriptor to poll. It is ready for `POLLPRI` each time the trigger fires. `POLLERR` means that the
    /// trigger will not fire again.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arm_fails_without_psi() {
        let root = tempfile::tempdir().expect("folder");
        assert_eq!(PressureTrigger::arm(root.path()).map(|_| ()), Err(Errno::NOENT));
    }

    #[test]
    fn arm_writes_the_trigger() {
        let root = tempfile::tempdir().expect("folder");
        std::fs::create_dir(root.path().join("pressure")).expect("folder");
        std::fs::write(root.path().join("pressure/memory"), "").expect("writes");
        PressureTrigger::arm(root.path()).expect("arms");
        let written = std::fs::read(root.path().join("pressure/memory")).expect("reads");
        assert_eq!(written, TRIGGER);
    }
}
