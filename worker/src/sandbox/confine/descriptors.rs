//! Closes every descriptor that a sandboxed process must not have.

use std::os::fd::{AsRawFd, RawFd};

use super::{ConfineError, Descriptors};
use crate::sandbox::spawn::gaps_between;

const STANDARD_STREAMS: [RawFd; 3] = [0, 1, 2];

/// Closes all descriptors except the standard streams and `kept`.
pub(super) fn close_all_but(kept: &Descriptors<'_>) -> Result<(), ConfineError> {
    let mut numbers = STANDARD_STREAMS.to_vec();
    numbers.push(kept.worker.as_raw_fd());
    numbers.extend(kept.artifact.map(|artifact| artifact.as_raw_fd()));
    numbers.extend(kept.libraries.iter().map(AsRawFd::as_raw_fd));
    for (first, last) in gaps_between(numbers.clone()) {
        // SAFETY: this closes descriptors by number in a process that has just started. No value in that process owns a
        // descriptor that is not in `kept`.
        let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0_u32) };
        if result == 0 {
            continue;
        }
        let error = std::io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ENOSYS) {
            return Err(ConfineError::Refused { action: "closing descriptors", source: error });
        }
        return close_listed(&numbers);
    }
    Ok(())
}

/// Closes the descriptors that /proc lists, because `close_range` is missing before Linux 5.9.
fn close_listed(kept: &[RawFd]) -> Result<(), ConfineError> {
    let listing = std::fs::read_dir("/proc/self/fd")
        .map_err(|source| ConfineError::Refused { action: "listing descriptors", source })?;
    let open: Vec<RawFd> =
        listing.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for number in open.into_iter().filter(|number| !kept.contains(number)) {
        // SAFETY: as in `close_all_but`. The descriptor of the listing itself is closed already; closing it again
        // fails, and the error is ignored.
        unsafe { libc::close(number) };
    }
    Ok(())
}
