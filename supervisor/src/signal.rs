//! SIGINT, SIGTERM and SIGHUP as a readable descriptor. Reaching a limit on file sizes counts as one of them.
//!
//! They are blocked before the first thread starts, so that no thread is ever interrupted by them; workers
//! unblock what they inherit.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};

/// Stack size of the thread that only waits for the last signal.
const STACK: usize = 64 * 1024;

pub struct Signals {
    descriptor: SignalFd,
}

#[derive(Debug, thiserror::Error)]
#[error("setting up the handler for Ctrl-C")]
pub struct SignalError(#[from] nix::Error);

/// SIGXFSZ goes to whichever thread wrote, and would end the process. The write fails anyway, and the run ends as
/// if it had been interrupted, because it has no room for its rows any more.
fn end_at_the_file_limit() -> nix::Result<()> {
    extern "C" fn interrupt(_: std::ffi::c_int) {
        // SAFETY: getpid and kill are async-signal-safe, and the signal is one that we block and read.
        unsafe { nix::libc::kill(nix::libc::getpid(), nix::libc::SIGTERM) };
    }
    let action = SigAction::new(SigHandler::Handler(interrupt), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler calls only async-signal-safe functions, and no other is installed for this signal.
    unsafe { sigaction(Signal::SIGXFSZ, &action) }.map(drop)
}

/// Whether a signal is ignored; if it were blocked, it would be delivered all the same.
fn is_ignored(signal: Signal) -> bool {
    // SAFETY: all-zero bytes are a valid sigaction, which the call fills in; nothing is changed.
    unsafe {
        let mut action: nix::libc::sigaction = std::mem::zeroed();
        nix::libc::sigaction(signal as i32, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == nix::libc::SIG_IGN
    }
}

impl Signals {
    /// Call this before any thread is started.
    pub fn block() -> Result<Self, SignalError> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGINT);
        set.add(Signal::SIGTERM);
        // The terminal is gone, unless the user said that this does not matter (`nohup`).
        if !is_ignored(Signal::SIGHUP) {
            set.add(Signal::SIGHUP);
        }
        set.thread_block()?;
        end_at_the_file_limit()?;
        let descriptor = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { descriptor })
    }

    /// Number of signals since the last call.
    pub fn take(&self) -> u32 {
        let mut count = 0;
        while let Ok(Some(_)) = self.descriptor.read_signal() {
            count += 1;
        }
        count
    }

    /// The run is over, but something else may delay the end of the process: the next signal ends it with this
    /// exit code. If no thread can be started, signals have no effect.
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
