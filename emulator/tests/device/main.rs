//! The emulated device from outside, by modules that are compiled as they are loaded.

mod hostile;
mod kit;
mod memory;
mod opcodes;
