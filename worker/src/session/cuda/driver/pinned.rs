//! Page-locked memory of the host, from a card's driver.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use opt_shared::units::Bytes;

use super::code::Code;
use super::functions::{Functions, ok};
use super::{DriverError, Pinned};

/// Allocates zeroed, page-locked memory. After the context has been given up, the memory is not freed until the process
/// ends, because freeing it could wait for a kernel that never ends.
pub(super) fn allocate(
    functions: &Functions,
    bytes: Bytes,
    given_up: &Arc<AtomicBool>,
) -> Result<Pinned, DriverError> {
    let bytes = bytes.to_usize();
    let mut start = std::ptr::null_mut();
    // No flags: write-combined memory would be slow to read back.
    // SAFETY: the call writes the address, and the allocation has `bytes` bytes.
    unsafe {
        ok("cuMemHostAlloc", (functions.host_allocate)(&raw mut start, bytes, 0))?;
        std::ptr::write_bytes(start.cast::<u8>(), 0, bytes);
    }
    let start = NonNull::new(start.cast()).ok_or(DriverError::new("cuMemHostAlloc", Code::OUT_OF_MEMORY))?;
    let (free, context_given_up) = (functions.host_free, Arc::clone(given_up));
    Ok(Pinned(Box::new(PageLocked { start, bytes, free, context_given_up })))
}

struct PageLocked {
    start: NonNull<u8>,
    bytes: usize,
    free: unsafe extern "C" fn(*mut c_void) -> u32,
    context_given_up: Arc<AtomicBool>,
}

// SAFETY: the value owns its bytes, like a `Box`. The driver may be called from any thread. In a thread without a
// current context, it may refuse to free the memory, which is then leaked.
unsafe impl Send for PageLocked {}

impl AsRef<[u8]> for PageLocked {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `bytes` bytes that the driver allocated, and that were zeroed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl AsMut<[u8]> for PageLocked {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for PageLocked {
    fn drop(&mut self) {
        if self.context_given_up.load(Ordering::Relaxed) {
            // Freeing the memory could wait for a kernel that never ends.
            return;
        }
        // SAFETY: an address that the driver allocated, freed once.
        let _ = unsafe { (self.free)(self.start.as_ptr().cast()) };
    }
}
