//! Collapses a process's memory into huge pages, so that copies of it start and end faster.
//!
//! A process that has imported torch has about 75,000 small private pages. For each of them, a clone copies an entry of
//! a page table, and the entry is dropped again when the copy ends. A huge page needs only one entry for 2 MiB.
//!
//! Linux collapses small pages into a huge page by copying them. The zygote requests this in small steps, while an
//! earlier clone works. Until that clone ends, collapsed memory exists twice. Linux before 6.1 refuses the request,
//! which then changes nothing.

use std::ffi::c_void;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The size of a huge page on x86-64. It is the same on aarch64 if small pages have 4 KiB.
const HUGE_PAGE: usize = 2 << 20;
/// After this time, a step begins no further huge page, so that it does not delay the next clone for long.
const STEP: Duration = Duration::from_millis(10);
/// The largest number of huge pages that one step collapses.
const STEP_PAGES: usize = 4;
/// The largest percentage of its small pages that a huge page may lack in memory. The missing pages are filled, so they
/// add to the process's memory.
const MAX_MISSING: usize = 10;

/// The parts of this process's memory that have not been tried yet.
pub(super) struct HugePages {
    remaining: std::vec::IntoIter<Range<usize>>,
}

impl HugePages {
    /// Lists the anonymous private memory of this process. Without `/proc`, the list is empty.
    pub(super) fn of_this_process() -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let pieces: Vec<Range<usize>> = maps.lines().filter_map(anonymous).flat_map(pieces).collect();
        Self { remaining: pieces.into_iter() }
    }

    /// Collapses some of these parts, but only those whose small pages are nearly all in memory.
    pub(super) fn step(&mut self) {
        let began = Instant::now();
        let mut pages = 0;
        while began.elapsed() < STEP && pages < STEP_PAGES {
            let Some(piece) = self.remaining.next() else { return };
            if percent_missing(&piece) <= MAX_MISSING {
                pages += 1;
                // SAFETY: this changes which physical pages contain the memory, but not the memory's contents. Linux
                // refuses a range that is not mapped any more.
                unsafe { libc::madvise(piece.start as *mut c_void, piece.len(), libc::MADV_COLLAPSE) };
            }
        }
    }
}

/// Returns the address range of a line of `/proc/PID/maps`, if the range is private and writable, and belongs to no
/// file and no stack.
fn anonymous(line: &str) -> Option<Range<usize>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_private = fields.next()?.starts_with("rw-p");
    // The fields before the name are the offset, the device and the inode.
    let is_anonymous = matches!(fields.nth(3), None | Some("[heap]"));
    let address = |text| usize::from_str_radix(text, 16).ok();
    if is_private && is_anonymous { Some(address(start)?..address(end)?) } else { None }
}

/// Returns the huge pages that lie completely within a range.
fn pieces(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let first = range.start.next_multiple_of(HUGE_PAGE);
    (first..range.end)
        .step_by(HUGE_PAGE)
        .map(|start| start..start.saturating_add(HUGE_PAGE))
        .filter(move |piece| piece.end <= range.end)
}

