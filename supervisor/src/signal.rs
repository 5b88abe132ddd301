//! SIGINT and SIGTERM as a readable descriptor.
//!
//! They are blocked before the first thread starts, so that no thread is ever interrupted by them; workers unblock
//! what they inherit.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};

/// The thread that waits for the last signal does nothing else.
const STACK: usize = 64 * 1024;

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

    /// The run is over, and what is left may be held up by others: the next signal ends the process with this exit
    /// code. Where no thread can be had, nothing does.
    pub fn end_with(self, code: u8) {
        let _ = std::thread::Builder::new().name("signals".to_owned()).stack_size(STACK).spawn(move || {
            let mut ready = [PollFd::from_borrowed_fd(self.descriptor(), PollFlags::IN)];
            while poll(&mut ready, None) == Err(rustix::io::Errno::INTR) {}
            std::process::exit(i32::from(code));
        });
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
