//! The trusted side of a runner: spawning it, preparing what it sees, talking to it, seeing it dead.

pub(crate) mod cell;
pub(crate) mod compiler;
pub(crate) mod copied;
mod elf;
pub mod handle;
pub(crate) mod libraries;
pub(crate) mod outputs;
pub(crate) mod prepare;
pub(crate) mod process;
pub mod read_ahead;
pub(crate) mod residue;
pub mod spawn;
mod streams;
pub(crate) mod thread_clocks;
