//! Removes the pages of the program's own code from its resident memory. If a page is needed later, Linux maps it again
//! from the page cache.
//!
//! This is worthwhile because reading a plan and surveying captures use several MiB of code that a run does not use
//! afterwards.

use std::ffi::c_void;
use std::io::{self, BufReader};
use std::ops::Range;
use std::path::Path;

use rustix::mm::{Advice, madvise};

/// Removes the pages of this program's code from resident memory. The mappings stay.
pub fn drop_pages() -> io::Result<()> {
    for range in own_code()? {
        // SAFETY: none of these pages is a private copy, and none is writable, so all have the content of the file.
        // Linux maps it again at the next access.
        unsafe { madvise(range.start as *mut c_void, range.len(), Advice::LinuxDontNeed)? };
    }
    Ok(())
}

fn own_code() -> io::Result<Vec<Range<usize>>> {
    let process = Path::new("/proc/self");
    let program = std::fs::read_link(process.join("exe"))?;
    let smaps = BufReader::new(std::fs::File::open(process.join("smaps"))?);
    unchanged_code(smaps, program.as_os_str().as_encoded_bytes())
}

/// Returns the address ranges at which a process has mapped the code of `program`. Ranges that contain private copies
/// of pages, such as those that a debugger makes, are left out.
fn unchanged_code(smaps: impl io::BufRead, program: &[u8]) -> io::Result<Vec<Range<usize>>> {
    let mut found = Vec::new();
    let mut range = None;
    for line in smaps.split(b'\n') {
        let line = line?;
        if is_header(&line) {
            range = code_range(&line, program);
        } else if line.starts_with(b"Anonymous:") {
            found.extend(range.take().filter(|_| line.ends_with(b" 0 kB")));
        }
    }
    Ok(found)
}

/// Returns true for the first line of a mapping. All other lines begin with a name and a colon.
fn is_header(line: &[u8]) -> bool {
    line.split(|&byte| byte == b' ').next().is_some_and(|word| word.contains(&b'-'))
}

/// Parses the first line of a mapping, which has the form `START-END r-xp OFFSET DEVICE INODE PATH`. Returns `None` if
/// the mapping is not the code of `program`.
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
    fn code_of_a_program_is_distinguished_from_other_mappings() {
        let of = |line: &str| code_range(line.as_bytes(), b"/usr/bin/a b");
        assert_eq!(of("1000-3000 r-xp 00001000 fe:00 42                 /usr/bin/a b"), Some(0x1000..0x3000));
        assert_eq!(of("1000-3000 r--p 00001000 fe:00 42                 /usr/bin/a b"), None, "data");
        assert_eq!(of("1000-3000 rwxp 00001000 fe:00 42                 /usr/bin/a b"), None, "writable");
        assert_eq!(
            of("1000-3000 r-xp 00001000 fe:00 42                 /lib/usr/bin/a b"),
            None,
            "a library"
        );
        assert_eq!(of("1000-3000 r-xp 00000000 00:00 0"), None, "no file");
    }

    #[test]
    fn code_with_private_copies_is_left_alone() {
        let of = |anonymous: &str| {
            let smaps = format!(
                "1000-3000 r-xp 00001000 fe:00 42  /a\nRss: 8 kB\nAnonymous: {anonymous} kB\n\
                 3000-4000 r-xp 00001000 fe:00 43  /b\nRss: 4 kB\nAnonymous: 0 kB\n"
            );
            unchanged_code(smaps.as_bytes(), b"/a").expect("readable")
        };
        assert_eq!(of("0"), vec![0x1000..0x3000]);
        assert!(of("4").is_empty() && of("10").is_empty());
    }

    /// Other tests in this process may load code between the two measurements, but far less than was dropped.
    #[test]
    fn dropping_code_pages_lowers_resident_memory() {
        for address in own_code().expect("readable").into_iter().flat_map(|range| range.step_by(4096)) {
            // SAFETY: the address is in the code of this program, which is readable.
            std::hint::black_box(unsafe { (address as *const u8).read_volatile() });
        }
        let before = resident();
        drop_pages().expect("dropped");
        let after = resident();
        assert!(after < before, "{after} of {before} KiB are resident");
    }

    /// This process's file-backed resident memory, in KiB.
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("readable");
        let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).expect("a line");
        line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
    }
}
