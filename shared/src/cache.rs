//! Leaves the page cache as it was found: what a large job pulled in is dropped after each entry.
//!
//! Owns the looking and the dropping for one file. Whether a job is large enough to bother is decided where the
//! plan and the machine are known; small sets stay cached, because the next candidate reads them again.

use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{Advice, fadvise};

/// The same number on every architecture. Linux 6.5.
const SYS_CACHESTAT: libc::c_long = 451;

/// One file whose cache is to be dropped, unless it was mostly there before.
pub struct CacheGuard {
    file: Arc<File>,
    drop_it: bool,
}

impl CacheGuard {
    /// Looks at the file before anything of it is read.
    pub fn watch(file: Arc<File>, large_job: bool) -> Self {
        let drop_it = large_job && !mostly_cached(&file);
        Self { file, drop_it }
    }

    /// Drops what was read up to here, so that a long read never holds much.
    pub fn behind(&self, end: u64) {
        if self.drop_it {
            let _ = fadvise(&*self.file, 0, NonZeroU64::new(end), Advice::DontNeed);
        }
    }
}

impl Drop for CacheGuard {
    fn drop(&mut self) {
        if self.drop_it {
            // Clean pages that nobody maps go; advice that is not taken costs nothing but cache.
            let _ = fadvise(&*self.file, 0, None, Advice::DontNeed);
        }
    }
}

/// Bytes of the file in the cache; none where the kernel does not tell.
pub fn cached_pages(descriptor: BorrowedFd<'_>) -> Option<u64> {
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
    // Length 0 means to the end of the file.
    let range = Range { offset: 0, length: 0 };
    let mut stat = Stat::default();
    // SAFETY: both structures have the layout of linux/mman.h and outlive the call; it writes to `stat` only.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, descriptor.as_raw_fd(), &raw const range, &raw mut stat, 0) };
    (result == 0).then_some(stat.cached)
}

fn mostly_cached(file: &File) -> bool {
    use std::os::fd::AsFd;
    let (Some(cached), Ok(metadata)) = (cached_pages(file.as_fd()), file.metadata()) else { return false };
    let pages = metadata.len().div_ceil(rustix::param::page_size() as u64);
    pages < cached.saturating_mul(2)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_was_not_there_before_is_gone_after() {
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
    }
}
