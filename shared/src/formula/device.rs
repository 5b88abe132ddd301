//! What a kernel without host code may have on its device, beside its inputs, outputs and workspaces.

use crate::units::Bytes;

/// Reserved on a card for the context of a worker. An assumption: no card has been measured.
pub const DEVICE_CONTEXT: Bytes = Bytes::mib(512);
/// A card's driver gives memory out in pages of this size.
pub const CARD_GRAIN: Bytes = Bytes::mib(2);
/// The emulated device aligns allocations to this.
pub const EMULATED_GRAIN: Bytes = Bytes::new(256);
/// Bytes on each side of a buffer that nothing may write to, on a device that does not check accesses. A row or a tile that reaches too
/// far ends in them.
pub const DEVICE_BAND: Bytes = Bytes::kib(4);
/// PyTorch's allocator aligns storages to at least this. A view keeps its position within it.
pub const DEVICE_ALIGNMENT: Bytes = Bytes::new(256);
/// The digest of an input.
const DIGEST: Bytes = Bytes::new(8);

/// The most that bands and rounding add to this many buffers. Digests are in a buffer of their own.
pub fn device_rounding(buffers: u64, emulated: bool) -> Bytes {
    let (grain, bands) =
        if emulated { (EMULATED_GRAIN, Bytes::ZERO) } else { (CARD_GRAIN, DEVICE_BAND.saturating_mul(2)) };
    (grain + bands + DEVICE_ALIGNMENT + DIGEST).saturating_mul(buffers.saturating_add(1))
}
