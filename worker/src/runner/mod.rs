//! The code of the processes that a worker starts: runners, compilers, and zygotes, which are copied to make runners.
//!
//! A runner is untrusted. It is a sandboxed process that contains one candidate with its mapped inputs and outputs. A
//! runner is never reused.

mod abi;
pub mod compile_order;
pub mod compiler;
pub mod control;
pub(crate) mod cudart;
mod enter;
mod entry;
mod fault;
mod ffi_error;
pub mod frame;
mod huge_pages;
mod load;
mod loader;
pub(crate) mod map;
mod nvrtc;
mod passing;
mod python;
mod recorder;
pub(crate) mod recording_format;
mod returned;
pub mod serve;
mod stdout;
mod strided_copy;
pub(crate) mod zygote;
