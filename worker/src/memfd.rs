//! Memory files that cannot be resized: whoever maps one never finds its end moved.

use std::os::fd::OwnedFd;

use opt_shared::units::Bytes;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// One of this size, zeroed, for ever.
pub(crate) fn fixed(name: &str, size: Bytes) -> rustix::io::Result<OwnedFd> {
    let memfd = growing(name)?;
    ftruncate(&memfd, size.get())?;
    fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memfd)
}

/// An empty one, to be written to and then given to [`freeze`].
pub(crate) fn growing(name: &str) -> rustix::io::Result<OwnedFd> {
    memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
}

/// From now on neither its size nor its content changes. Refused while it is mapped writable.
pub(crate) fn freeze(memfd: &OwnedFd) -> rustix::io::Result<()> {
    fcntl_add_seals(memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)
}
