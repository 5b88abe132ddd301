//! Maps a runner's inputs and outputs. Data is copied only where it cannot be mapped.
//!
//! An input that is mapped from a capture shows only the bytes of its range. If the range has its recorded alignment in
//! the file, the pages that lie completely within the range are mapped from the file, private and read-only. A page
//! that also contains other bytes is replaced by an anonymous page into which only the range is read. A private
//! copy-on-write page would not suffice, because it would show the file's bytes again after `MADV_DONTNEED`. Every
//! input has a guard page on either side, and is sealed before the candidate is loaded if Linux supports this.
//!
//! Outputs are shared mappings of a sealed memfd, and also lie between guard pages. This module handles bytes, not
//! tensors.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use opt_shared::units::to_index;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect};

use super::frame::{InputRange, OutputRegion, VariantRange};

const ALIGNMENT: usize = to_index(opt_shared::formula::ALIGNMENT);

#[derive(Debug, thiserror::Error)]
pub(crate) enum MapError {
    #[error("reserving {bytes} bytes of address space for {what}")]
    Reserve { what: &'static str, bytes: usize, source: rustix::io::Errno },
    #[error("mapping {what} at file offset {offset}")]
    Map { what: &'static str, offset: u64, source: rustix::io::Errno },
    #[error("reading {bytes} bytes of an input at file offset {offset}")]
    Read { bytes: usize, offset: u64, source: std::io::Error },
    #[error("an input or output of {bytes} bytes does not fit into the address space")]
    TooLarge { bytes: u64 },
}

/// A mapping with a guard page on either side. It lives as long as the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped {
    /// The address of the first byte of data.
    pub(crate) data: *mut u8,
    /// The start of the reserved range, which begins with a guard page. `end` is the end of this range.
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Mapped {
    /// Populates the page tables. Before Linux 5.14 this fails, so each page is mapped when it is first used.
    pub(crate) fn touch(&self) {
        let page = rustix::param::page_size();
        let (start, length) = (self.start + page, (self.end - self.start).saturating_sub(2 * page));
        // SAFETY: this is our own mapping without its guard pages. Reading it changes neither contents nor access
        // rights.
        let _ =
            unsafe { rustix::mm::madvise(start as *mut _, length, rustix::mm::Advice::LinuxPopulateRead) };
    }

    /// Turns read-ahead off, so that a page fault reads only its own page. Linux may ignore this advice and read more.
    pub(crate) fn without_read_ahead(&self) {
        // SAFETY: this is our own mapping with its guard pages. The advice changes neither contents nor access rights.
        let _ = unsafe {
            rustix::mm::madvise(self.start as *mut _, self.end - self.start, rustix::mm::Advice::Random)
        };
    }
}

/// Maps `range` of `file` read-only.
pub(crate) fn map_input(file: &File, range: &InputRange) -> Result<Mapped, MapError> {
    let page = rustix::param::page_size();
    let bytes = usize::try_from(range.bytes).map_err(|_| MapError::TooLarge { bytes: range.bytes })?;
    let phase = usize::from(range.address_phase) % ALIGNMENT;
    let in_page = usize::try_from(range.file_offset % page as u64).unwrap_or(0);
    // A byte that is mapped in place keeps its offset in the page, so this offset must have the recorded phase.
    let in_place = in_page % ALIGNMENT == phase;
    let lead = if in_place { in_page } else { phase };
    let body = (lead + bytes).next_multiple_of(page).max(page);
    let reserved = body.checked_add(2 * page).ok_or(MapError::TooLarge { bytes: range.bytes })?;
    let start = reserve("an input", reserved)?;
    let body_start = start + page;
    let data = body_start + lead;
    let end_of_data = data + bytes;
    // The pages that contain only bytes of the range.
    let whole_from = data.next_multiple_of(page);
    let whole_to = end_of_data - end_of_data % page;
    if in_place && whole_from < whole_to {
        let offset = range.file_offset + (whole_from - data) as u64;
        map_pages(
            "an input",
            whole_from,
            whole_to - whole_from,
            ProtFlags::READ,
            MapFlags::PRIVATE,
            Some((file.as_fd(), offset)),
        )?;
        if data < whole_from {
            fill(file, body_start, page, data, whole_from - data, range.file_offset)?;
        }
        if whole_to < end_of_data {
            let offset = range.file_offset + (whole_to - data) as u64;
            fill(file, whole_to, page, whole_to, end_of_data - whole_to, offset)?;
        }
    } else {
        fill(file, body_start, body, data, bytes, range.file_offset)?;
    }
    Ok(Mapped { data: data as *mut u8, start, end: start + reserved })
}

/// Maps all pages of a slot of a pool. The mapping always shows the current contents of the pool.
pub(crate) fn map_slot(pool: &File, range: &InputRange) -> Result<Mapped, MapError> {
    let page = rustix::param::page_size();
    let bytes = usize::try_from(range.bytes).map_err(|_| MapError::TooLarge { bytes: range.bytes })?;
    let reserved = bytes.checked_add(2 * page).ok_or(MapError::TooLarge { bytes: range.bytes })?;
    let start = reserve("an input", reserved)?;
    if 0 < bytes {
        let file = Some((pool.as_fd(), range.file_offset));
        map_pages("an input", start + page, bytes, ProtFlags::READ, MapFlags::SHARED, file)?;
    }
    let data = start + page + usize::from(range.address_phase).min(bytes);
    Ok(Mapped { data: data as *mut u8, start, end: start + reserved })
}

/// Maps all variants of an input, read-only, between two guard pages. There is no guard page between two variants,
/// because verification has already looked for accesses beyond the input.
pub(crate) fn map_variants(memory: BorrowedFd<'_>, range: &VariantRange) -> Result<Mapped, MapError> {
    let page = rustix::param::page_size();
    let too_large = || MapError::TooLarge { bytes: range.bytes };
    let bytes = usize::try_from(range.bytes).map_err(|_| too_large())?;
    let reserved = bytes.checked_add(2 * page).ok_or_else(too_large)?;
    let start = reserve("an input", reserved)?;
    let file = Some((memory, range.file_offset));
    map_pages("an input", start + page, bytes, ProtFlags::READ, MapFlags::SHARED, file)?;
    let data = start + page + usize::try_from(range.data_offset).map_err(|_| too_large())?;
    Ok(Mapped { data: data as *mut u8, start, end: start + reserved })
}

/// Maps anonymous pages at `at`, reads the range's bytes into them, and makes them read-only.
fn fill(
    file: &File,
    at: usize,
    length: usize,
    data: usize,
    bytes: usize,
    offset: u64,
) -> Result<(), MapError> {
    map_pages("an input", at, length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE, None)?;
    // SAFETY: `data..data + bytes` is within the pages that were just mapped writable, and nothing else refers to them
    // yet.
    let buffer = unsafe { std::slice::from_raw_parts_mut(data as *mut u8, bytes) };
    file.read_exact_at(buffer, offset).map_err(|source| MapError::Read { bytes, offset, source })?;
    // SAFETY: these are our own new pages, and the slice above is not used any more.
    unsafe { mprotect(at as *mut _, length, MprotectFlags::READ) }.map_err(|source| MapError::Map {
        what: "an input",
        offset,
        source,
    })
}

/// Maps a region of the outputs' memfd, writable, between guard pages.
pub(crate) fn map_output(memfd: BorrowedFd<'_>, region: &OutputRegion) -> Result<Mapped, MapError> {
    let page = rustix::param::page_size();
    let bytes = usize::try_from(region.bytes).map_err(|_| MapError::TooLarge { bytes: region.bytes })?;
    let reserved = bytes.checked_add(2 * page).ok_or(MapError::TooLarge { bytes: region.bytes })?;
    let start = reserve("an output", reserved)?;
    if 0 < bytes {
        map_pages(
            "an output",
            start + page,
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            Some((memfd, region.file_offset)),
        )?;
    }
    let data = start + page + usize::try_from(region.data_offset).unwrap_or(0).min(bytes);
    Ok(Mapped { data: data as *mut u8, start, end: start + reserved })
}

fn reserve(what: &'static str, bytes: usize) -> Result<usize, MapError> {
    // SAFETY: this is a new reservation without access, and Linux chooses its address.
    unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }
    .map(|address| address as usize)
    .map_err(|source| MapError::Reserve { what, bytes, source })
}

fn map_pages(
    what: &'static str,
    at: usize,
    bytes: usize,
    protection: ProtFlags,
    flags: MapFlags,
    file: Option<(BorrowedFd<'_>, u64)>,
) -> Result<(), MapError> {
    let flags = flags | MapFlags::FIXED;
    let mapped = match file {
        // SAFETY: `at..at + bytes` is inside our own reservation, and nothing refers to it yet.
        Some((file, offset)) => unsafe { mmap(at as *mut _, bytes, protection, flags, file, offset) },
        // SAFETY: as above.
        None => unsafe { mmap_anonymous(at as *mut _, bytes, protection, flags) },
    };
    let offset = file.map_or(0, |(_, offset)| offset);
    mapped.map(drop).map_err(|source| MapError::Map { what, offset, source })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn file_of(bytes: usize) -> (File, Vec<u8>) {
        let contents: Vec<u8> = (0..bytes).map(|at| (at % 251).to_le_bytes()[0] + 1).collect();
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&contents).expect("written");
        (file, contents)
    }

    proptest! {
        /// The range must be mapped at its phase, and the mapping must show no other byte of the file.
        #[test]
        fn mapped_input_shows_its_range_only(
            start in 0usize..9000, length in 1usize..40_000, phase in 0u8..64
        ) {
            let (file, contents) = file_of(60_000);
            let range = InputRange {
                source: 0, file_offset: start as u64, bytes: length as u64, address_phase: phase,
            };
            let mapped = map_input(&file, &range).expect("mapped");
            prop_assert_eq!(mapped.data as usize % ALIGNMENT, usize::from(phase));
            let page = rustix::param::page_size();
            let body = mapped.start + page..mapped.end - page;
            // SAFETY: the pages between the guard pages are mapped readable and stay so.
            let shown = unsafe { std::slice::from_raw_parts(body.start as *const u8, body.len()) };
            let lead = mapped.data as usize - body.start;
            prop_assert_eq!(&shown[lead..lead + length], &contents[start..start + length]);
            prop_assert!(shown[..lead].iter().all(|&byte| byte == 0));
            prop_assert!(shown[lead + length..].iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn shrunken_file_is_an_error() {
        let (file, _) = file_of(10);
        let range = InputRange { source: 0, file_offset: 0, bytes: 100, address_phase: 0 };
        assert!(matches!(map_input(&file, &range), Err(MapError::Read { .. })));
    }
}
