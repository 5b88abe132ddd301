//! What each stage owes at its peak: every constant and every sum of the memory model (DESIGN, "Memory model"), once.
//!
//! The supervisor predicts with it and the workers allocate by it, so that the two cannot drift apart. Of one entry: I its
//! inputs, U what of them cannot be mapped in place, O its outputs, R its ring of outputs, V its inputs that vary; c is the judge's chunk, k·s the
//! staging. Nothing here is measured, and nothing is decided.

mod groups;
mod limits;
mod mapping;
mod outputs;
mod stages;
mod time;
mod varied;

pub use self::groups::{MOST_SHARING, SHARED_RUNNER, runner_groups};
pub use self::limits::STACK;
pub use self::mapping::unmapped;
pub use self::outputs::{MOST_CALLS, RING, guarded, ring, ring_slots};
pub use self::stages::{
    RunnerTerms, Term, on_device, profile, replay, runner_base, runners, staged, total, verify,
};
pub use self::time::{LEAST_RUNNERS, MOST_RUNNERS, MOST_STRETCH, load_timeout, stretched};
pub use self::varied::{VALUES, VARIED, variants, varied};
use crate::units::Bytes;

/// Whole storages and outputs start at multiples of this (DESIGN, "The candidate interface"), so that a view starts where
/// PyTorch's did.
pub const ALIGNMENT: u64 = 64;
/// c: what the judge holds of each of the two sides that it compares. Large enough that a read is cheap beside what it brings,
/// small enough that both sides and the caches of a small core get along.
pub const COMPARE_CHUNK: Bytes = Bytes::kib(512);
/// What a runner owes before its candidate does anything: its own heap, the loader's and libc's private pages.
/// Measured at 0.6 MiB for a plain C library; the C++ runtime and a handful of libraries fit.
pub const RUNNER_BASE: Bytes = Bytes::mib(4);
/// What an interpreter with torch in it owes: a zygote, or a runner that had to start its own. Measured with torch 2.10 and
/// 2.15 at 270 to 300 MiB; its files are the page cache's.
pub const PYTHON_BASE: Bytes = Bytes::mib(384);
/// What a copy of a zygote owes before its candidate does anything: page tables, and the pages that it has written to.
pub const PYTHON_COPY: Bytes = Bytes::mib(32);
/// What a runner owes once it has libtorch loaded.
pub const LIBTORCH_BASE: Bytes = Bytes::mib(128);
/// Its files in the page cache: Python's and torch's libraries, as far as an import touches them.
pub const PYTHON_FILES: Bytes = Bytes::mib(512);
/// Owed by a compiler's process before it reads anything.
pub const COMPILER_BASE: Bytes = Bytes::mib(16);
/// No compiler is started with less than this: gcc owes 40 to 80 MiB for a kernel in plain C.
pub const LEAST_COMPILER: Bytes = Bytes::mib(128);

/// Reserved on a card for the context of a worker. An assumption: no card has been measured.
pub const DEVICE_CONTEXT: Bytes = Bytes::mib(512);
/// Reserved on a card for bands beside buffers, and for what the driver rounds each of them up to: 2 MiB for some thirty.
pub const DEVICE_ROUNDING: Bytes = Bytes::mib(64);

/// s: one slot of staging.
pub const STAGING_SLOT: Bytes = Bytes::mib(1);
/// k of a worker that loads inputs: one slot is read into while the other is copied.
pub const LOAD_SLOTS: u64 = 2;
/// k of a replay, between files and its pool: one slot is read into, one is copied from, one waits.
pub const REPLAY_SLOTS: u64 = 3;

/// An idle worker: its own heap, stacks and tables. Measured at 1 to 2 MiB; the law allows it 8.
pub const IDLE_WORKER: Bytes = Bytes::mib(4);
/// The supervisor itself, by the same rule: measured at 3 to 4 MiB of its own for a small plan …
pub const SUPERVISOR: Bytes = Bytes::mib(6);
/// … and this much for every candidate and entry.
pub const PER_LINE: Bytes = Bytes::kib(1);
