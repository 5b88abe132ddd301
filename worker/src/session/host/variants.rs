//! Memory for inputs that differ in every timed call. This worker writes it, and runners map it read-only.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use opt_shared::units::Bytes;
use rustix::fs::{FallocateFlags, fallocate};

use crate::memfd;
use crate::residency::device::DeviceError;
use crate::session::VariantMemory;

/// Memory that all sessions that are timed together share, so that they get the same bytes.
pub(crate) struct HostVariants {
    memory: File,
    /// A descriptor that can only be read.
    reader: File,
    bytes: Bytes,
}

impl HostVariants {
    pub(super) fn create(bytes: Bytes) -> Result<Self, DeviceError> {
        let failed = |what, source| DeviceError::Failed { device: "host memory", what, source };
        let memory = memfd::fixed("opt-variants", bytes)
            .map_err(|errno| failed("making room for variants of inputs", errno.into()))?;
        let memory = File::from(memory);
        let reader = File::open(format!("/proc/self/fd/{}", memory.as_raw_fd()))
            .map_err(|source| failed("opening variants of inputs for reading", source))?;
        Ok(Self { memory, reader, bytes })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    pub(super) fn bytes(&self) -> Bytes {
        self.bytes
    }
}

impl VariantMemory for HostVariants {
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(bytes, at)
    }

    fn clear(&self) -> io::Result<()> {
        let all = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.memory, all, 0, self.bytes.get())?)
    }
}
