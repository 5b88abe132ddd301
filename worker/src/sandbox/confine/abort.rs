//! SIGABRT in a process that is pid 1 of its namespace.
//!
//! Linux drops every signal that the init process of a namespace sends to itself and does not handle, so after
//! `abort()` the C library would fall back to another fatal signal. Our handler exits with a status that the worker
//! reads as SIGABRT. A candidate that exits with this status by itself is therefore reported as aborted.

use std::io;

/// The status with which shells represent "ended by SIGABRT".
pub const ABORT_STATUS: i32 = 128 + libc::SIGABRT;

/// Installs the handler if we are pid 1; otherwise abort works by itself.
pub(super) fn report_aborts() -> io::Result<()> {
    if std::process::id() != 1 {
        return Ok(());
    }
    // SAFETY: zeroed is a valid sigaction; the handler only calls _exit, which is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = exit_as_aborted as extern "C" fn(libc::c_int) as usize;
        // Use the alternate stack if there is one, because a stack overflow ends in abort too.
        action.sa_flags = libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGABRT, &raw const action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn exit_as_aborted(_signal: libc::c_int) {
    // SAFETY: async-signal-safe, and it does not return.
    unsafe { libc::_exit(ABORT_STATUS) }
}
