//! Delivers SIGINT, SIGTERM and SIGHUP through a readable descriptor. If the file size limit is exceeded, this counts
//! as SIGTERM.
//!
//! The three signals are blocked before the first thread starts (SIGHUP only if it is not ignored), so that they never
//! interrupt a thread. Workers inherit the blocked signals and unblock them.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};

/// The stack size, in bytes, of the thread that only waits for the last signal.
const STACK: usize = 64 * 1024;

pub struct Signals {
    descriptor: SignalFd,
}

#[derive(Debug, thiserror::Error)]
#[error("setting up the handler for Ctrl-C")]
pub struct SignalError(#[from] nix::Error);

/// Turns SIGXFSZ into SIGTERM. Linux sends SIGXFSZ to a thread whose write exceeds the file size limit. By default,
/// this ends the process. Instead, the run ends as if it had been interrupted, because its rows can no longer be
/// written.
fn end_at_the_file_limit() -> nix::Result<()> {
    extern "C" fn interrupt(_: std::ffi::c_int) {
        // SAFETY: getpid and kill are async-signal-safe, and SIGTERM is a signal that this program blocks and reads.
        unsafe { nix::libc::kill(nix::libc::getpid(), nix::libc::SIGTERM) };
    }
    let action = SigAction::new(SigHandler::Handler(interrupt), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler calls only async-signal-safe functions, and no other is installed for this signal.
    unsafe { sigaction(Signal::SIGXFSZ, &action) }.map(drop)
}

/// Returns whether a signal is ignored. An ignored SIGHUP must not be blocked, because the descriptor would then report
/// it.
fn is_ignored(signal: Signal) -> bool {
    // SAFETY: all-zero bytes are a valid sigaction, which the call fills in; nothing is changed.
    unsafe {
        let mut action: nix::libc::sigaction = std::mem::zeroed();
        nix::libc::sigaction(signal as i32, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == nix::libc::SIG_IGN
    }
}

/// Restores the default action of SIGCHLD, because this program may have been started with this signal ignored. Linux
/// would then discard how children end. Processes that are started later inherit the default action.
pub fn notice_children() {
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed. This cannot fail for a signal that exists.
    let _ = unsafe { sigaction(Signal::SIGCHLD, &action) };
}

/// Lets Ctrl-C end a child, while this process continues in order to clean up. A handler is used instead of ignoring
/// the signal, because the child's program would inherit an ignored signal.
pub fn leave_interrupts_to_child() {
    extern "C" fn nothing(_: std::ffi::c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing. If it cannot be installed, Ctrl-C ends this process too.
    let _ = unsafe { sigaction(Signal::SIGINT, &action) };
}

impl Signals {
    /// Blocks the signals. Call this before any thread is started.
    pub fn block() -> Result<Self, SignalError> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGINT);
        set.add(Signal::SIGTERM);
        // SIGHUP means that the terminal is gone. `nohup` ignores it, so that the run continues.
        if !is_ignored(Signal::SIGHUP) {
            set.add(Signal::SIGHUP);
        }
        set.thread_block()?;
        end_at_the_file_limit()?;
        let descriptor = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { descriptor })
    }

    /// Returns the number of signals that have arrived since the last call. Signals of one kind that arrive together
    /// can count as one.
    pub fn take(&self) -> u32 {
        let mut count = 0;
        while let Ok(Some(_)) = self.descriptor.read_signal() {
            count += 1;
        }
        count
    }

    /// Makes the next signal end the process with this exit code. This is called when the run is over but something may
    /// still delay the end of the process. If the thread for this cannot be started, signals have no effect.
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
