//! The emulated device from outside, by modules that are compiled as they are loaded.

mod kit;
mod memory;
