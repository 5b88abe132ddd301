//! The interface of a device on which bytes are placed. The rest of `residency` uses devices only through this trait.
//!
//! A device has a fixed capacity, allocates buffers within it, and copies in order on one queue, while its caller
//! continues. It keeps its own high-water marks, against which tests check the ledger.

use std::io;

use opt_shared::units::Bytes;

/// Allocated memory of a device. `Device::release` frees it. A buffer cannot be cloned, so it cannot be used after it
/// has been released.
#[derive(Debug, PartialEq, Eq)]
pub struct Buffer {
    address: u64,
    bytes: Bytes,
    placed: Bytes,
}

impl Buffer {
    /// Describes allocated memory. This is meant for implementations of `Device`.
    pub const fn new(address: u64, bytes: Bytes, placed: Bytes) -> Self {
        Self { address, bytes, placed }
    }

    /// Reuses the memory for contents of another size. `bytes`, rounded up to whole grains, must still equal `placed`.
    #[must_use]
    pub const fn with_bytes(self, bytes: Bytes) -> Self {
        Self { bytes, ..self }
    }

    /// The buffer's start: an offset in an arena or a pointer, depending on the device.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The number of bytes that was requested.
    pub const fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// The number of bytes that the device uses for the buffer: `bytes` rounded up to whole grains.
    pub const fn placed(&self) -> Bytes {
        self.placed
    }
}

/// The completion of an operation on the copy queue. Events complete in the order of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Event(pub u64);

/// A device's own count of its allocated bytes: the current values and the peaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    pub placed: Bytes,
    pub placed_peak: Bytes,
    /// The size of the host memory that the allocated slots use.
    pub staged: Bytes,
    pub staged_peak: Bytes,
}

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("placing {asked} on {device}, which has only {free} of {capacity} left")]
    NoRoom { device: &'static str, asked: Bytes, free: Bytes, capacity: Bytes },
    #[error("placing {asked} on {device}: {free} are free, but no free range is large enough")]
    NoPlace { device: &'static str, asked: Bytes, free: Bytes },
    #[error("allocating {asked} of host memory for copies")]
    NoStaging {
        asked: Bytes,
        #[source]
        source: io::Error,
    },
    #[error("a copy of {bytes} at offset {at} exceeds its slot ({slot}) or its buffer ({size})")]
    OutOfRange { bytes: Bytes, at: Bytes, size: Bytes, slot: Bytes },
    #[error("{device} has no buffer at address {address}, or one of another size")]
    Unknown { device: &'static str, address: u64 },
    #[error("{what} on {device}")]
    Failed {
        device: &'static str,
        what: &'static str,
        #[source]
        source: io::Error,
    },
    /// An earlier copy or fill failed, or the copy queue has ended, so the device's contents cannot be trusted.
    #[error("{device} cannot be used any more: {why}")]
    Poisoned { device: &'static str, why: String },
}

/// Memory in which bytes are placed: the memory of a card, or host memory used in the same way.
pub trait Device {
    /// Host memory that the device copies from and to. The host may use it only while no copy uses it.
    type Slot: AsRef<[u8]> + AsMut<[u8]> + Send;

    fn name(&self) -> &'static str;

    /// Makes the device usable in the current thread. In a thread other than the one that created the device, this must
    /// be the first call.
    fn enter_thread(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The largest possible sum of `Buffer::placed` over all buffers that have not been released.
    fn capacity(&self) -> Bytes;

    /// The unit in which allocations are counted. It does not determine the alignment of a buffer.
    fn grain(&self) -> Bytes;

    /// Allocates a buffer with undefined contents. Fails with `NoRoom` if the buffer exceeds the free bytes, with
    /// `NoPlace` if no free range is large enough, and with another error if the device does not work.
    fn allocate(&mut self, bytes: Bytes) -> Result<Buffer, DeviceError>;

    /// Returns true if releasing memory may wait for a running kernel. Allocations and copies never wait for a kernel.
    fn release_waits_for_kernels(&self) -> bool {
        false
    }

    /// Waits for all operations that are queued for a buffer, and then releases it. The buffer's bytes are free when
    /// this returns.
    fn release(&mut self, buffer: Buffer) -> Result<(), DeviceError>;

    /// Allocates a slot: host memory for copies; `drop_slot` frees it.
    fn slot(&mut self, bytes: Bytes) -> Result<Self::Slot, DeviceError>;

    fn drop_slot(&mut self, slot: Self::Slot);

    /// Queues a copy of the first `bytes` of `slot` to the offset `at` of the buffer. `reclaim` returns the slot.
    fn upload(
        &mut self,
        slot: Self::Slot,
        bytes: Bytes,
        to: &Buffer,
        at: Bytes,
    ) -> Result<Event, DeviceError>;

    /// Queues a copy from the offset `at` of the buffer into the first `bytes` of `slot`. `reclaim` returns the slot.
    fn download(
        &mut self,
        slot: Self::Slot,
        bytes: Bytes,
        from: &Buffer,
        at: Bytes,
    ) -> Result<Event, DeviceError>;

    /// Queues a fill of all requested bytes with `value`.
    fn fill(&mut self, buffer: &Buffer, value: u8) -> Result<Event, DeviceError>;

    /// Waits for the earliest copy whose slot has not been returned yet, and returns the slot. Returns `None` if all
    /// slots have been returned.
    fn reclaim(&mut self) -> Result<Option<Self::Slot>, DeviceError>;

    /// Returns true if an event is complete, without waiting.
    fn is_done(&mut self, event: Event) -> Result<bool, DeviceError>;

    fn wait(&mut self, event: Event) -> Result<(), DeviceError>;

    fn marks(&self) -> Marks;

    /// Resets the peaks to the current values.
    fn reset_marks(&mut self);
}
