//! A mapping of outputs, from which single elements are read at the moment when a candidate reports that it is done,
//! and again once the runner is stopped.
//!
//! All other reads of outputs use `pread` while the runner is stopped. `pread` is not used here because it would take
//! longer, and a timed block ends only after the elements have been read for the first time.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use opt_shared::units::{Bytes, to_index};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::session::WIDEST_ELEMENT;

/// The bytes of one element. Unused bytes at the end are zero.
pub(super) type Element = [u8; WIDEST_ELEMENT];

/// A mapping of the outputs' memfd, which is sealed against resizing, so no read of it can raise SIGBUS.
pub(super) struct View {
    start: NonNull<u8>,
    bytes: usize,
}

impl View {
    pub(super) fn of(memfd: BorrowedFd<'_>, bytes: Bytes) -> rustix::io::Result<Self> {
        let bytes = to_index(bytes.get());
        // SAFETY: a fresh shared mapping of a whole sealed memfd; nothing is replaced.
        let address = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, memfd, 0)?
        };
        let start = NonNull::new(address.cast()).ok_or(rustix::io::Errno::FAULT)?;
        Ok(Self { start, bytes })
    }

    /// Maps the pages of these elements. Uses write faults, because a read fault would also map neighbouring pages,
    /// which would count as this process's memory.
    pub(super) fn prepare(&self, elements: impl Iterator<Item = u64>) {
        let page = rustix::param::page_size();
        for offset in elements.map(to_index).filter(|&offset| offset < self.bytes) {
            let from = offset - offset % page;
            // SAFETY: a page of our own mapping; the advice changes no content.
            let populated = unsafe { madvise(self.at(from), page, Advice::LinuxPopulateWrite) };
            if populated.is_err() {
                // Before Linux 5.14, the page is read instead, which also maps its neighbours.
                self.read(offset as u64, 1);
            }
        }
    }

    /// Reads an element, which the candidate may be writing at the same time. Bytes outside the memfd read as zero.
    pub(super) fn read(&self, offset: u64, width: usize) -> Element {
        let mut element = Element::default();
        let from = to_index(offset);
        for (number, byte) in element.iter_mut().enumerate().take(width) {
            let at = from.saturating_add(number);
            if at < self.bytes {
                // SAFETY: inside our own mapping, which lives as long as `self`. Another process may write to it at any
                // time, so it is read byte by byte with volatile reads, and every value is valid.
                *byte = unsafe { self.start.as_ptr().add(at).read_volatile() };
            }
        }
        element
    }

    /// Unmaps all pages, so that they no longer count as this process's memory.
    pub(super) fn forget(&self) {
        // SAFETY: our own shared mapping; its content stays in the memfd.
        let _ = unsafe { madvise(self.at(0), self.bytes, Advice::LinuxDontNeed) };
    }

    fn at(&self, offset: usize) -> *mut std::ffi::c_void {
        self.start.as_ptr().wrapping_add(offset).cast()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: our own mapping, not used after this.
        let _ = unsafe { munmap(self.at(0), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::memfd;

    #[test]
    fn view_reads_current_contents() {
        let bytes = Bytes::kib(64);
        let memfd = memfd::fixed("opt-test", bytes).expect("a memfd");
        let view = View::of(memfd.as_fd(), bytes).expect("mapped");
        view.prepare([0, 40_000, 1 << 40].into_iter());
        assert_eq!(view.read(40_000, 4), Element::default());
        rustix::io::pwrite(&memfd, &[1, 2, 3, 4, 5], 40_000).expect("written");
        let mut expected = Element::default();
        expected[..4].copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(view.read(40_000, 4), expected);
        view.forget();
        assert_eq!(view.read(40_000, 4), expected);
        // Reads outside the mapping return zeros and do not fault.
        assert_eq!(view.read(1 << 40, 16), Element::default());
        assert_eq!(view.read(u64::MAX, 16), Element::default());
    }

    #[test]
    fn prepare_maps_only_the_elements_pages() {
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
            let map = status.split("/memfd:opt-looked-at").nth(1).expect("the map");
            let line = map.lines().find(|line| line.starts_with("Rss:")).expect("Rss");
            line.split_ascii_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a figure")
        };
        let bytes = Bytes::mib(1);
        let memfd = memfd::fixed("opt-looked-at", bytes).expect("a memfd");
        rustix::io::pwrite(&memfd, &vec![7; 1 << 20], 0).expect("written");
        let view = View::of(memfd.as_fd(), bytes).expect("mapped");
        view.prepare([100, 500_000].into_iter());
        let page = rustix::param::page_size() / 1024;
        assert_eq!(resident(), 2 * page);
        view.forget();
        assert_eq!(resident(), 0);
    }
}
