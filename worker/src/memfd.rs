//! Creates memory files, and seals them so that their size, or also their contents, can never change.

use std::os::fd::OwnedFd;

use opt_shared::units::Bytes;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

pub(crate) fn fixed(name: &str, size: Bytes) -> rustix::io::Result<OwnedFd> {
    let memfd = growing(name)?;
    ftruncate(&memfd, size.get())?;
    fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memfd)
}

/// Creates an empty memory file that can be written, and that is later passed to [`freeze`].
pub(crate) fn growing(name: &str) -> rustix::io::Result<OwnedFd> {
    memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
}

/// Seals the file, so that neither its size nor its contents can change any more. Fails while the file is mapped
/// writable.
pub(crate) fn freeze(memfd: &OwnedFd) -> rustix::io::Result<()> {
    fcntl_add_seals(memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)
}
