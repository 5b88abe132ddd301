//! Leaves the page cache as it was found: what a large job pulled in is dropped after each entry.
//!
//! Owns the looking and the dropping for one file. Whether a job is large enough to bother is decided where the
//! plan and the machine are known; small sets stay cached, because the next candidate reads them again.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Advice, fadvise};

use crate::units::Bytes;

/// The same number on every architecture. Linux 6.5.
const SYS_CACHESTAT: libc::c_long = 451;

/// What is looked at as one in a file that was in the cache for the most part.
const WINDOW_BYTES: u64 = 2 << 20;

/// How often pages that may still be on their way from the disk are dropped, and the pause between two tries.
const MOST_TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// One file whose cache is to be dropped: all of it, or, where most was there before, what was not.
pub struct CacheGuard {
    file: Arc<File>,
    before: Option<u64>,
    drop: Vec<Range<u64>>,
}

impl CacheGuard {
    /// Looks at the file before anything of it is read.
    pub fn watch(file: Arc<File>, large_job: bool) -> Self {
        let before = cached_pages(file.as_fd());
        let drop = if large_job { not_there(&file, before) } else { Vec::new() };
        Self { file, before, drop }
    }

    /// Drops what was read up to here, so that a long read never holds much.
    pub fn behind(&self, end: u64) {
        for range in self.drop.iter().take_while(|range| range.start < end) {
            let length = NonZeroU64::new(range.end.min(end) - range.start);
            // Clean pages that nobody maps go; advice that is not taken costs nothing but cache.
            let _ = fadvise(&*self.file, range.start, length, Advice::DontNeed);
        }
    }

    /// Drops what came into all of these files, and tells of each how many bytes were in the cache before and are now, where
    /// the kernel tells. Pages that the disk is still bringing stay, and are there in a moment: so it is done again, as
    /// long as that helps. The waits are for all files together.
    pub fn release_all(guards: Vec<Self>) -> Vec<(Bytes, Bytes)> {
        let mut left_before = None;
        for _ in 0..MOST_TRIES {
            let left: u64 = guards.iter().map(Self::drop_and_count).sum();
            if left == 0 || left_before.is_some_and(|before| before <= left) {
                break;
            }
            left_before = Some(left);
            std::thread::sleep(PAUSE);
        }
        let bytes = |pages: u64| Bytes::new(pages * rustix::param::page_size() as u64);
        let of = |guard: Self| Some((bytes(guard.before?), bytes(cached_pages(guard.file.as_fd())?)));
        guards.into_iter().filter_map(of).collect()
    }

    /// Pages beyond what was there before that stay.
    fn drop_and_count(&self) -> u64 {
        self.behind(u64::MAX);
        let now = if self.drop.is_empty() { None } else { cached_pages(self.file.as_fd()) };
        now.unwrap_or(0).saturating_sub(self.before.unwrap_or(0))
    }
}

impl Drop for CacheGuard {
    fn drop(&mut self) {
        self.behind(u64::MAX);
    }
}

/// What may be dropped without taking from others what they read: everything, unless the file is mostly cached.
fn not_there(file: &File, before: Option<u64>) -> Vec<Range<u64>> {
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

/// Pages of the file in the cache; none where the kernel does not tell.
pub fn cached_pages(descriptor: BorrowedFd<'_>) -> Option<u64> {
    // Length 0 means to the end of the file.
    cached_pages_in(descriptor, 0, 0).ok()
}

/// Pages of `length` bytes from `offset` on that are in the cache. `ENOSYS` before Linux 6.5; newer kernels tell only
/// the file's owner and those who may write to it.
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
    // SAFETY: both structures have the layout of linux/mman.h and outlive the call; it writes to `stat` only.
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
        // In the build folder, because a tmpfs is nothing but cache.
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).expect("a file");
        file.write_all(&vec![7; 4 << 20]).expect("written");
        file.sync_all().expect("on disk");
        let file = Arc::new(file);
        fadvise(&file, 0, None, Advice::DontNeed).expect("advised");
        let Some(before) = cached_pages(file.as_fd()) else {
            println!("skipped: this kernel has no cachestat");
            return;
        };
        let read_all = || {
            let mut copy = file.try_clone().expect("a second descriptor");
            std::io::Seek::rewind(&mut copy).expect("at the start");
            std::io::copy(&mut copy.take(8 << 20), &mut std::io::sink()).expect("read");
        };
        if before != 0 {
            println!("skipped: this file system keeps {before} pages whatever it is told");
            return;
        }
        {
            let _guard = CacheGuard::watch(file.clone(), true);
            read_all();
            assert!(0 < cached_pages(file.as_fd()).expect("told before"));
        }
        assert_eq!(cached_pages(file.as_fd()), Some(0));
        read_all();
        {
            let _guard = CacheGuard::watch(file.clone(), true);
        }
        assert!(0 < cached_pages(file.as_fd()).expect("told before"), "it was there before");
        // Its second half comes in where the first was there.
        let page = rustix::param::page_size() as u64;
        fadvise(&file, 3 << 20, None, Advice::DontNeed).expect("advised");
        fadvise(&file, 0, NonZeroU64::new(1 << 20), Advice::DontNeed).expect("advised");
        let kept = cached_pages(file.as_fd()).expect("told before") * page;
        let guard = CacheGuard::watch(file.clone(), true);
        read_all();
        let (before, after) = CacheGuard::release_all(vec![guard])[0];
        assert_eq!(before, Bytes::new(kept));
        assert!(after <= before, "{after} after {before}");
    }
}
