//! Which pages of an input a process has touched: those that its page tables hold.
//!
//! What is in the cache says that once only: a page that was read ahead is there, used or not. Owns the finding of an
//! input among the maps of a process, and the looking. The kernel tells whoever may trace the process; where it does not,
//! nobody is the wiser.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Most bytes read of `/proc/PID/maps`: a candidate can make it as long as it likes, but our own maps were there first.
const MAPS_BYTES: u64 = 1 << 20;
/// A page's entry in `/proc/PID/pagemap`.
const ENTRY_BYTES: usize = 8;
/// Entries that are read together.
const AT_ONCE: usize = 128;
/// Its highest bit: the page is there. See `Documentation/admin-guide/mm/pagemap.rst` of Linux.
const PRESENT: u64 = 1 << 63;

/// What is asked about: a file, from an offset on.
pub(super) struct Mapped<'a> {
    pub(super) file: &'a File,
    pub(super) offset: u64,
}

/// The touches of one process.
pub(super) struct Touches {
    pagemap: File,
    page: u64,
    /// Where each input starts there.
    starts: Vec<u64>,
}

/// Why nothing can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blind {
    /// Not all of it is mapped yet.
    NotYet,
    /// The kernel does not tell us.
    Never,
}

impl Touches {
    pub(super) fn of(pid: u32, inputs: &[Mapped<'_>]) -> Result<Self, Blind> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap")).map_err(|_| Blind::Never)?;
        let mut maps = String::new();
        let opened = File::open(format!("/proc/{pid}/maps")).map_err(|_| Blind::Never)?;
        // Names are not always UTF-8; then the file is as good as closed to us.
        opened.take(MAPS_BYTES).read_to_string(&mut maps).map_err(|_| Blind::Never)?;
        let starts = inputs.iter().map(|input| start_of(input, &maps).ok_or(Blind::NotYet));
        let starts = starts.collect::<Result<_, _>>()?;
        Ok(Self { pagemap, page: rustix::param::page_size() as u64, starts })
    }

    /// How many of these pages, counted from the offset, were touched. The kernel maps some of their neighbours with them.
    pub(super) fn touched(&self, input: usize, pages: Range<u64>) -> u64 {
        let Some(start) = self.starts.get(input) else { return 0 };
        let mut entries = [0; AT_ONCE * ENTRY_BYTES];
        let mut touched = 0;
        let mut at = pages.start;
        while at < pages.end {
            let some = usize::try_from(pages.end - at).unwrap_or(AT_ONCE).min(AT_ONCE);
            let entries = &mut entries[..some * ENTRY_BYTES];
            // A process that is gone has no pages.
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

/// A line: `start-end rights offset major:minor inode name`, the numbers in hexadecimal but for the inode.
fn start_of(input: &Mapped<'_>, maps: &str) -> Option<u64> {
    let about = input.file.metadata().ok()?;
    let device = format!("{:02x}:{:02x}", rustix::fs::major(about.dev()), rustix::fs::minor(about.dev()));
    maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let offset = hexadecimal(fields.nth(1)?)?;
        if fields.next()? != device || fields.next()?.parse() != Ok(about.ino()) {
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
    fn a_page_counts_once_it_was_touched_and_not_before() {
        let page = rustix::param::page_size();
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&vec![1; 256 * page]).expect("written");
        let mapped = || [Mapped { file: &file, offset: 4 * page as u64 }];
        assert_eq!(Touches::of(std::process::id(), &mapped()).err(), Some(Blind::NotYet));
        // SAFETY: a fresh map at a place of the kernel's choice, of a file that nobody changes.
        let start = unsafe {
            mmap(std::ptr::null_mut(), 255 * page, ProtFlags::READ, MapFlags::PRIVATE, &file, page as u64)
        }
        .expect("mapped");
        let touches = Touches::of(std::process::id(), &mapped()).expect("it is our own process");
        assert!(touches.touched(0, 0..250) == 0, "nobody touched it");
        // SAFETY: within the map, whose second page is the file's third.
        unsafe { start.cast::<u8>().add((4 - 1 + 7) * page).read_volatile() };
        assert_eq!(touches.touched(0, 7..8), 1);
        assert!(touches.touched(0, 0..250) < 64, "neighbours");
        assert_eq!(touches.touched(0, 200..250), 0, "far from what was touched");
        assert_eq!(touches.touched(1, 0..9), 0, "there is no such input");
        assert_eq!(Touches::of(0, &mapped()).err(), Some(Blind::Never), "there is no such process");
    }
}
