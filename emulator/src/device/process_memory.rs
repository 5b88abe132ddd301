//! Makes memory of this process accessible on the device, for programs whose buffers lie outside the device's memory.

use super::Device;
use crate::fault::Fault;

impl Device {
    /// Makes memory of the process accessible to kernels, and returns its address on the device. The address has the
    /// same remainder as `memory` modulo `phase` (4 to 256, a power of two).
    ///
    /// # Safety
    /// The words of 4 bytes that contain the memory must stay readable, and writable unless it is `read_only`, as long
    /// as this device exists. Nothing else may write to them during a call of the device.
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
