//! Makes SIGABRT end a process that is pid 1 of its namespace.
//!
//! Linux drops every signal that the init process of a namespace sends to itself and does not handle. After `abort()`,
//! the C library would therefore fall back to another fatal signal. So our handler exits with a status that the worker
//! reads as SIGABRT. As a consequence, a candidate that exits with this status by itself is reported as aborted.

use std::io;

/// The status with which shells represent "ended by SIGABRT".
pub const ABORT_STATUS: i32 = 128 + libc::SIGABRT;

/// Installs the handler if this process is pid 1. In other processes, abort works without it.
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
