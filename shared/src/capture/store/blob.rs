//! Names and opens blobs, the files that contain a store's bulk data, without following a link out of the store.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{Mode, OFlags, open, openat};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::BLOBS;

/// The name of a blob, which is the BLAKE3 digest of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobId(pub [u8; 32]);

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<blake3::Hash> for BlobId {
    fn from(hash: blake3::Hash) -> Self {
        Self(hash.into())
    }
}

/// The error for text that is not a digest.
#[derive(Debug, thiserror::Error)]
#[error("it is not a BLAKE3 digest (64 lower-case hexadecimal digits)")]
pub struct NoDigest;

impl FromStr for BlobId {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        // A blob must have only one name, but the library would also accept upper-case digits.
        if text.bytes().any(|digit| digit.is_ascii_uppercase()) {
            return Err(NoDigest);
        }
        blake3::Hash::from_hex(text).map(Self::from).map_err(|_| NoDigest)
    }
}

impl Serialize for BlobId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BlobId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Returns the path of a blob relative to the store: `blobs/ab/ab12…`. There are two levels of folders because some
/// file systems are slow if a folder contains a million files.
pub fn blob_path(id: BlobId) -> PathBuf {
    let name = id.to_string();
    Path::new(BLOBS).join(&name[..2]).join(&name)
}

/// The flags with which files of a store are opened. Without `O_NONBLOCK`, opening a FIFO would wait for a writer.
const FILE_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Opens a blob for reading. Links are refused at every level below the store, and so is everything that is not a
/// regular file.
pub fn open_blob(root: &Path, id: BlobId) -> io::Result<File> {
    let folder_flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let blobs = open(root.join(BLOBS), folder_flags, Mode::empty())?;
    let name = id.to_string();
    let folder = openat(&blobs, &name[..2], folder_flags, Mode::empty())?;
    regular(openat(&folder, name.as_str(), FILE_FLAGS, Mode::empty())?)
}

/// Opens a file of a store that is not a blob, for reading. A link, and anything else that is not a regular file, is
/// refused.
pub fn open_plain(path: &Path) -> io::Result<File> {
    regular(open(path, FILE_FLAGS, Mode::empty())?)
}

fn regular(file: OwnedFd) -> io::Result<File> {
    let file = File::from(file);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blob_name_is_64_lower_case_digits() {
        let id = BlobId::from(blake3::hash(b"a storage"));
        assert_eq!(id.to_string().parse::<BlobId>().expect("its own name"), id);
        for wrong in ["", "ab", &id.to_string()[1..], &id.to_string().to_uppercase(), &"é".repeat(32)] {
            assert!(wrong.parse::<BlobId>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn blob_behind_a_link_is_not_opened() {
        let id = BlobId::from(blake3::hash(b"secret"));
        let name = id.to_string();
        let outside = tempfile::tempdir().expect("a folder");
        std::fs::write(outside.path().join(&name), "secret").expect("written");
        // In this case, the blob is a link.
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join(BLOBS).join(&name[..2]);
        std::fs::create_dir_all(&folder).expect("made");
        std::os::unix::fs::symlink(outside.path().join(&name), folder.join(&name)).expect("linked");
        assert!(open_blob(root.path(), id).is_err());
        // In this case, the blob's folder is a link.
        std::fs::remove_dir_all(&folder).expect("removed");
        std::os::unix::fs::symlink(outside.path(), &folder).expect("linked");
        assert!(open_blob(root.path(), id).is_err());
        // A regular file is opened.
        std::fs::remove_file(&folder).expect("removed");
        std::fs::create_dir_all(&folder).expect("made");
        std::fs::write(folder.join(&name), "secret").expect("written");
        assert!(open_blob(root.path(), id).is_ok());
    }
}
