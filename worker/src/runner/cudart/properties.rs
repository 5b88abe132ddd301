//! The properties of the emulated device, as the runtime's queries return them.

use opt_emulator::limits;

const WARP: i32 = 32;
/// A small number, because some kernels start one block or more per multiprocessor.
const MULTIPROCESSORS: i32 = 4;
const THREADS_PER_MULTIPROCESSOR: i32 = 2048;
const BLOCKS_PER_MULTIPROCESSOR: i32 = 32;
const REGISTERS: i32 = 65_536;
const L2_BYTES: i32 = 4 << 20;
const CAPABILITY: (i32, i32) = (8, 0);

/// The size of `cudaDeviceProp` of CUDA 13, in bytes.
pub(super) const PROPERTIES_BYTES: usize = 1008;
pub(super) const NAME: &[u8] = b"emulated device";

fn signed(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// A value of `cudaDeviceGetAttribute`; `None` if it is not known.
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
        16 => MULTIPROCESSORS,
        38 => L2_BYTES,
        39 => THREADS_PER_MULTIPROCESSOR,
        75 => CAPABILITY.0,
        76 => CAPABILITY.1,
        81 => signed(limits::SHARED_BYTES + 1024),
        97 => signed(limits::SHARED_BYTES),
        106 => BLOCKS_PER_MULTIPROCESSOR,
        111 => 1024,
        // Concurrent kernels, unified addresses and memory pools.
        31 | 41 | 115 => 1,
        // An integrated device, cooperative launches, and access to pageable memory.
        18 | 88 | 95 => 0,
        _ => return None,
    })
}

/// The fields of `cudaDeviceProp` of CUDA 13 that are not zero: their offsets and values.
pub(super) fn fields(memory: u64) -> Vec<(usize, u64, usize)> {
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
        int(360, CAPABILITY.0),
        int(364, CAPABILITY.1),
        int(384, MULTIPROCESSORS),
        int(596, L2_BYTES),
        int(604, THREADS_PER_MULTIPROCESSOR),
        (624, limits::SHARED_BYTES + 1024, 8),
        int(632, REGISTERS),
        (672, limits::SHARED_BYTES, 8),
        int(688, BLOCKS_PER_MULTIPROCESSOR),
        (696, 1024, 8),
    ]
}

/// The number of blocks of this size that a multiprocessor runs at once.
pub(super) fn blocks(threads: i32, shared: u64) -> i32 {
    let by_threads = THREADS_PER_MULTIPROCESSOR / threads.max(1);
    let by_shared = limits::SHARED_BYTES.checked_div(shared).map_or(BLOCKS_PER_MULTIPROCESSOR, signed);
    by_threads.min(by_shared).min(BLOCKS_PER_MULTIPROCESSOR)
}
