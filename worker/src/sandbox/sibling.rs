//! Copies this process into a sibling process: both have the same parent, which watches and reaps the copy like any
//! other runner.
//!
//! The caller decides what the copy does. A process may be copied only while it has a single thread.

use std::ffi::c_int;
use std::io;

use super::spawn::{self, Cloned, Namespaces, SpawnError, SpawnedRunner};

/// The process in which `clone_sibling` has returned. It returns once in the copy and once in the original.
pub(crate) enum Sibling {
    Copy,
    Original(SpawnedRunner),
}

/// Clones this process into those of the wanted namespaces that Linux grants.
///
/// # Safety
///
/// This process must have a single thread. After the call, both processes own its resources, so the copy must give up
/// those that are not meant for it.
pub(crate) unsafe fn clone_sibling(wanted: Namespaces) -> Result<Sibling, SpawnError> {
    let number = thread_number()?;
    let flags = libc::CLONE_PARENT | libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID;
    // SAFETY: the caller guarantees a single thread, and `number` is where the C library itself keeps this thread's
    // number.
    let clone = |namespaces: Namespaces| unsafe { spawn::clone(flags | namespaces.flags(), number) };
    let (cloned, namespaces_used, protections) = spawn::with_fallback(wanted, clone)?;
    Ok(match cloned {
        Cloned::Copy => Sibling::Copy,
        Cloned::Original(pid, pidfd) => {
            Sibling::Original(SpawnedRunner { pid, pidfd, namespaces_used, protections })
        }
    })
}

/// Returns the location in which the C library keeps this thread's number. `clone` writes the copy's number there, as
/// `fork` would.
fn thread_number() -> Result<*mut c_int, SpawnError> {
    let refused = |source| SpawnError::Prepare { action: "looking for this thread's number", source };
    let mut location: *mut c_int = std::ptr::null_mut();
    // SAFETY: stores one pointer at the given location.
    if unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &raw mut location) } != 0 {
        return Err(refused(io::Error::last_os_error()));
    }
    // SAFETY: this is the location that was registered when this thread started, if any. It lives as long as the
    // thread.
    let number = if location.is_null() { 0 } else { unsafe { *location } };
    if number == rustix::thread::gettid().as_raw_nonzero().get() {
        Ok(location)
    } else {
        Err(refused(io::ErrorKind::NotFound.into()))
    }
}
