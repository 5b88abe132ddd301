//! Outputs as this process sees them while their runner runs: single elements, read at the moment at which a candidate says that
//! it is done.
//!
//! Everything else reads outputs with `pread`, from a runner that stands still. That takes ten times as long, and the second stamp
//! of a block comes after these reads.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use opt_shared::units::{Bytes, to_index};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::session::WIDEST_ELEMENT;

/// One element, its bytes first.
pub(super) type Element = [u8; WIDEST_ELEMENT];

/// The outputs' memfd, mapped. It is sealed against resizing, so no read of it can raise SIGBUS.
pub(super) struct View {
    start: NonNull<u8>,
    bytes: usize,
}

impl View {
    pub(super) fn of(memfd: BorrowedFd<'_>, bytes: Bytes) -> rustix::io::Result<Self> {
        let bytes = to_index(bytes.get());
        // SAFETY: a fresh shared map of a whole sealed memfd; nothing is replaced.
        let address = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, memfd, 0)?
        };
        let start = NonNull::new(address.cast()).ok_or(rustix::io::Errno::FAULT)?;
        Ok(Self { start, bytes })
    }

    /// Has the pages of these elements in the page table, and no others: a write fault brings no neighbours along, which would
    /// count as this process's memory. Nothing is written.
    pub(super) fn prepare(&self, elements: impl Iterator<Item = u64>) {
        let page = rustix::param::page_size();
        for offset in elements.map(to_index).filter(|&offset| offset < self.bytes) {
            let from = offset - offset % page;
            // SAFETY: a page of our own map; the advice changes no content.
            let populated = unsafe { madvise(self.at(from), page, Advice::LinuxPopulateWrite) };
            if populated.is_err() {
                // Before Linux 5.14: the fault comes now, with its neighbours.
                self.read(offset as u64, 1);
            }
        }
    }

    /// Bytes of a candidate that may be writing them. Zeros for what lies outside.
    pub(super) fn read(&self, offset: u64, width: usize) -> Element {
        let mut element = Element::default();
        let from = to_index(offset);
        for (number, byte) in element.iter_mut().enumerate().take(width) {
            let at = from.saturating_add(number);
            if at < self.bytes {
                // SAFETY: inside our own map, which lives as long as `self`; another process may write it at any time, so it is
                // read byte by byte and volatile, and every value is a valid one.
                *byte = unsafe { self.start.as_ptr().add(at).read_volatile() };
            }
        }
        element
    }

    /// Takes all of it out of the page table: what was looked at counts as this process's memory no longer.
    pub(super) fn forget(&self) {
        // SAFETY: our own shared map; its content stays in the memfd.
        let _ = unsafe { madvise(self.at(0), self.bytes, Advice::LinuxDontNeed) };
    }

    fn at(&self, offset: usize) -> *mut std::ffi::c_void {
        self.start.as_ptr().wrapping_add(offset).cast()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: our own map, not used after this.
        let _ = unsafe { munmap(self.at(0), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::memfd;

    #[test]
    fn an_element_is_read_as_it_is_now() {
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
        // Outside: nothing, and no fault.
        assert_eq!(view.read(1 << 40, 16), Element::default());
        assert_eq!(view.read(u64::MAX, 16), Element::default());
    }

    /// Sixty-four looks must not count as four megabytes.
    #[test]
    fn looking_at_an_element_takes_its_page_and_no_neighbours() {
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
