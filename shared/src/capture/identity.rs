//! Identifies a capture's file by its metadata, so that a change of the file is noticed without reading it.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The identity of a file. It changes if the file is written, replaced or truncated, unless the file keeps its inode,
/// its size and its modification time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Time of the last modification, in nanoseconds.
    modified: i128,
}

impl FileIdentity {
    /// Reads the identity of the file at `path`. Returns `None` if there is no such file, or its metadata cannot be
    /// read.
    pub fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
        })
    }

    /// Time of the last modification, in nanoseconds since 1970.
    pub fn modified(&self) -> i128 {
        self.modified
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_truncated_or_replaced_file_has_another_identity() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("entry.pt");
        assert_eq!(FileIdentity::of(&path), None);
        std::fs::write(&path, "recorded").expect("written");
        let before = FileIdentity::of(&path);
        assert_eq!(FileIdentity::of(&path), before);
        let file = std::fs::File::options().write(true).open(&path).expect("opens");
        file.set_len(3).expect("cut");
        assert_ne!(FileIdentity::of(&path), before, "cut short");
        let cut = FileIdentity::of(&path);
        let other = folder.path().join("other.pt");
        std::fs::write(&other, "rec").expect("written");
        std::fs::rename(&other, &path).expect("replaced");
        assert_ne!(FileIdentity::of(&path), cut, "replaced by a file of the same length");
    }
}
