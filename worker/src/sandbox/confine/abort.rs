//! SIGABRT in a process that is pid 1 of its namespace.
//!
//! The kernel drops every signal that a namespace's init sends itself and does not handle, so `abort()` would end
//! as whatever the C library's last resort raises. A handler gives it an exit status instead, which the worker
//! reads back as SIGABRT. A candidate that exits with this status by hand is taken for one that aborted; both are
//! its own doing.

use std::io;

/// As shells write "ended by SIGABRT".
pub const ABORT_STATUS: i32 = 128 + libc::SIGABRT;

/// Installs the handler if we are pid 1; otherwise abort does what it says.
pub(super) fn report_aborts() -> io::Result<()> {
    if std::process::id() != 1 {
        return Ok(());
    }
    // SAFETY: zeroed is a valid sigaction; the handler only calls _exit, which is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = exit_as_aborted as extern "C" fn(libc::c_int) as usize;
        // On the alternate stack where there is one: an overflowed stack ends in abort as well.
        action.sa_flags = libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGABRT, &raw const action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn exit_as_aborted(_signal: libc::c_int) {
    // SAFETY: async-signal-safe, and nothing of this process is to run any more.
    unsafe { libc::_exit(ABORT_STATUS) }
}
