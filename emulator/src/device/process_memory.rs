//! Makes memory of this process accessible to kernels, for programs whose buffers are outside the device's memory.

use super::Device;
use crate::fault::Fault;

impl Device {
    /// Makes memory of the process accessible to kernels, and returns its address on the device. The address has the
    /// same remainder as `memory` modulo `phase` (4 to 256, a power of two).
    ///
    /// # Safety
    /// While this device exists, the words of 4 bytes that contain the memory must stay readable and, unless it is
    /// `read_only`, writable. Nothing else may write to these words during a call of the device.
    ///
    /// # Errors
    /// No bytes (1), or no free addresses (1).
    pub unsafe fn map(
        &mut self,
        memory: *mut u8,
        bytes: u64,
        phase: u64,
        read_only: bool,
    ) -> Result<u64, Fault> {
        // SAFETY: the caller's obligation, passed on.
        unsafe { self.heap.map(memory, bytes, phase, read_only) }
    }
}
