//! What a device must do so that bytes can be placed on it: the whole of what the engine knows of one.
//!
//! A device has a fixed capacity, gives out buffers within it and copies in order on one queue, beside whoever asked.
//! It keeps its own high-water marks, so that the ledger has something to agree with. What is placed when, and what
//! it is for, is decided by its users.

use std::io;

use opt_shared::units::Bytes;

/// Memory of a device, to be given back by `Device::release`. It cannot be copied, so nobody uses what was released.
#[derive(Debug, PartialEq, Eq)]
pub struct Buffer {
    address: u64,
    bytes: Bytes,
    placed: Bytes,
}

impl Buffer {
    /// For devices.
    pub const fn new(address: u64, bytes: Bytes, placed: Bytes) -> Self {
        Self { address, bytes, placed }
    }

    /// Where it begins, in the device's own terms: an offset in an arena, a pointer.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// What was asked for.
    pub const fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// What the device takes for it: `bytes`, up to whole grains.
    pub const fn placed(&self) -> Bytes {
        self.placed
    }
}

/// The end of something on the copy queue. Of two, the later one comes true later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Event(pub u64);

/// What a device holds and has held, by its own count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    pub placed: Bytes,
    pub placed_peak: Bytes,
    /// Host memory that copies start from and end in.
    pub staged: Bytes,
    pub staged_peak: Bytes,
}

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error(
        "placing {asked} on {device}, which has {free} of {capacity} left (release something, or raise its budget)"
    )]
    NoRoom { device: &'static str, asked: Bytes, free: Bytes, capacity: Bytes },
    #[error("placing {asked} on {device}: {free} are left, but no piece is large enough")]
    NoPlace { device: &'static str, asked: Bytes, free: Bytes },
    #[error("taking {asked} of host memory to copy from")]
    NoStaging {
        asked: Bytes,
        #[source]
        source: io::Error,
    },
    #[error("copying {bytes} at byte {at} of a buffer of {size}, out of a slot of {slot}")]
    OutOfRange { bytes: Bytes, at: Bytes, size: Bytes, slot: Bytes },
    #[error("a buffer at {address} that {device} does not know")]
    Unknown { device: &'static str, address: u64 },
    #[error("{what} on {device}")]
    Failed {
        device: &'static str,
        what: &'static str,
        #[source]
        source: io::Error,
    },
    /// An earlier copy failed: what lies on the device is not what it should be, and stays so.
    #[error("{device} cannot be used any more: {why}")]
    Poisoned { device: &'static str, why: String },
}

/// Memory that is not the one the program runs in, or is treated so.
pub trait Device {
    /// Host memory that the device copies from and to. Whoever has it may use it; while a copy has it nobody can.
    type Slot: AsRef<[u8]> + AsMut<[u8]> + Send;

    fn name(&self) -> &'static str;

    /// The most that is ever placed: the sum of `Buffer::placed` of all that were not released.
    fn capacity(&self) -> Bytes;

    /// Buffers begin at multiples of it and take multiples of it.
    fn grain(&self) -> Bytes;

    /// Refused if and only if it does not fit the capacity or no piece is large enough; what it holds is undefined.
    fn allocate(&mut self, bytes: Bytes) -> Result<Buffer, DeviceError>;

    /// After whatever was put on the queue for this buffer; its bytes count as free on return.
    fn release(&mut self, buffer: Buffer) -> Result<(), DeviceError>;

    /// Host memory for copies, aligned to pages, until `drop_slot`.
    fn slot(&mut self, bytes: Bytes) -> Result<Self::Slot, DeviceError>;

    /// Gives a slot back.
    fn drop_slot(&mut self, slot: Self::Slot);

    /// Queues a copy of the first `bytes` of `slot`. The slot comes back by `reclaim`.
    fn upload(
        &mut self,
        slot: Self::Slot,
        bytes: Bytes,
        to: &Buffer,
        at: Bytes,
    ) -> Result<Event, DeviceError>;

    /// Queues a copy into the first `bytes` of `slot`. The slot comes back by `reclaim`.
    fn download(
        &mut self,
        slot: Self::Slot,
        bytes: Bytes,
        from: &Buffer,
        at: Bytes,
    ) -> Result<Event, DeviceError>;

    /// Queues a store of `value` into every byte that was asked for.
    fn fill(&mut self, buffer: &Buffer, value: u8) -> Result<Event, DeviceError>;

    /// The slot of the earliest copy that has not given back its own; waits for that copy. None where no slot is out.
    fn reclaim(&mut self) -> Result<Option<Self::Slot>, DeviceError>;

    /// Without waiting.
    fn is_done(&mut self, event: Event) -> Result<bool, DeviceError>;

    fn wait(&mut self, event: Event) -> Result<(), DeviceError>;

    fn marks(&self) -> Marks;

    /// Peaks begin again at what is held now.
    fn reset_marks(&mut self);
}
