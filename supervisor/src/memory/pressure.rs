//! The kernel's word that processes wait for memory: a pressure trigger, armed where the kernel has one.
//!
//! Owns one descriptor to poll for priority events. What is done about pressure is the core's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Some task stalled for 150 ms within 2 s. Without privileges a window has to be a multiple of two seconds.
const TRIGGER: &[u8] = b"some 150000 2000000\0";

#[derive(Debug)]
pub struct PressureTrigger(OwnedFd);

impl PressureTrigger {
    /// `proc` is `/proc`. An error where the kernel keeps no pressure figures, or does not let us arm a trigger.
    pub fn arm(proc: &Path) -> Result<Self, Errno> {
        let path = proc.join("pressure/memory");
        let file = rustix::fs::open(&path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, TRIGGER)?;
        Ok(Self(file))
    }
}

impl AsFd for PressureTrigger {
    /// Ready for `POLLPRI` each time the trigger fires; `POLLERR` means that it is worth nothing any more.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_pressure_figures_is_an_error_and_no_more() {
        let root = tempfile::tempdir().expect("folder");
        assert_eq!(PressureTrigger::arm(root.path()).map(|_| ()), Err(Errno::NOENT));
    }

    #[test]
    fn what_is_armed_is_what_the_kernel_reads() {
        let root = tempfile::tempdir().expect("folder");
        std::fs::create_dir(root.path().join("pressure")).expect("folder");
        std::fs::write(root.path().join("pressure/memory"), "").expect("writes");
        PressureTrigger::arm(root.path()).expect("arms");
        let written = std::fs::read(root.path().join("pressure/memory")).expect("reads");
        assert_eq!(written, TRIGGER);
    }
}
