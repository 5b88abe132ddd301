//! Makes a mapping permanent with `mseal`. A sealed mapping can no longer be unmapped, moved or replaced, and its
//! permissions cannot change.

use std::io;
use std::ptr::NonNull;

use opt_shared::units::Bytes;

/// The number of the call, which is the same on both architectures. Linux has had the call since 6.10.
const SYS_MSEAL: libc::c_long = 462;

/// Seals the whole pages of the `length` bytes at `start`, until the process ends.
///
/// Fails with `Unsupported` on Linux before 6.10 or built for 32 bits.
pub fn seal_map(start: NonNull<u8>, length: Bytes) -> io::Result<()> {
    // SAFETY: this only forbids later changes to a range of memory, and Linux checks that the range is mapped.
    if unsafe { libc::syscall(SYS_MSEAL, start.as_ptr(), length.to_usize(), 0_usize) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOSYS) => Err(io::Error::new(io::ErrorKind::Unsupported, error)),
        _ => Err(error),
    }
}
