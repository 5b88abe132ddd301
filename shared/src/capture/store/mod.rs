//! The capture store: a capture set in which every distinct storage is one file.
//!
//! ```text
//! STORE/captures.json         index: provenance, and every entry with its digests; written last
//!       captures.blake3       digest of the index, as `b3sum` prints it
//!       entries/entry_0.pt    manifest of an entry: its `.pt` file with holes, and the blob that fills each
//!       blobs/ab/ab12…        a record's bytes and nothing else, named by its BLAKE3: starts page-aligned
//!       partial/              while `pack` is at work, and after it was interrupted
//! ```
//!
//! Owns the format and the reading of one entry. Packing, unpacking and checking are the supervisor's. A store may
//! come from anybody: nothing in it is believed before it is checked, no name leads out of it, no link is followed.

mod blob;
mod index;
mod manifest;
mod packed;

use std::path::{Path, PathBuf};

pub use blob::{BlobId, blob_path, open_blob, open_plain};
pub use index::{Index, IndexEntry, IndexError, MAX_INDEX_BYTES, Provenance, is_entry_name};
pub(super) use manifest::MAGIC;
pub use manifest::{
    Content, MAX_BLOBS, MAX_LITERAL_BYTES, MAX_MANIFEST_BYTES, Manifest, ManifestError, Segment,
};
pub(super) use packed::Packed;

pub const INDEX: &str = "captures.json";
pub const INDEX_DIGEST: &str = "captures.blake3";
pub const ENTRIES: &str = "entries";
pub const BLOBS: &str = "blobs";
/// The file by which an unfinished `pack` can be continued.
pub const PARTIAL: &str = "partial";

/// Folders in folders below `entries`.
pub const MAX_NAME_DEPTH: usize = 16;
/// Bytes of an entry's name with its folders.
pub const MAX_NAME_BYTES: usize = 1024;
/// Entries of one store: ten times what a plan takes.
pub const MAX_STORE_ENTRIES: usize = 100_000;

/// The kind of a folder of captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderForm {
    Files,
    Store,
    /// `pack` was interrupted, or is at work.
    Unfinished,
}

pub fn form_of(folder: &Path) -> FolderForm {
    if folder.join(INDEX).is_file() && folder.join(ENTRIES).is_dir() {
        FolderForm::Store
    } else if folder.join(PARTIAL).is_dir() && folder.join(ENTRIES).is_dir() {
        FolderForm::Unfinished
    } else {
        FolderForm::Files
    }
}

/// The folder with a capture set's entries: the folder itself or, in a store, a folder in it.
pub fn entries_folder(folder: &Path) -> PathBuf {
    match form_of(folder) {
        FolderForm::Store => folder.join(ENTRIES),
        FolderForm::Files | FolderForm::Unfinished => folder.to_owned(),
    }
}

/// The store that a manifest is an entry of.
pub(super) fn root_of(manifest: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(manifest).ok()?;
    path.ancestors()
        .skip(1)
        .take(MAX_NAME_DEPTH + 1)
        .filter(|folder| folder.file_name().is_some_and(|name| name == ENTRIES))
        .filter_map(Path::parent)
        .find(|root| root.join(INDEX).is_file())
        .map(Path::to_owned)
}
