//! The properties of the device that the runtime's queries return: of the emulated device or, if launches are recorded for
//! a card, of this card.

use std::sync::OnceLock;

use opt_emulator::limits;
use opt_shared::device::CardShape;

use super::INVALID_VALUE;

const WARP: i32 = 32;
/// The number of multiprocessors. It is small, because some kernels start at least one block for each.
const MULTIPROCESSORS: i32 = 4;
pub(super) const THREADS_PER_MULTIPROCESSOR: i32 = 2048;
const BLOCKS_PER_MULTIPROCESSOR: i32 = 32;
pub(super) const REGISTERS: i32 = 65_536;
const L2_BYTES: i32 = 4 << 20;
const CAPABILITY: (i32, i32) = (8, 0);

/// The card for which launches are recorded.
static CARD: OnceLock<CardShape> = OnceLock::new();

/// Makes the queries return the properties of this card, as far as they are known.
pub(super) fn describe(card: CardShape) {
    CARD.get_or_init(|| card);
}

fn multiprocessors() -> i32 {
    CARD.get().map_or(MULTIPROCESSORS, |card| signed(card.multiprocessors.into()))
}

fn capability() -> (i32, i32) {
    CARD.get().map_or(CAPABILITY, |card| (card.capability.major.into(), card.capability.minor.into()))
}

/// Returns the largest shared memory of a block, in bytes.
pub(super) fn shared_bytes() -> u64 {
    CARD.get().map_or(limits::SHARED_BYTES, |card| card.shared_bytes.into())
}

/// The size of `cudaDeviceProp`, and the offsets of some of its fields, in bytes. The fields up to the compute
/// capability have the same offsets in both versions below, so they are not listed.
pub(super) struct Layout {
    size: usize,
    multiprocessors: usize,
    l2: usize,
    threads_per_multiprocessor: usize,
    shared_per_multiprocessor: usize,
    registers_per_multiprocessor: usize,
    shared_per_block: usize,
    blocks_per_multiprocessor: usize,
    reserved_shared: usize,
}

pub(super) const CUDA_13: Layout = Layout {
    size: 1008,
    multiprocessors: 384,
    l2: 596,
    threads_per_multiprocessor: 604,
    shared_per_multiprocessor: 624,
    registers_per_multiprocessor: 632,
    shared_per_block: 672,
    blocks_per_multiprocessor: 688,
    reserved_shared: 696,
};

pub(super) const CUDA_12: Layout = Layout {
    size: 1032,
    multiprocessors: 388,
    l2: 616,
    threads_per_multiprocessor: 624,
    shared_per_multiprocessor: 640,
    registers_per_multiprocessor: 648,
    shared_per_block: 696,
    blocks_per_multiprocessor: 712,
    reserved_shared: 720,
};

const NAME: &[u8] = b"emulated device";

pub(super) fn signed(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// Returns the value of an attribute for `cudaDeviceGetAttribute`, or `None` if the attribute is not known.
pub(super) fn attribute(number: i32) -> Option<i32> {
    let axis = |sizes: [u32; 3], at: usize| signed(sizes[at].into());
    Some(match number {
        1 => signed(limits::BLOCK_THREADS.into()),
        2 => axis(limits::BLOCK, 0),
        3 => axis(limits::BLOCK, 1),
        4 => axis(limits::BLOCK, 2),
        5 => axis(limits::GRID, 0),
        6 => axis(limits::GRID, 1),
        7 => axis(limits::GRID, 2),
        8 => signed(limits::STATIC_SHARED_BYTES),
        9 => 64 << 10,
        10 => WARP,
        12 | 82 => REGISTERS,
        16 => multiprocessors(),
        38 => L2_BYTES,
        39 => THREADS_PER_MULTIPROCESSOR,
        75 => capability().0,
        76 => capability().1,
        81 => signed(shared_bytes() + 1024),
        97 => signed(shared_bytes()),
        106 => BLOCKS_PER_MULTIPROCESSOR,
        111 => 1024,
        // The device supports concurrent kernels, unified addresses and memory pools.
        31 | 41 | 115 => 1,
        // The device is not integrated, and supports neither cooperative launches nor access to pageable memory.
        18 | 88 | 95 => 0,
        _ => return None,
    })
}

/// Writes the `cudaDeviceProp` of a device that has this much memory, and returns an error code of the runtime.
///
/// # Safety
/// `to` must be null, or point to as many writable bytes as the layout's size.
pub(super) unsafe fn write(to: *mut u8, layout: &Layout, memory: u64) -> u32 {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's obligation.
    let structure = unsafe {
        to.write_bytes(0, layout.size);
        std::slice::from_raw_parts_mut(to, layout.size)
    };
    structure[..NAME.len()].copy_from_slice(NAME);
    for (offset, value, bytes) in fields(layout, memory) {
        structure[offset..offset + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    }
    0
}

/// Returns the offset, value and size of each field that is not zero.
fn fields(layout: &Layout, memory: u64) -> Vec<(usize, u64, usize)> {
    let int = |offset: usize, value: i32| (offset, u64::from(value.unsigned_abs()), 4);
    let of = |number: i32| attribute(number).unwrap_or(0);
    vec![
        (288, memory, 8),
        (296, limits::STATIC_SHARED_BYTES, 8),
        int(304, REGISTERS),
        int(308, WARP),
        int(320, of(1)),
        int(324, of(2)),
        int(328, of(3)),
        int(332, of(4)),
        int(336, of(5)),
        int(340, of(6)),
        int(344, of(7)),
        (352, 64 << 10, 8),
        int(360, of(75)),
        int(364, of(76)),
        int(layout.multiprocessors, of(16)),
        int(layout.l2, L2_BYTES),
        int(layout.threads_per_multiprocessor, THREADS_PER_MULTIPROCESSOR),
        (layout.shared_per_multiprocessor, shared_bytes() + 1024, 8),
        int(layout.registers_per_multiprocessor, REGISTERS),
        (layout.shared_per_block, shared_bytes(), 8),
        int(layout.blocks_per_multiprocessor, BLOCKS_PER_MULTIPROCESSOR),
        (layout.reserved_shared, 1024, 8),
    ]
}

/// Returns the number of blocks of this size that a multiprocessor can run at once.
pub(super) fn blocks(threads: i32, shared: u64) -> i32 {
    let by_threads = THREADS_PER_MULTIPROCESSOR / threads.max(1);
    let by_shared = shared_bytes().checked_div(shared).map_or(BLOCKS_PER_MULTIPROCESSOR, signed);
    by_threads.min(by_shared).min(BLOCKS_PER_MULTIPROCESSOR)
}
