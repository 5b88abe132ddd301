//! Flushes bytes from the caches of every CPU, so that a block has to read them from memory.
//!
//! Caches use physical addresses, so flushing a line through one mapping of a page flushes it for all mappings. Pages
//! that are not in memory are skipped.

use std::os::fd::BorrowedFd;

use opt_shared::units::to_index;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The smallest cache line, in bytes, of the processors that we support.
const LINE: usize = 64;
/// The number of bytes that are mapped at a time. Resident pages of the mapping count as this process's memory.
const WINDOW: u64 = 1 << 20;

/// Evicts a range of a file. The part beyond the end of the file is ignored.
pub(super) fn evict(file: BorrowedFd<'_>, from: u64, bytes: u64) -> Result<(), Errno> {
    let page = rustix::param::page_size() as u64;
    let length = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
    let end = from.saturating_add(bytes).min(length);
    let mut at = from - from % page;
    while at < end {
        let window = (end - at).min(WINDOW);
        evict_window(file, at, to_index(window))?;
        at += window.next_multiple_of(page);
    }
    Ok(())
}

fn evict_window(file: BorrowedFd<'_>, at: u64, bytes: usize) -> Result<(), Errno> {
    // SAFETY: a fresh shared mapping; nothing is replaced.
    let start = unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, at)? };
    let page = rustix::param::page_size();
    let mut resident = vec![0_u8; bytes.div_ceil(page)];
    // SAFETY: `start` is our own mapping of `bytes` bytes, and `resident` has a byte for each of its pages.
    let succeeded = unsafe { libc::mincore(start, bytes, resident.as_mut_ptr()) } == 0;
    for (number, _) in resident.iter().enumerate().filter(|(_, state)| succeeded && **state & 1 != 0) {
        let first = number * page;
        for line in (first..bytes.min(first + page)).step_by(LINE) {
            flush(start.cast::<u8>().wrapping_add(line));
        }
    }
    fence();
    // SAFETY: our own mapping, not used after this.
    unsafe { munmap(start, bytes) }
}

#[cfg(target_arch = "x86_64")]
fn flush(line: *const u8) {
    // SAFETY: the address is in our own readable mapping; flushing changes no content.
    unsafe { std::arch::x86_64::_mm_clflush(line) };
}

#[cfg(target_arch = "x86_64")]
fn fence() {
    // SAFETY: a memory barrier has no preconditions.
    unsafe { std::arch::x86_64::_mm_mfence() };
}

#[cfg(target_arch = "aarch64")]
fn flush(line: *const u8) {
    // SAFETY: the address is in our own readable mapping; Linux lets programs clean and invalidate lines.
    unsafe { std::arch::asm!("dc civac, {}", in(reg) line, options(nostack, preserves_flags)) };
}

#[cfg(target_arch = "aarch64")]
fn fence() {
    // SAFETY: a memory barrier has no preconditions.
    unsafe { std::arch::asm!("dsb sy", options(nostack, preserves_flags)) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use opt_shared::units::Bytes;

    use super::*;
    use crate::memfd;

    #[test]
    fn evict_leaves_contents_unchanged() {
        let memfd = memfd::fixed("opt-evicted", Bytes::mib(3)).expect("a memfd");
        let content: Vec<u8> = (0..3 << 20).map(|at: u32| (at % 251) as u8).collect();
        rustix::io::pwrite(&memfd, &content, 0).expect("written");
        for (from, bytes) in
            [(0, 3 << 20), (4097, 100), (1 << 20, 1 << 20), (0, u64::MAX), (1 << 40, 64), (5, 0)]
        {
            evict(memfd.as_fd(), from, bytes).expect("evicted");
        }
        let mut read = vec![0; content.len()];
        rustix::io::pread(&memfd, &mut read, 0).expect("read");
        assert!(read == content);
    }

    #[test]
    fn evict_does_not_allocate_missing_pages() {
        let memfd = memfd::fixed("opt-sparse", Bytes::mib(64)).expect("a memfd");
        rustix::io::pwrite(&memfd, &[1; 4096], 0).expect("written");
        evict(memfd.as_fd(), 0, 64 << 20).expect("evicted");
        let blocks = rustix::fs::fstat(&memfd).expect("stat").st_blocks;
        assert!(blocks * 512 <= 1 << 20, "{blocks} blocks");
    }
}