/// Returns the percentage of a range's small pages that are not in memory.
fn percent_missing(range: &Range<usize>) -> usize {
    let mut present = vec![0_u8; range.len().div_ceil(rustix::param::page_size())];
    // SAFETY: Linux writes one byte for each page of the range. If the range is not mapped any more, the call fails.
    if unsafe { libc::mincore(range.start as *mut c_void, range.len(), present.as_mut_ptr()) } != 0 {
        return 100;
    }
    present.iter().filter(|&&page| page & 1 == 0).count() * 100 / present.len().max(1)
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    use super::*;

    #[test]
    fn only_private_memory_without_a_file_is_listed() {
        let zeros = "00000000 00:00 0";
        for (line, listed) in [
            (format!("7f0000-7f8000 rw-p {zeros} "), true),
            (format!("7f0000-7f8000 rw-p {zeros}                          [heap]"), true),
            (format!("7f0000-7f8000 rw-p {zeros}                          [stack]"), false),
            (format!("7f0000-7f8000 r--p {zeros} "), false),
            (format!("7f0000-7f8000 rw-s {zeros}                          /memfd:x (deleted)"), false),
            (
                "7f0000-7f8000 rw-p 00001000 08:01 77                         /usr/lib/libc.so.6".to_owned(),
                false,
            ),
            ("not a line".to_owned(), false),
        ] {
            assert_eq!(anonymous(&line), listed.then_some(0x7f_0000..0x7f_8000), "{line}");
        }
    }

    #[test]
    fn pieces_are_aligned_and_lie_in_their_range() {
        let megabyte = 1 << 20;
        let found = |range: Range<usize>| pieces(range).collect::<Vec<_>>();
        assert_eq!(
            found(3 * megabyte..9 * megabyte),
            [4 * megabyte..6 * megabyte, 6 * megabyte..8 * megabyte]
        );
        assert_eq!(found(4 * megabyte..6 * megabyte).len(), 1);
        assert_eq!(found(3 * megabyte..5 * megabyte), []);
    }

    /// Returns true if this kernel collapses memory. If it does not, prints that the test is skipped.
    fn can_collapse() -> bool {
        let memory = vec![1_u8; 2 * HUGE_PAGE];
        let piece = pieces(memory.as_ptr_range().start as usize..memory.as_ptr_range().end as usize).next();
        let start = piece.expect("a whole piece").start;
        // SAFETY: this call does not change the contents of the memory.
        let can = unsafe { libc::madvise(start as *mut c_void, HUGE_PAGE, libc::MADV_COLLAPSE) == 0 };
        if !can {
            eprintln!("SKIPPED: this kernel does not collapse memory: {}", std::io::Error::last_os_error());
        }
        can
    }

    #[test]
    fn full_memory_is_collapsed_with_its_contents_and_empty_memory_is_not() {
        const HALF: usize = 4 * HUGE_PAGE;
        // SAFETY: this is a new mapping, which nothing else refers to, and which is never unmapped.
        let memory = unsafe {
            let address = mmap_anonymous(
                std::ptr::null_mut(),
                2 * HALF,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            );
            std::slice::from_raw_parts_mut(address.expect("mapped").cast::<u8>(), 2 * HALF)
        };
        let value = |index: usize| u8::try_from(index % 251).expect("small");
        let (full, empty) = memory.split_at_mut(HALF);
        full.iter_mut().enumerate().for_each(|(index, byte)| *byte = value(index));
        let ranges = [full.as_ptr_range(), empty.as_ptr_range()].map(|it| it.start as usize..it.end as usize);
        let mut huge_pages = HugePages {
            remaining: ranges.clone().into_iter().flat_map(pieces).collect::<Vec<_>>().into_iter(),
        };
        while !huge_pages.remaining.as_slice().is_empty() {
            huge_pages.step();
        }
        assert!(full.iter().enumerate().all(|(index, &byte)| byte == value(index)), "the contents stay");
        assert!(90 < percent_missing(&ranges[1]), "nothing is added to empty memory");
        // Find out how much of the range lies in huge pages.
        let smaps = std::fs::File::open("/proc/self/smaps").expect("smaps");
        let huge: u64 = std::io::BufReader::new(smaps)
            .lines()
            .map_while(Result::ok)
            .skip_while(|line| anonymous(line).is_none_or(|it| !it.contains(&ranges[0].start)))
            .find_map(|line| line.strip_prefix("AnonHugePages:")?.trim().strip_suffix(" kB")?.parse().ok())
            .expect("a size");
        assert!(
            HALF / 2 / 1024 <= usize::try_from(huge).expect("small") || !can_collapse(),
            "{huge} KiB are in huge pages"
        );
    }
}
