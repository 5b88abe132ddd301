//! A CUDA device in software. It loads PTX, runs kernels on the CPU, a warp's lanes in lock step, and checks every access
//! to memory. What it does not know is refused by name; it never gives a wrong answer instead.
//!
//! It knows nothing of the rest of the program: the worker's backend drives it as it drives a card.

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
pub use execute::{Limit, Summary};
pub use fault::{Access, AccessKind, Fault, FaultKind, LoadError, Memory, Nearest, Place, SourceLine};
