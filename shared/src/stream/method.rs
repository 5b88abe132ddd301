//! Implements the methods of reading a file without filling the page cache, and finds out which of them a file system
//! supports.
//!
//! Pages that were already in the cache stay there. Whether a file system supports a method is determined by trying the
//! method once.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{Advice, AtFlags, StatxFlags, fadvise, statx};
use rustix::io::{ReadWriteFlags, preadv2};

use super::{ALIGNMENT, StreamFile};
use crate::cache::cached_pages_in;

/// `RWF_DONTCACHE`, since Linux 6.14: pages are read through the cache, and then dropped from it.
const RWF_DONTCACHE: u32 = 0x80;
/// `STATX_DIOALIGN`, since Linux 6.1.
const STATX_DIOALIGN: u32 = 0x2000;

/// A method of reading a file without filling the page cache. The best method comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadMethod {
    /// `preadv2(RWF_DONTCACHE)`.
    Uncached,
    /// `O_DIRECT`.
    Direct,
    /// Reads through the cache, and then drops the pages of each piece that was read, if none of them was cached
    /// before.
    Behind,
}

impl ReadMethod {
    pub const ALL: [Self; 3] = [Self::Uncached, Self::Direct, Self::Behind];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Uncached => "uncached",
            Self::Direct => "direct",
            Self::Behind => "behind",
        }
    }

    /// The method to use if this one does not work.
    fn fallback(self) -> Self {
        match self {
            Self::Uncached => Self::Direct,
            Self::Direct | Self::Behind => Self::Behind,
        }
    }

    fn from_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::Behind)
    }
}

/// The method to try first on each file system, by device number, as learned from earlier failures.
static KNOWN: Mutex<BTreeMap<u64, ReadMethod>> = Mutex::new(BTreeMap::new());

/// A file that is streamed from a disk.
pub struct FileDisk {
    /// The file, which is opened separately if possible, so that advice given to Linux about it does not affect other
    /// users of the file.
    file: File,
    direct: Option<(File, u64)>,
    device: u64,
    method: AtomicU8,
}

impl FileDisk {
    /// Opens the file again for this many readers. They start with the method that is known for the file system or, if
    /// none is known, with the best one.
    pub fn new(file: &File, readers: usize) -> io::Result<Self> {
        Self::with_method(file, readers, None)
    }

    /// Like `new`, but if `method` is given, starts with this method, regardless of what is known about the file
    /// system.
    pub fn with_method(file: &File, readers: usize, method: Option<ReadMethod>) -> io::Result<Self> {
        let device = file.metadata()?.dev();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let direct = direct_alignment(file).and_then(|alignment| {
            let opened = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
            Some((opened.ok()?, alignment))
        });
        let file = match File::open(&path) {
            Ok(own) => {
                // With a single reader, Linux should read ahead. With several readers, Linux would not recognise that
                // the file is read in order.
                let advice = if readers <= 1 { Advice::Sequential } else { Advice::Random };
                let _ = fadvise(&own, 0, None, advice);
                own
            }
            Err(_) => file.try_clone()?,
        };
        let remembered = KNOWN.lock().map(|remembered| remembered.get(&device).copied());
        let method = method.or(remembered.unwrap_or_default()).unwrap_or(ReadMethod::Uncached);
        if method == ReadMethod::Behind {
            turn_off_read_ahead(&file);
        }
        Ok(Self { file, direct, device, method: AtomicU8::new(method as u8) })
    }

    fn uncached(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let flags = ReadWriteFlags::from_bits_retain(RWF_DONTCACHE);
        Ok(preadv2(&self.file, &mut [IoSliceMut::new(buffer)], offset, flags)?)
    }

    /// Reads through the cache, and drops the pages from it afterwards, unless at least one of them was cached before.
    fn behind(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let length = buffer.len() as u64;
        let cached_before = cached_pages_in(self.file.as_fd(), offset, length).unwrap_or(0);
        let read = self.file.read_at(buffer, offset)?;
        if cached_before == 0 {
            // Only whole pages are dropped, because part of the page at either end may belong to a neighbour.
            let _ = fadvise(&self.file, offset, NonZeroU64::new(length), Advice::DontNeed);
        }
        Ok(read)
    }
}

impl StreamFile for FileDisk {
    fn method(&self) -> ReadMethod {
        ReadMethod::from_number(self.method.load(Ordering::Relaxed))
    }

    fn step_down(&self, from: ReadMethod) {
        // Another reader may have switched to the next method already.
        let next = from.fallback();
        let (from, to) = (from as u8, next as u8);
        if self.method.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            && let Ok(mut known) = KNOWN.lock()
        {
            known.insert(self.device, next);
            if next == ReadMethod::Behind {
                turn_off_read_ahead(&self.file);
            }
        }
    }

    fn alignment(&self) -> u64 {
        self.direct.as_ref().map_or(ALIGNMENT, |(_, alignment)| *alignment)
    }

    fn read_at(&self, method: ReadMethod, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match (method, &self.direct) {
            (ReadMethod::Uncached, _) => self.uncached(buffer, offset),
            (ReadMethod::Direct, Some((direct, _))) => {
                let pages = (buffer.len() as u64).div_ceil(rustix::param::page_size() as u64);
                match cached_pages_in(self.file.as_fd(), offset, buffer.len() as u64) {
                    Ok(cached) if pages <= cached => self.file.read_at(buffer, offset),
                    _ => direct.read_at(buffer, offset),
                }
            }
            (ReadMethod::Direct, None) => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
            (ReadMethod::Behind, _) => self.behind(buffer, offset),
        }
    }
}

/// Turns off read-ahead, because pages that were read ahead would look as if they had been in the cache before.
fn turn_off_read_ahead(file: &File) {
    let _ = fadvise(file, 0, None, Advice::Random);
}

/// Returns the alignment that direct reads of this file need. `None` if direct reads are not possible, or if our slots
/// do not have the required alignment.
fn direct_alignment(file: &File) -> Option<u64> {
    let status = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::from_bits_retain(STATX_DIOALIGN)).ok()?;
    let alignment = u64::from(status.stx_dio_mem_align.max(status.stx_dio_offset_align));
    (status.stx_mask & STATX_DIOALIGN != 0
        && status.stx_dio_offset_align != 0
        && alignment.is_power_of_two()
        && alignment <= ALIGNMENT)
        .then_some(alignment)
}
