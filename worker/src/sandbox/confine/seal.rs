//! `mseal`: a map that cannot be unmapped, moved, replaced or given other permissions any more.

use std::io;
use std::ptr::NonNull;

use opt_shared::units::Bytes;

/// The same number on every architecture. Linux 6.10.
const SYS_MSEAL: libc::c_long = 462;

/// Seals the whole pages of `length` bytes at `start`, until the process ends.
///
/// `Unsupported` where the kernel has no such call (before 6.10, or built for 32 bits).
pub fn seal_map(start: NonNull<u8>, length: Bytes) -> io::Result<()> {
    // SAFETY: takes access away from a range, never gives any; the kernel checks that the range is mapped.
    if unsafe { libc::syscall(SYS_MSEAL, start.as_ptr(), length.to_usize(), 0_usize) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOSYS) => Err(io::Error::new(io::ErrorKind::Unsupported, error)),
        _ => Err(error),
    }
}
