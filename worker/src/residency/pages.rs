//! Anonymous memory in whole pages, which are returned to Linux as soon as the memory is dropped. (An allocator might
//! keep them.)

use std::io;
use std::ptr::NonNull;

use opt_shared::placement::whole_grains;
use opt_shared::units::Bytes;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

pub struct Pages {
    start: NonNull<u8>,
    /// The requested length. The mapping is rounded up to whole pages.
    length: usize,
    mapped: usize,
}

// SAFETY: `Pages` owns its memory, like a `Box`.
unsafe impl Send for Pages {}

impl Pages {
    pub(super) fn new(bytes: Bytes) -> io::Result<Self> {
        let page = Bytes::from(rustix::param::page_size());
        let mapped = whole_grains(bytes.max(page), page).to_usize();
        // SAFETY: a fresh mapping; Linux chooses the address.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let start = NonNull::new(start.cast())
            .ok_or_else(|| io::Error::other("Linux mapped the memory at address 0"))?;
        Ok(Self { start, length: bytes.to_usize(), mapped })
    }
}

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `length` bytes of our own mapping, which is readable until `self` is dropped.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl AsMut<[u8]> for Pages {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the mapping is writable, and `&mut self` is the only reference to it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this is all of our own mapping, and no reference to it is left. If this fails, nothing can be done.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}
