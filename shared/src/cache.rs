//! Drops from the page cache the pages that the reads of a large job have added to it.
//!
//! This module counts and drops the cached pages of single files. The caller decides whether pages are dropped at all.
//! Small capture sets stay cached, because the next candidate reads them again.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Advice, fadvise};

use crate::units::Bytes;

/// The system call `cachestat`, since Linux 6.5. It has the same number on x86-64 and aarch64.
const SYS_CACHESTAT: libc::c_long = 451;

/// The size, in bytes, of the windows in which a mostly cached file is examined.
const WINDOW_BYTES: u64 = 2 << 20;

/// The largest number of attempts to drop pages. One attempt may not suffice, because some pages may still be arriving
/// from the disk.
const MAX_TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// A guard that drops one file's pages from the cache when it goes out of scope, if `watch` was called with
/// `large_job`. If more than half of the file was already cached, the guard drops only the pages of windows in which
/// nothing was cached.
pub struct CacheGuard {
    file: Arc<File>,
    /// The number of pages that were cached before the first read; `None` if Linux does not report it.
    before: Option<u64>,
    /// True if all pages of the file were cached before the first read.
    found_cached: bool,
    /// The byte ranges whose pages are dropped.
    drop: Vec<Range<u64>>,
}

impl CacheGuard {
    /// Makes a guard for a file and counts the file's cached pages. Call this before the first read of the file.
    pub fn watch(file: Arc<File>, large_job: bool) -> Self {
        let before = cached_pages(file.as_fd());
        let pages = file.metadata().ok().map(|file| file.len().div_ceil(rustix::param::page_size() as u64));
        let found_cached = pages.zip(before).is_some_and(|(pages, cached)| pages <= cached);
        let drop = if large_job { droppable(&file, before) } else { Vec::new() };
        Self { file, before, found_cached, drop }
    }

    /// Returns true if all pages of the file were cached when the guard was made.
    pub const fn found_cached(&self) -> bool {
        self.found_cached
    }

    /// Drops pages that lie before offset `end`, as far as they are in the ranges to be dropped. A long read calls this
    /// as it advances.
    pub fn drop_before(&self, end: u64) {
        for range in self.drop.iter().take_while(|range| range.start < end) {
            let length = NonZeroU64::new(range.end.min(end) - range.start);
            // Linux drops only clean pages that are not mapped. If it ignores the advice, the pages stay cached, which
            // does no harm.
            let _ = fadvise(&*self.file, range.start, length, Advice::DontNeed);
        }
    }

    /// Drops the pages that these guards are to drop. For each file, returns how many bytes were cached before the
    /// reads and how many are cached now. Files for which Linux does not report these numbers are left out.
    ///
    /// Pages that are still being read from disk cannot be dropped. Dropping is therefore repeated as long as it makes
    /// progress, at most `MAX_TRIES` times.
    pub fn release_all(guards: Vec<Self>) -> Vec<(Bytes, Bytes)> {
        let mut left_before = None;
        for _ in 0..MAX_TRIES {
            let pages_left: u64 = guards.iter().map(Self::drop_and_count).sum();
            if pages_left == 0 || left_before.is_some_and(|before| before <= pages_left) {
                break;
            }
            left_before = Some(pages_left);
            std::thread::sleep(PAUSE);
        }
        let bytes = |pages: u64| Bytes::new(pages * rustix::param::page_size() as u64);
        let of = |guard: Self| Some((bytes(guard.before?), bytes(cached_pages(guard.file.as_fd())?)));
        guards.into_iter().filter_map(of).collect()
    }

    /// Drops pages, and returns how many more pages are cached now than before the first read. Returns 0 if nothing is
    /// to be dropped or Linux does not report the numbers.
    fn drop_and_count(&self) -> u64 {
        self.drop_before(u64::MAX);
        let now = if self.drop.is_empty() { None } else { cached_pages(self.file.as_fd()) };
        now.unwrap_or(0).saturating_sub(self.before.unwrap_or(0))
    }
}

