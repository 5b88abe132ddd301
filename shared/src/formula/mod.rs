//! The formulas for the peak memory of each stage. This module contains the constants and sums of the memory model
//! (`docs/explanation/memory.md`), except those for the placement of a load (`placement`) and the bookkeeping of a
//! replay (`replay`).
//!
//! The supervisor predicts the memory of a stage with these formulas, and the workers use the same formulas when they
//! allocate it, so prediction and allocation always agree. The formulas use these terms:
//!
//! - I, the inputs of an entry, and U, the part of them that cannot be mapped in place
//! - O, its outputs, and R, its ring of outputs
//! - V, its varied inputs
//! - c, the judge's chunk
//! - k·s, the staging memory

mod device;
mod groups;
mod limits;
mod mapping;
mod outputs;
mod stages;
mod time;
mod varied;

pub use self::device::{
    CARD_GRAIN, DEVICE_ALIGNMENT, DEVICE_BAND, DEVICE_CONTEXT, DEVICE_FLUSH, EMULATED_GRAIN, device_rounding,
    pool_grain, written_bits,
};
pub use self::groups::{MAX_SHARING, SHARED_RUNNER, runner_groups};
pub use self::limits::STACK;
pub use self::mapping::unmapped;
pub use self::outputs::{MAX_CALLS, RING, device_ring, device_slots, guarded, ring, ring_slots};
pub use self::stages::{
    RunnerTerms, Term, interpreters, on_device, profile, profile_on_device, replay, replay_on_host,
    replay_pool, runner_base, runners, staged, total, verify,
};
pub use self::time::{MAX_RUNNERS, MAX_STRETCH, MIN_RUNNERS, load_timeout, stretched};
pub use self::varied::{VALUES, largest_varied, values, variant, variants, varied};
use crate::units::Bytes;

/// The alignment of whole storages and of outputs, in bytes (`docs/reference/candidates.md`). As PyTorch aligns
/// storages in the same way, a view has the same alignment as in PyTorch.
pub const ALIGNMENT: u64 = 64;
/// c: the size of the judge's buffer for each of the two outputs that it compares.
pub const COMPARE_CHUNK: Bytes = Bytes::kib(512);
/// Memory that a runner owes before its candidate does anything: its heap, and private pages of the loader and of libc.
/// For a plain C library, 0.6 MiB was measured. The rest is room for the C++ runtime and a few more libraries.
pub const RUNNER_BASE: Bytes = Bytes::mib(4);
/// Memory that a Python interpreter with torch owes, either as a zygote or in a runner that started its own
/// interpreter. With torch 2.15, 297 MiB were measured, and earlier, with torch 2.10 and 2.15, 270 to 300 MiB. This does
/// not include the files of torch, which are in the page cache.
pub const PYTHON_BASE: Bytes = Bytes::mib(304);
/// Memory that a copy of a zygote owes before its candidate does anything: page tables, and pages that it wrote to. With
/// torch 2.15, 12 MiB were measured, and 4 MiB for the copy that already waits for the next candidate.
pub const PYTHON_COPY: Bytes = Bytes::mib(16);
/// Memory that a runner owes after loading libtorch.
pub const LIBTORCH_BASE: Bytes = Bytes::mib(128);
/// The parts of Python's and torch's libraries that an import brings into the page cache.
pub const PYTHON_FILES: Bytes = Bytes::mib(512);
/// Memory that a compiler owes before it reads anything.
pub const COMPILER_BASE: Bytes = Bytes::mib(16);
/// The smallest memory limit of a compiler. A limit that does not fit under the ceiling is halved until it fits, but
/// never becomes smaller than this. For a kernel in plain C, gcc owes 40 to 80 MiB.
pub const MIN_COMPILER_MEMORY: Bytes = Bytes::mib(128);

/// s: the size of a staging slot.
pub const STAGING_SLOT: Bytes = Bytes::mib(1);
/// k, the number of staging slots, of a worker that loads inputs: one slot is filled while the other is copied.
pub const LOAD_SLOTS: u64 = 2;
/// k, the number of staging slots, of a replay. The slots are between its files and its pool: one is filled, one is
/// copied, and one waits.
pub const REPLAY_SLOTS: u64 = 3;

/// Memory of an idle worker: its heap, stacks and page tables. 1 to 2 MiB were measured, and a test fails if an idle
/// worker owes more than this.
pub const IDLE_WORKER: Bytes = Bytes::mib(4);
/// Memory that the supervisor owes for a small plan: its heap, stacks and page tables. 3 to 4 MiB were measured.
pub const SUPERVISOR: Bytes = Bytes::mib(6);
/// The supervisor's additional memory for each candidate and for each entry.
pub const SUPERVISOR_PER_ITEM: Bytes = Bytes::kib(1);
