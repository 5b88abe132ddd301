//! Reads a shared library's dynamic section: the libraries that it needs, its own name, and its symbol names.
//!
//! The file is untrusted. It is read with `pread` and never mapped, so a file that shrinks is an error, not a signal.
//! Only the headers, the dynamic section and its strings are read, each within a limit.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The largest number of program headers. Linkers write about a dozen.
const MAX_PROGRAM_HEADERS: u16 = 256;
/// The largest size of the dynamic section, in bytes. Linkers write about thirty entries of 16 bytes.
const MAX_DYNAMIC: u64 = 64 * 1024;
/// The largest size of the string table, in bytes. The table contains the names of all symbols, which take a few MiB in
/// large C++ libraries.
const MAX_STRINGS: u64 = 64 << 20;
/// The longest file name on Linux, in bytes.
const MAX_NAME: usize = 255;
/// The largest number of needed libraries that are read; any further ones are ignored. Real libraries need far fewer.
const MAX_NEEDED: usize = 256;

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const DYNAMIC_ENTRY: usize = 16;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
const DT_SONAME: u64 = 14;

/// The offset of an ELF header's `e_machine`.
const MACHINE: usize = 18;
/// Values of `e_machine`, with names that users know.
const MACHINES: [(u16, &str); 5] =
    [(3, "32-bit x86"), (40, "32-bit ARM"), (62, "x86_64"), (183, "aarch64"), (243, "RISC-V")];

#[derive(Debug, thiserror::Error)]
pub(crate) enum ElfError {
    #[error("reading {bytes} bytes at offset {offset}")]
    Read { bytes: u64, offset: u64, source: io::Error },
    /// Callers may ignore this error, because the loader refuses such a file itself, with a message that users know.
    #[error("not a 64-bit little-endian shared library, or a damaged one ({what})")]
    Malformed { what: &'static str },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dynamic {
    /// `DT_NEEDED`, in order, without entries that are not plain file names.
    pub(crate) needed: Vec<String>,
    /// `DT_SONAME`: the name by which the loader knows the library once it is loaded.
    pub(crate) soname: Option<String>,
    strings: Vec<u8>,
}

impl Dynamic {
    pub(crate) fn read(file: &File) -> Result<Self, ElfError> {
        let header = bytes(file, 0, HEADER as u64)?;
        if header[..4] != *b"\x7fELF" || header[4] != 2 || header[5] != 1 {
            return Err(ElfError::Malformed { what: "its first bytes" });
        }
        let (at, entry_bytes, count) = (u64_at(&header, 32), u16_at(&header, 54), u16_at(&header, 56));
        if usize::from(entry_bytes) != PROGRAM_HEADER || MAX_PROGRAM_HEADERS < count {
            return Err(ElfError::Malformed { what: "its program headers" });
        }
        let headers = bytes(file, at, u64::from(count) * PROGRAM_HEADER as u64)?;
        let segments: Vec<Segment> = headers.chunks_exact(PROGRAM_HEADER).map(Segment::parse).collect();
        let Some(dynamic) = segments.iter().find(|segment| segment.kind == PT_DYNAMIC) else {
            return Ok(Self::default());
        };
        if MAX_DYNAMIC < dynamic.file_bytes {
            return Err(ElfError::Malformed { what: "its dynamic section" });
        }
        let table = bytes(file, dynamic.offset, dynamic.file_bytes)?;
        let entries: Vec<(u64, u64)> = table
            .chunks_exact(DYNAMIC_ENTRY)
            .map(|entry| (u64_at(entry, 0), u64_at(entry, 8)))
            .take_while(|(tag, _)| *tag != DT_NULL)
            .collect();
        let value = |wanted| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
        let (Some(address), Some(size)) = (value(DT_STRTAB), value(DT_STRSZ)) else {
            return Ok(Self::default());
        };
        if MAX_STRINGS < size {
            return Err(ElfError::Malformed { what: "the size of its strings" });
        }
        let offset = segments
            .iter()
            .find_map(|segment| segment.offset_of(address))
            .ok_or(ElfError::Malformed { what: "the address of its strings" })?;
        let strings = bytes(file, offset, size)?;
        let needed = entries
            .iter()
            .filter(|(tag, _)| *tag == DT_NEEDED)
            .take(MAX_NEEDED)
            .filter_map(|(_, at)| name_at(&strings, *at))
            .collect();
        let soname = value(DT_SONAME).and_then(|at| name_at(&strings, at));
        Ok(Self { needed, soname, strings })
    }