impl Drop for CacheGuard {
    fn drop(&mut self) {
        self.drop_before(u64::MAX);
    }
}

/// Returns the ranges to drop: the whole file or, if more than half of it is cached, only the windows in which nothing
/// is cached.
fn droppable(file: &File, before: Option<u64>) -> Vec<Range<u64>> {
    let everything = std::iter::once(0..u64::MAX >> 1).collect();
    let (Some(cached), Ok(metadata)) = (before, file.metadata()) else { return everything };
    let bytes = metadata.len();
    let pages = bytes.div_ceil(rustix::param::page_size() as u64);
    if cached.saturating_mul(2) <= pages {
        return everything;
    }
    if pages <= cached {
        return Vec::new();
    }
    let windows = (0..bytes.div_ceil(WINDOW_BYTES)).map(|at| at * WINDOW_BYTES..(at + 1) * WINDOW_BYTES);
    windows
        .filter(|it| cached_pages_in(file.as_fd(), it.start, it.end - it.start).is_ok_and(|pages| pages == 0))
        .collect()
}

/// Counts the file's pages in the cache; `None` if Linux does not report it.
pub fn cached_pages(descriptor: BorrowedFd<'_>) -> Option<u64> {
    // A length of 0 stands for everything up to the end of the file.
    cached_pages_in(descriptor, 0, 0).ok()
}

/// Counts the cached pages among the `length` bytes that begin at `offset`. Fails with `ENOSYS` before Linux 6.5.
/// Recent versions of Linux report the number only to the file's owner and to users who may write to the file.
pub fn cached_pages_in(descriptor: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<u64> {
    #[repr(C)]
    struct Range {
        offset: u64,
        length: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Stat {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    let range = Range { offset, length };
    let mut stat = Stat::default();
    // SAFETY: both structures have the layout of linux/mman.h and outlive the call, which writes only to `stat`.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, descriptor.as_raw_fd(), &raw const range, &raw mut stat, 0) };
    if result == 0 { Ok(stat.cached) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn cache_guard_drops_what_was_not_cached_before() {
        // The file must not be in a tmpfs, because all pages of such a file are always in the cache.
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).expect("a file");
        file.write_all(&vec![7; 4 << 20]).expect("written");
        file.sync_all().expect("on disk");
        let file = Arc::new(file);
        fadvise(&file, 0, None, Advice::DontNeed).expect("advised");
        let Some(before) = cached_pages(file.as_fd()) else {
            println!("skipped: cachestat does not report cached pages here");
            return;
        };
        let read_all = || {
            let mut copy = file.try_clone().expect("a second descriptor");
            std::io::Seek::rewind(&mut copy).expect("at the start");
            std::io::copy(&mut copy.take(8 << 20), &mut std::io::sink()).expect("read");
        };
        if before != 0 {
            println!("skipped: {before} pages stay cached on this file system");
            return;
        }
        {
            let _guard = CacheGuard::watch(file.clone(), true);
            read_all();
            assert!(0 < cached_pages(file.as_fd()).expect("Linux counts cached pages"));
        }
        assert_eq!(cached_pages(file.as_fd()), Some(0));
        read_all();
        {
            let _guard = CacheGuard::watch(file.clone(), true);
        }
        assert!(
            0 < cached_pages(file.as_fd()).expect("Linux counts cached pages"),
            "the guard dropped cached pages"
        );
        // Part of the file is cached now. Reading brings in the rest, which the guard drops.
        let page = rustix::param::page_size() as u64;
        fadvise(&file, 3 << 20, None, Advice::DontNeed).expect("advised");
        fadvise(&file, 0, NonZeroU64::new(1 << 20), Advice::DontNeed).expect("advised");
        let cached_bytes = cached_pages(file.as_fd()).expect("Linux counts cached pages") * page;
        let guard = CacheGuard::watch(file.clone(), true);
        read_all();
        let (before, after) = CacheGuard::release_all(vec![guard])[0];
        assert_eq!(before, Bytes::new(cached_bytes));
        assert!(after <= before, "{after} after {before}");
    }
}
