//! The peak memory of each stage: the only home of the constants and sums of the memory model (DESIGN, "Memory model").
//!
//! The supervisor predicts with it and the workers allocate by it, so prediction and allocation cannot drift apart. The
//! terms of one entry are its inputs I, the part U of them that cannot be mapped in place, its outputs O, its ring of
//! outputs R and its varied inputs V. The judge's chunk is c, and the staging memory is k·s. This module neither
//! measures nor decides.

mod device;
mod groups;
mod limits;
mod mapping;
mod outputs;
mod stages;
mod time;
mod varied;

pub use self::device::{
    CARD_GRAIN, DEVICE_ALIGNMENT, DEVICE_BAND, DEVICE_CONTEXT, EMULATED_GRAIN, device_rounding,
};
pub use self::groups::{MAX_SHARING, SHARED_RUNNER, runner_groups};
pub use self::limits::STACK;
pub use self::mapping::unmapped;
pub use self::outputs::{MAX_CALLS, RING, guarded, ring, ring_slots};
pub use self::stages::{
    RunnerTerms, Term, on_device, profile, replay, runner_base, runners, staged, total, verify,
};
pub use self::time::{MAX_RUNNERS, MAX_STRETCH, MIN_RUNNERS, load_timeout, stretched};
pub use self::varied::{VALUES, VARIED, variants, varied};
use crate::units::Bytes;

/// The alignment of whole storages and of outputs (DESIGN, "The candidate interface"), in bytes. With it, a view has the
/// same alignment as in PyTorch.
pub const ALIGNMENT: u64 = 64;
/// c: the size of the judge's buffer for each of the two outputs that it compares. It is large enough to make the cost of
/// a read negligible, and small enough for both buffers to fit into the caches of a small core.
pub const COMPARE_CHUNK: Bytes = Bytes::kib(512);
/// Memory that a runner owes before its candidate does anything: its heap, and private pages of the loader and of libc.
/// Measured at 0.6 MiB for a plain C library, which leaves room for the C++ runtime and a few more libraries.
pub const RUNNER_BASE: Bytes = Bytes::mib(4);
/// Memory that an interpreter with torch owes: a zygote, or a runner that started its own interpreter. Measured with
/// torch 2.10 and 2.15 at 270 to 300 MiB, without its files, which are in the page cache.
pub const PYTHON_BASE: Bytes = Bytes::mib(384);
/// Memory that a copy of a zygote owes before its candidate does anything: page tables, and pages that it wrote to.
pub const PYTHON_COPY: Bytes = Bytes::mib(32);
/// Memory that a runner owes after loading libtorch.
pub const LIBTORCH_BASE: Bytes = Bytes::mib(128);
/// The parts of Python's and torch's libraries that an import brings into the page cache.
pub const PYTHON_FILES: Bytes = Bytes::mib(512);
/// Memory that a compiler owes before it reads anything.
pub const COMPILER_BASE: Bytes = Bytes::mib(16);
/// The smallest memory limit of a compiler. For a kernel in plain C, gcc owes 40 to 80 MiB.
pub const MIN_COMPILER_MEMORY: Bytes = Bytes::mib(128);

/// s: the size of a staging slot.
pub const STAGING_SLOT: Bytes = Bytes::mib(1);
/// k of a worker that loads inputs: one slot is filled while the other is copied.
pub const LOAD_SLOTS: u64 = 2;
/// k of a replay, between its files and its pool: one slot is filled, one is copied, and one waits.
pub const REPLAY_SLOTS: u64 = 3;

/// Memory of an idle worker: its heap, stacks and page tables. Measured at 1 to 2 MiB; the law allows 8 MiB.
pub const IDLE_WORKER: Bytes = Bytes::mib(4);
/// Memory of the supervisor for a small plan, counted in the same way. Measured at 3 to 4 MiB.
pub const SUPERVISOR: Bytes = Bytes::mib(6);
/// The supervisor's additional memory for every candidate and for every entry.
pub const PER_LINE: Bytes = Bytes::kib(1);