    /// Returns true if a string of the dynamic section starts with `prefix`. The names of all symbols that the library
    /// exports or needs are among these strings.
    pub(crate) fn mentions(&self, prefix: &str) -> bool {
        self.strings.split(|&byte| byte == 0).any(|name| name.starts_with(prefix.as_bytes()))
    }
}

/// Returns the kind of machine that an ELF file is for, if it is not the one that this program was built for.
pub(crate) fn other_machine(file: &File) -> Option<String> {
    let ours = MACHINES.iter().find(|(_, name)| *name == std::env::consts::ARCH)?.0;
    let header = bytes(file, 0, HEADER as u64).ok().filter(|header| header.starts_with(b"\x7fELF"))?;
    if header[5] != 1 {
        return Some("a big-endian machine".to_owned());
    }
    let theirs = u16_at(&header, MACHINE);
    let name = MACHINES.iter().find(|(number, _)| *number == theirs).map(|(_, name)| (*name).to_owned());
    (theirs != ours).then(|| name.unwrap_or_else(|| format!("machine {theirs}")))
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    file_bytes: u64,
}

impl Segment {
    fn parse(header: &[u8]) -> Self {
        let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let (offset, address, file_bytes) = (u64_at(header, 8), u64_at(header, 16), u64_at(header, 32));
        Self { kind, offset, address, file_bytes }
    }

