//! Recognises files that are not captures by their first bytes, and says what to do with them.

/// Number of bytes that are examined at the start of a file. The mark that is furthest from the start is that of a tar
/// file, at 257.
pub(super) const LOOKED_AT_BYTES: usize = 512;

/// The bytes at the start of files by which their kind is recognised.
const MARKS: [(&[u8], &str); 12] = [
    (b"\x93NUMPY", "a numpy .npy file (record the call with torch.save)"),
    (b"\x1f\x8b", "compressed with gzip (decompress it first)"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd (decompress it first)"),
    (b"\xfd7zXZ\0", "compressed with xz (decompress it first)"),
    (b"BZh", "compressed with bzip2 (decompress it first)"),
    (b"version https://git-lfs.github.com/spec/", "a git-lfs pointer (fetch the file with `git lfs pull`)"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file (record the call with torch.save)"),
    (b"\x7fELF", "a program or a library"),
    (b"PAR1", "a Parquet file (record the call with torch.save)"),
    (b"GGUF", "a GGUF file (record the call with torch.save)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive (unpack it first)"),
    (b"%PDF-", "a PDF"),
];

const TAR_MARK_AT: usize = 257;

/// Returns the kind of a file that does not begin like a capture, with advice where that helps; `None` if the kind is
/// unknown.
pub(super) fn what_it_is(start: &[u8], file_bytes: u64) -> Option<&'static str> {
    let marked = MARKS.iter().find(|(mark, _)| start.starts_with(mark)).map(|(_, what)| *what);
    marked
        .or_else(|| {
            is_safetensors(start, file_bytes)
                .then_some("a safetensors file (record the call with torch.save)")
        })
        .or_else(|| {
            is_markup(start)
                .then_some("an HTML or XML page, perhaps from a failed download (download the file again)")
        })
        .or_else(|| {
            let is_tar = start.get(TAR_MARK_AT..).is_some_and(|rest| rest.starts_with(b"ustar"));
            is_tar.then_some("a tar archive (unpack it first)")
        })
        .or_else(|| is_text(start).then_some("text"))
}

/// A safetensors file begins with the length of its JSON header, followed by the header.
fn is_safetensors(start: &[u8], file_bytes: u64) -> bool {
    let Some((length, rest)) = start.split_first_chunk::<8>() else { return false };
    let length = u64::from_le_bytes(*length);
    rest.first() == Some(&b'{') && (2..=file_bytes.saturating_sub(8)).contains(&length)
}

fn is_markup(start: &[u8]) -> bool {
    let text = start.trim_ascii_start().to_ascii_lowercase();
    [&b"<!doctype html"[..], b"<html", b"<head", b"<?xml"].iter().any(|mark| text.starts_with(mark))
}

fn is_text(start: &[u8]) -> bool {
    !start.is_empty() && start.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t' | b'\n' | b'\r'))
}
