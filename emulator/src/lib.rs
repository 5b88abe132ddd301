//! Emulates a CUDA device in software: loads PTX, runs kernels on the CPU with the lanes of a warp in lockstep, and
//! checks every memory access. PTX that is not supported is refused with a message that names the line and the
//! unsupported feature, instead of being run with a wrong result.
//!
//! This crate does not depend on the rest of the program. The worker's backend uses the emulated device in the same way
//! as a card.

mod code;
mod decode;
#[expect(clippy::cast_possible_truncation, reason = "lengths of buffers that were checked against limits")]
mod device;
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "instructions truncate and reinterpret by definition"
)]
mod execute;
mod fault;
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "instructions truncate and reinterpret by definition"
)]
mod lane;
pub mod limits;
#[expect(clippy::cast_possible_truncation, reason = "words are parts of larger values")]
mod memory;
mod ptx;

pub use device::{Call, Config, Device, Function, Launch, Module};
pub use execute::{Counts, Limit, Summary, Traffic};
pub use fault::{
    Access, AccessKind, Fault, FaultKind, FaultSite, LoadError, Memory, Nearest, OtherAccess, SourceLine,
};
