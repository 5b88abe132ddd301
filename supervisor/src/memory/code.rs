//! Unmaps the program's code. Linux maps the pages that are still used again, from the page cache.
//!
//! Reading a plan and surveying captures use several MiB of code that a run does not use afterwards.

use std::ffi::c_void;
use std::io::{self, BufRead as _, BufReader};
use std::ops::Range;
use std::path::Path;

use rustix::mm::{Advice, madvise};

/// Unmaps the code of this program until it is used again.
pub fn unmap() -> io::Result<()> {
    for range in mapped(Path::new("/proc/self"))? {
        // SAFETY: the pages are those of a file, and were never writable, so their content is that of the file. Linux
        // reads it again at the next access.
        unsafe { madvise(range.start as *mut c_void, range.len(), Advice::LinuxDontNeed)? };
    }
    Ok(())
}

/// Returns the address ranges at which a process has mapped the code of its own executable.
fn mapped(process: &Path) -> io::Result<Vec<Range<usize>>> {
    let program = std::fs::read_link(process.join("exe"))?;
    let program = program.as_os_str().as_encoded_bytes();
    let maps = BufReader::new(std::fs::File::open(process.join("maps"))?);
    let mut found = Vec::new();
    for line in maps.split(b'\n') {
        found.extend(code_range(&line?, program));
    }
    Ok(found)
}

/// Parses a line of `maps`: `START-END r-xp OFFSET DEVICE INODE   PATH`. `None` if it is not the code of `program`.
fn code_range(line: &[u8], program: &[u8]) -> Option<Range<usize>> {
    let fields = std::str::from_utf8(line.strip_suffix(program)?).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_code = fields.next()? == "r-xp" && fields.count() == 3;
    let address = |text| usize::from_str_radix(text, 16).ok();
    is_code.then_some(address(start)?..address(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_a_program_is_told_from_other_mappings() {
        let of = |line: &str| code_range(line.as_bytes(), b"/usr/bin/a b");
        assert_eq!(of("1000-3000 r-xp 00001000 fe:00 42                 /usr/bin/a b"), Some(0x1000..0x3000));
        assert_eq!(of("1000-3000 r--p 00001000 fe:00 42                 /usr/bin/a b"), None, "data");
        assert_eq!(
            of("1000-3000 rwxp 00001000 fe:00 42                 /usr/bin/a b"),
            None,
            "it could be changed"
        );
        assert_eq!(
            of("1000-3000 r-xp 00001000 fe:00 42                 /lib/usr/bin/a b"),
            None,
            "a library"
        );
        assert_eq!(of("1000-3000 r-xp 00000000 00:00 0"), None, "no file");
    }

    fn resident() -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("readable");
        let ranges = mapped(Path::new("/proc/self")).expect("readable");
        let mut counts = false;
        let mut kib = 0;
        for line in smaps.lines() {
            if let Some(number) = line.strip_prefix("Rss:").filter(|_| counts) {
                kib += number.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
            } else if let Some((start, _)) = line.split_once('-') {
                counts =
                    ranges.iter().any(|range| format!("{:x}", range.start) == start.trim_start_matches('0'));
            }
        }
        kib
    }

    #[test]
    fn program_continues_with_less_memory_after_its_code_is_unmapped() {
        let before = resident();
        unmap().expect("unmapped");
        let after = resident();
        assert!(after < before, "{after} of {before} KiB are resident");
    }
}
