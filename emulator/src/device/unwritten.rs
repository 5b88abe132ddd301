//! Marks global memory as never written again, for programs that fill memory with values that no kernel should read,
//! and copies memory without losing such marks.

use super::{Call, Device};
use crate::fault::Fault;

impl Device {
    /// Marks these bytes as never written until they are written again. Their values stay the same. If
    /// `Config::check_uninitialised` is set, it is a fault if a kernel reads a value that consists only of such bytes.
    ///
    /// # Errors
    /// The bytes are not inside one allocation (1).
    pub fn forget(&mut self, address: u64, bytes: u64) -> Result<(), Fault> {
        self.heap.forget(address, bytes)
    }

    /// Copies bytes within the device. Copies of bytes that were never written are also marked as never written.
    ///
    /// # Errors
    /// The same as for `write`.
    pub fn copy(&mut self, to: u64, from: u64, bytes: u64) -> Result<(), Fault> {
        self.enter(Call::Write)?;
        self.heap.copy(to, from, bytes).map_err(|fault| self.failed(fault))
    }
}
