//! Marks global memory as never written, for programs that fill it with values that no kernel should read.

use super::Device;
use crate::fault::Fault;

impl Device {
    /// Makes these bytes count as never written until they are written again. If `Config::check_uninitialised` is set,
    /// it is a fault if a kernel reads a value that consists only of such bytes. Their values stay the same.
    ///
    /// # Errors
    /// The bytes are not inside one allocation (1).
    pub fn forget(&mut self, address: u64, bytes: u64) -> Result<(), Fault> {
        self.heap.forget(address, bytes)
    }
}
