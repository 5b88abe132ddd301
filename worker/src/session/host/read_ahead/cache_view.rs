//! Counts how many pages of a part of a file are in the page cache, with `cachestat` or, before Linux 6.5, with
//! `mincore` on a private mapping.
//!
//! Linux reports this only to the file's owner and to processes that may write to the file. To others, `mincore`
//! reports every page as present, so it is used only by root and by the file's owner.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use opt_shared::cache::cached_pages_in;
use opt_shared::units::to_index;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The number of pages that one call of `mincore` covers.
const AT_ONCE: u64 = 4096;

/// The system calls that can query the cache, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheQuery {
    CacheStat,
    MinCore,
}

/// A view of whole pages of a file, counted from `offset`.
pub(super) struct CacheView {
    file: Arc<File>,
    offset: u64,
    page: u64,
    map: Option<Map>,
}

impl CacheView {
    /// Views a part of a file. Returns `None` if Linux does not report the pages to this process.
    pub(super) fn of(file: &Arc<File>, offset: u64, bytes: u64, query: CacheQuery) -> Option<Self> {
        let page = rustix::param::page_size() as u64;
        let map = match query {
            CacheQuery::CacheStat => {
                cached_pages_in(file.as_fd(), offset, page).ok()?;
                None
            }
            CacheQuery::MinCore => {
                if !is_reported_to_us(file) {
                    return None;
                }
                Some(Map::of(file, offset, bytes)?)
            }
        };
        Some(Self { file: Arc::clone(file), offset, page, map })
    }

    /// Returns the number of these pages that are in the cache. If a system call fails, its pages and those after them
    /// do not count.
    pub(super) fn resident(&self, pages: Range<u64>) -> u64 {
        if pages.end <= pages.start {
            return 0;
        }
        match &self.map {
            Some(map) => map.resident(pages, self.page),
            None => {
                let (offset, length) =
                    (self.offset + pages.start * self.page, (pages.end - pages.start) * self.page);
                cached_pages_in(self.file.as_fd(), offset, length).unwrap_or(0)
            }
        }
    }
}

/// Returns true if `mincore` reports to this process which pages are in the cache.
fn is_reported_to_us(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let own_user = rustix::process::geteuid();
    own_user.is_root() || metadata.uid() == own_user.as_raw()
}

struct Map {
    start: usize,
    bytes: usize,
}

impl Map {
    fn of(file: &File, offset: u64, bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok()?;
        // SAFETY: a fresh mapping at an address that Linux chooses; its contents are never read.
        let start = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::PRIVATE, file.as_fd(), offset)
        };
        Some(Self { start: start.ok()? as usize, bytes })
    }

    fn resident(&self, pages: Range<u64>, page: u64) -> u64 {
        let mut residency = [0_u8; to_index(AT_ONCE)];
        let mut resident = 0;
        let mut at = pages.start;
        while at < pages.end {
            let some = (pages.end - at).min(AT_ONCE);
            let (Ok(offset), Ok(length)) = (usize::try_from(at * page), usize::try_from(some * page)) else {
                break;
            };
            if self.bytes.next_multiple_of(to_index(page)) < offset + length {
                break;
            }
            // SAFETY: the range is in our mapping, and `residency` has room for a byte per page of it.
            let result =
                unsafe { libc::mincore((self.start + offset) as *mut _, length, residency.as_mut_ptr()) };
            if result != 0 {
                break;
            }
            resident += residency[..some as usize].iter().filter(|page| **page & 1 != 0).count() as u64;
            at += some;
        }
        resident
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: our own mapping; nothing refers into it.
        let _ = unsafe { munmap(self.start as *mut _, self.bytes) };
    }
}
