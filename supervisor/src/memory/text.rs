//! Reads small files such as those in `/proc` and in control groups, and parses the numbers in them without allocating.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use opt_shared::units::Bytes;

use super::SampleError;

/// A file that stays open, with a buffer for its content.
#[derive(Debug)]
pub(super) struct KeptFile {
    file: File,
    path: PathBuf,
    buffer: Box<[u8]>,
}

impl KeptFile {
    /// Opens a file. Returns `None` if the file does not exist. Later, `read` fails if the content has `limit` bytes or
    /// more.
    pub(super) fn open(path: PathBuf, limit: usize) -> Result<Option<Self>, SampleError> {
        match File::open(&path) {
            Ok(file) => Ok(Some(Self { file, path, buffer: vec![0; limit].into_boxed_slice() })),
            Err(error) if is_gone(&error) => Ok(None),
            Err(source) => Err(SampleError::io(&path, "open it", source)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the whole file, and returns its path and content. Returns `None` if the file describes a process that has
    /// ended.
    pub(super) fn read(&mut self) -> Result<Option<(&Path, &[u8])>, SampleError> {
        let mut length = 0;
        // Linux can return a long file in several pieces.
        loop {
            match self.file.read_at(&mut self.buffer[length..], length as u64) {
                Ok(0) => break,
                Ok(read) => length += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if is_gone(&error) => return Ok(None),
                Err(source) => return Err(SampleError::io(&self.path, "read it", source)),
            }
            if length == self.buffer.len() {
                return Err(SampleError::TooLong { path: self.path.clone(), limit: length });
            }
        }
        Ok(Some((&self.path, &self.buffer[..length])))
    }
}

/// Returns whether the error means that the file or its process does not exist: ENOENT for a path, ESRCH for an open
/// descriptor.
pub(super) fn is_gone(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Reads a file, and fails if it has `limit` bytes or more. Returns `None` if the file does not exist, or if it
/// describes a process that has ended. The buffer grows with the content, because a buffer of `limit` bytes could
/// enlarge the heap of this process permanently.
pub(super) fn read_small(path: &Path, limit: usize) -> Result<Option<Vec<u8>>, SampleError> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(limit as u64).read_to_end(&mut text));
    match read {
        Ok(length) if length == limit => Err(SampleError::TooLong { path: path.to_owned(), limit }),
        Ok(_) => Ok(Some(text)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(source) => Err(SampleError::io(path, "read it", source)),
    }
}

pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty())
}

/// Parses the value of a line such as `Name: 123 kB`. `value` is the part `123 kB`. An error shows the whole `line`.
pub(super) fn kilobytes(path: &Path, line: &[u8], value: &[u8]) -> Result<Bytes, SampleError> {
    let wanted = "a size in kB";
    let mut words = words(value);
    let number = words.next().and_then(number);
    match (number, words.next(), words.next()) {
        (Some(number), Some(b"kB"), None) => Ok(Bytes::kib(number)),
        _ => Err(SampleError::line(path, line, wanted)),
    }
}

/// Splits a line at its first colon. Returns `None` if there is no colon.
pub(super) fn name_and_value(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    Some((&line[..colon], &line[colon + 1..]))
}

pub(super) fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// Parses a number. Returns `None` if `digits` is empty or contains anything but digits, such as a sign, or if the
/// number overflows.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &digit| {
        let digit = digit.checked_sub(b'0').filter(|&digit| digit < 10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn number_agrees_with_the_standard_library(text in "[0-9+ -]{0,24}") {
            let strict = if text.starts_with('+') { None } else { text.parse().ok() };
            prop_assert_eq!(number(text.as_bytes()), strict);
        }
    }

    #[test]
    fn read_small_refuses_long_files() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("long");
        std::fs::write(&path, [b'x'; 100]).expect("writes");
        assert!(matches!(read_small(&path, 100), Err(SampleError::TooLong { limit: 100, .. })));
        assert_eq!(read_small(&path, 101).expect("reads").expect("there").len(), 100);
        assert_eq!(read_small(&folder.path().join("none"), 10).expect("an answer"), None);
    }
}
