//! Page-locked memory of the host, from a card's driver.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use opt_shared::units::Bytes;

use super::code::Code;
use super::functions::{Functions, ok};
use super::{DriverError, Pinned};

/// The memory is not freed once the context is given up.
pub(super) fn allocate(
    functions: &Functions,
    bytes: Bytes,
    given_up: &Arc<AtomicBool>,
) -> Result<Pinned, DriverError> {
    let bytes = bytes.to_usize();
    let mut start = std::ptr::null_mut();
    // No flags: write-combined memory would be slow to read back. SAFETY: the address is written by the call, and
    // the allocation has `bytes` bytes.
    unsafe {
        ok("cuMemHostAlloc", (functions.host_allocate)(&raw mut start, bytes, 0))?;
        std::ptr::write_bytes(start.cast::<u8>(), 0, bytes);
    }
    let start = NonNull::new(start.cast()).ok_or(DriverError::new("cuMemHostAlloc", Code::OUT_OF_MEMORY))?;
    let (free, context_given_up) = (functions.host_free, Arc::clone(given_up));
    Ok(Pinned(Box::new(Locked { start, bytes, free, context_given_up })))
}

struct Locked {
    start: NonNull<u8>,
    bytes: usize,
    free: unsafe extern "C" fn(*mut c_void) -> u32,
    context_given_up: Arc<AtomicBool>,
}

// SAFETY: it owns its bytes, like a `Box`; the driver's function may be called in any thread of the context.
unsafe impl Send for Locked {}

impl AsRef<[u8]> for Locked {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `bytes` bytes that the driver allocated, and that were zeroed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl AsMut<[u8]> for Locked {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed only by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.context_given_up.load(Ordering::Relaxed) {
            // The memory is freed when the process ends.
            return;
        }
        // SAFETY: an address that the driver allocated, freed once.
        let _ = unsafe { (self.free)(self.start.as_ptr().cast()) };
    }
}