    fn offset_of(&self, address: u64) -> Option<u64> {
        let within = address.checked_sub(self.address)?;
        if self.kind != PT_LOAD || self.file_bytes <= within {
            return None;
        }
        self.offset.checked_add(within)
    }
}

/// Returns the file name at this offset of the string table; `None` for paths and malformed strings.
fn name_at(strings: &[u8], at: u64) -> Option<String> {
    let rest = strings.get(usize::try_from(at).ok()?..)?;
    let length = rest.iter().take(MAX_NAME + 1).position(|&byte| byte == 0)?;
    let name = std::str::from_utf8(&rest[..length]).ok()?;
    let plain = !name.is_empty() && name != "." && name != ".." && !name.contains('/');
    plain.then(|| name.to_owned())
}

fn bytes(file: &File, offset: u64, bytes: u64) -> Result<Vec<u8>, ElfError> {
    let size = file.metadata().map_err(|source| ElfError::Read { bytes, offset, source })?.len();
    // Checked before the allocation, because the numbers are untrusted.
    if offset.checked_add(bytes).is_none_or(|end| size < end) {
        return Err(ElfError::Malformed { what: "a part lies beyond its end" });
    }
    let length = usize::try_from(bytes).map_err(|_| ElfError::Malformed { what: "a part is too large" })?;
    let mut buffer = vec![0u8; length];
    file.read_exact_at(&mut buffer, offset).map_err(|source| ElfError::Read { bytes, offset, source })?;
    Ok(buffer)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0u8; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use opt_shared::units::to_index;
    use proptest::prelude::*;

    use super::*;

    fn read(contents: &[u8]) -> Result<Dynamic, ElfError> {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(contents).expect("written");
        Dynamic::read(&file)
    }

    #[test]
    fn foreign_architecture_is_named() {
        let of = |contents: &[u8]| {
            let mut file = tempfile::tempfile().expect("a temporary file");
            file.write_all(contents).expect("written");
            other_machine(&file)
        };
        let this = std::fs::read(std::env::current_exe().expect("this test")).expect("readable");
        let mut header = this[..HEADER].to_vec();
        assert_eq!(of(&header), None, "this machine");
        header[MACHINE..MACHINE + 2].copy_from_slice(&243_u16.to_le_bytes());
        assert_eq!(of(&header).as_deref(), Some("RISC-V"));
        header[MACHINE..MACHINE + 2].copy_from_slice(&0_u16.to_le_bytes());
        assert_eq!(of(&header).as_deref(), Some("machine 0"));
        assert_eq!((of(&header[..40]), of(&[0; HEADER])), (None, None), "no ELF header");
    }

    fn library(entries: &[(u64, u64)], strings: &[u8]) -> Vec<u8> {
        let mut image = vec![0u8; HEADER + 2 * PROGRAM_HEADER];
        let dynamic_at = image.len() as u64;
        for (tag, value) in entries {
            image.extend(tag.to_le_bytes());
            image.extend(value.to_le_bytes());
        }
        let strings_at = image.len() as u64;
        image.extend(strings);
        let dynamic_bytes = strings_at - dynamic_at;
        for entry in 0..entries.len() {
            let at = to_index(dynamic_at) + entry * DYNAMIC_ENTRY;
            if u64_at(&image, at) == DT_STRTAB {
                image[at + 8..at + 16].copy_from_slice(&(0x1000 + strings_at).to_le_bytes());
            }
        }
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        image[32..40].copy_from_slice(&(HEADER as u64).to_le_bytes());
        image[54..56].copy_from_slice(&u16::try_from(PROGRAM_HEADER).expect("small").to_le_bytes());
        image[56..58].copy_from_slice(&2u16.to_le_bytes());
        let whole = image.len() as u64;
        for (number, (kind, offset, address, size)) in
            [(PT_LOAD, 0, 0x1000, whole), (PT_DYNAMIC, dynamic_at, 0x1000 + dynamic_at, dynamic_bytes)]
                .into_iter()
                .enumerate()
        {
            let at = HEADER + number * PROGRAM_HEADER;
            image[at..at + 4].copy_from_slice(&kind.to_le_bytes());
            image[at + 8..at + 16].copy_from_slice(&offset.to_le_bytes());
            image[at + 16..at + 24].copy_from_slice(&address.to_le_bytes());
            image[at + 32..at + 40].copy_from_slice(&size.to_le_bytes());
        }
        image
    }

    const STRINGS: &[u8] = b"\0libtvm_ffi.so\0/etc/passwd\0..\0self.so\0TVMFFIErrorSetRaised\0no end";

    fn sample_library() -> Vec<u8> {
        let size = STRINGS.len() as u64;
        let entries = [
            (DT_NEEDED, 1),
            (DT_NEEDED, 15),
            (DT_NEEDED, 27),
            (DT_NEEDED, 60),
            (DT_NEEDED, u64::MAX),
            (DT_SONAME, 30),
            (DT_STRTAB, 0),
            (DT_STRSZ, size),
            (DT_NULL, 0),
            (DT_NEEDED, 30),
        ];
        library(&entries, STRINGS)
    }

    #[test]
    fn dynamic_section_gives_plain_names_only() {
        let found = read(&sample_library()).expect("well formed");
        assert_eq!(found.needed, ["libtvm_ffi.so"], "paths, dots and unterminated names are left out");
        assert_eq!(found.soname.as_deref(), Some("self.so"));
        assert!(found.mentions("TVMFFI"));
        assert!(!found.mentions("RaisedX") && !found.mentions("ErrorSetRaised"));
    }

    #[test]
    fn dynamic_reads_our_own_executable() {
        let file = File::open("/proc/self/exe").expect("our own executable opens");
        let found = Dynamic::read(&file).expect("our own executable is well-formed");
        assert!(cfg!(target_feature = "crt-static") || found.needed.iter().any(|name| name.contains("libc")));
    }

    #[test]
    fn oversized_and_truncated_libraries_are_refused() {
        let mut image = library(&[(DT_STRTAB, 0), (DT_STRSZ, u64::MAX), (DT_NULL, 0)], b"\0");
        assert!(matches!(read(&image), Err(ElfError::Malformed { .. })));
        image[56..58].copy_from_slice(&u16::MAX.to_le_bytes());
        assert!(matches!(read(&image), Err(ElfError::Malformed { .. })));
        assert!(matches!(read(b"short"), Err(ElfError::Malformed { .. })));
        assert!(matches!(read(&[b'!'; 64]), Err(ElfError::Malformed { .. })));
    }

    proptest! {
        #[test]
        fn damaged_libraries_never_panic(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
            cut in any::<prop::sample::Index>(), shorten: bool
        ) {
            let mut image = sample_library();
            for (index, value) in changes {
                let index = index.index(image.len());
                image[index] = value;
            }
            if shorten {
                image.truncate(cut.index(image.len()));
            }
            if let Ok(found) = read(&image) {
                prop_assert!(found.needed.len() <= MAX_NEEDED);
                prop_assert!(found.needed.iter().chain(&found.soname).all(|name| !name.contains('/')));
            }
        }
    }
}
