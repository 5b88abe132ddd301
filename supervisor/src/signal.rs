//! SIGINT and SIGTERM as a readable descriptor.
//!
//! They are blocked before the first thread starts, so that no thread is ever interrupted by them; workers unblock
//! what they inherit.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

pub struct Signals {
    descriptor: SignalFd,
}

#[derive(Debug, thiserror::Error)]
#[error("setting up the handler for Ctrl-C")]
pub struct SignalError(#[from] nix::Error);

impl Signals {
    /// Call before any thread is started.
    pub fn block() -> Result<Self, SignalError> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGINT);
        set.add(Signal::SIGTERM);
        set.thread_block()?;
        let descriptor = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { descriptor })
    }

    /// How many came since the last call.
    pub fn take(&self) -> u32 {
        let mut count = 0;
        while let Ok(Some(_)) = self.descriptor.read_signal() {
            count += 1;
        }
        count
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
