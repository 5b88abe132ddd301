//! The memory that a kernel without host code may use on its device in addition to inputs, outputs and workspaces.

use crate::device::Device;
use crate::units::Bytes;

/// Memory reserved on a card for the context of a worker. On an H100 with driver 580, a context takes 524 MiB
/// (`gpu-check`, step `context`).
pub const DEVICE_CONTEXT: Bytes = Bytes::mib(640);
/// The size of the pages in which a card's driver allocates memory.
pub const CARD_GRAIN: Bytes = Bytes::mib(2);
/// The alignment of allocations on the emulated device.
pub const EMULATED_GRAIN: Bytes = Bytes::new(256);
/// The size of the band on each side of a buffer. No kernel may write to a band, and a kernel that writes one row or
/// one tile too many usually hits one. Devices that check every access need no bands.
pub const DEVICE_BAND: Bytes = Bytes::kib(4);
/// The alignment of a storage on a device. CUDA guarantees this alignment for every allocation. A view that begins
/// inside a storage keeps its offset from the aligned address.
pub const DEVICE_ALIGNMENT: Bytes = Bytes::new(256);
/// The largest amount of memory that is written in order to evict everything from a card's L2 cache. It is more than
/// twice the size of the largest L2 caches.
pub const DEVICE_FLUSH: Bytes = Bytes::mib(256);
/// The size of the digest of one input.
const DIGEST: Bytes = Bytes::new(8);

/// The allocation unit of a replay's pool: each tensor takes a multiple of it.
pub fn pool_grain(device: Device) -> Bytes {
    match device {
        Device::Cpu => Bytes::from(rustix::param::page_size()),
        Device::Cuda(_) => CARD_GRAIN,
        Device::Emulated => EMULATED_GRAIN,
    }
}

/// The memory that the emulated device needs to record which bytes of outputs and workspaces have been written. It uses
/// one bit for each of the `tracked` bytes.
pub fn written_bits(tracked: Bytes) -> Bytes {
    Bytes::new(tracked.get().div_ceil(8))
}

/// The most memory that bands, rounding and digests add to this many buffers. The digests have a separate buffer.
pub fn device_rounding(buffers: u64, emulated: bool) -> Bytes {
    let (grain, bands) =
        if emulated { (EMULATED_GRAIN, Bytes::ZERO) } else { (CARD_GRAIN, DEVICE_BAND.saturating_mul(2)) };
    (grain + bands + DEVICE_ALIGNMENT + DIGEST).saturating_mul(buffers.saturating_add(1))
}
