//! Finds out which pages of an input a process has touched, from its page tables.
//!
//! The page cache cannot show this, because it also contains pages that were read ahead and not used. Linux shows page
//! tables only to a process that has the right to trace the other one. Without this right, touches stay unknown.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

/// The maximum number of bytes of `maps` that are read. It is limited because a candidate can make this file very long.
const MAPS_BYTES: u64 = 1 << 20;
/// The size, in bytes, of a page's entry in `/proc/PID/pagemap`.
const ENTRY_BYTES: usize = 8;
/// The number of entries that are read at a time.
const AT_ONCE: usize = 128;
/// The highest bit of an entry: the page is in the process's page tables. See
/// `Documentation/admin-guide/mm/pagemap.rst` of Linux.
const PRESENT: u64 = 1 << 63;

/// A mapped input: the part of a file from an offset on.
pub(super) struct Mapped<'a> {
    pub(super) file: &'a File,
    pub(super) offset: u64,
}

pub(super) struct Touches {
    pagemap: File,
    page: u64,
    /// The address at which each input starts in the process.
    starts: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TouchesUnknown {
    /// Some inputs are not mapped yet.
    NotYet,
    /// The process's page tables or its list of mappings cannot be read.
    Never,
}

impl Touches {
    pub(super) fn of(pid: u32, inputs: &[Mapped<'_>]) -> Result<Self, TouchesUnknown> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap")).map_err(|_| TouchesUnknown::Never)?;
        let mut maps = String::new();
        let opened = File::open(format!("/proc/{pid}/maps")).map_err(|_| TouchesUnknown::Never)?;
        // Names in the list may not be valid UTF-8. The list then counts as unreadable.
        opened.take(MAPS_BYTES).read_to_string(&mut maps).map_err(|_| TouchesUnknown::Never)?;
        let starts = inputs.iter().map(|input| start_of(input, &maps).ok_or(TouchesUnknown::NotYet));
        let starts = starts.collect::<Result<_, _>>()?;
        Ok(Self { pagemap, page: rustix::param::page_size() as u64, starts })
    }

    /// Returns the number of these pages that were touched. Pages are counted from the input's offset. Neighbours that
    /// Linux maps together with a touched page are counted, too.
    pub(super) fn touched(&self, input: usize, pages: Range<u64>) -> u64 {
        let Some(start) = self.starts.get(input) else { return 0 };
        let mut entries = [0; AT_ONCE * ENTRY_BYTES];
        let mut touched = 0;
        let mut at = pages.start;
        while at < pages.end {
            let some = usize::try_from(pages.end - at).unwrap_or(AT_ONCE).min(AT_ONCE);
            let entries = &mut entries[..some * ENTRY_BYTES];
            // Reading fails if the process has ended. No pages are counted then.
            if self.pagemap.read_exact_at(entries, (start / self.page + at) * ENTRY_BYTES as u64).is_err() {
                break;
            }
            let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
            touched +=
                entries.iter().filter(|entry| u64::from_ne_bytes(**entry) & PRESENT != 0).count() as u64;
            at += some as u64;
        }
        touched
    }
}

/// A line of `maps` is `start-end rights offset major:minor inode name`; all numbers but the inode are hexadecimal.
fn start_of(input: &Mapped<'_>, maps: &str) -> Option<u64> {
    let metadata = input.file.metadata().ok()?;
    let device = metadata.dev();
    let device = format!("{:02x}:{:02x}", rustix::fs::major(device), rustix::fs::minor(device));
    maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let offset = hexadecimal(fields.nth(1)?)?;
        if fields.next()? != device || fields.next()?.parse() != Ok(metadata.ino()) {
            return None;
        }
        let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
        let within = input.offset.checked_sub(offset)?;
        (within < end.checked_sub(start)?).then_some(start + within)
    })
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::mm::{MapFlags, ProtFlags, mmap};

    use super::*;

    #[test]
    fn touches_are_counted_only_at_and_near_the_touched_page() {
        let page = rustix::param::page_size();
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&vec![1; 256 * page]).expect("written");
        let mapped = || [Mapped { file: &file, offset: 4 * page as u64 }];
        assert_eq!(Touches::of(std::process::id(), &mapped()).err(), Some(TouchesUnknown::NotYet));
        // SAFETY: a fresh mapping at an address that Linux chooses, of a file that does not change.
        let start = unsafe {
            mmap(std::ptr::null_mut(), 255 * page, ProtFlags::READ, MapFlags::PRIVATE, &file, page as u64)
        }
        .expect("mapped");
        let touches =
            Touches::of(std::process::id(), &mapped()).expect("a process can read its own page tables");
        assert!(touches.touched(0, 0..250) == 0, "nothing was touched");
        // SAFETY: within the mapping, whose second page is the file's third.
        unsafe { start.cast::<u8>().add((4 - 1 + 7) * page).read_volatile() };
        assert_eq!(touches.touched(0, 7..8), 1);
        assert!(touches.touched(0, 0..250) < 64, "neighbours");
        assert_eq!(touches.touched(0, 200..250), 0, "far from the touched pages");
        assert_eq!(touches.touched(1, 0..9), 0, "there is no such input");
        assert_eq!(Touches::of(0, &mapped()).err(), Some(TouchesUnknown::Never), "there is no such process");
    }
}
