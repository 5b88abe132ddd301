//! Global memory that was never written: copies preserve this state, and programs that fill memory with values that no
//! kernel should read can mark it as never written again.

use super::{Call, Device};
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

    /// Copies bytes within the device. Bytes that were never written stay so in the copy.
    ///
    /// # Errors
    /// The same as for `write`.
    pub fn copy(&mut self, to: u64, from: u64, bytes: u64) -> Result<(), Fault> {
        self.enter(Call::Write)?;
        self.heap.copy(to, from, bytes).map_err(|fault| self.failed(fault))
    }
}
