//! Defines the capture store, a capture set in which equal storages share one file, and reads its entries.
//!
//! ```text
//! STORE/captures.json         index: provenance, and every entry with its digests (written last)
//!       captures.blake3       digest of the index, as `b3sum` prints it
//!       entries/entry_0.pt    manifest of an entry: its `.pt` file with holes, and the blob that fills each
//!       blobs/ab/ab12…        the bytes of one record or of a whole `.pt` file; the name is their BLAKE3
//!       partial/              exists while `pack` runs, and after it was interrupted
//! ```
//!
//! This module defines the format and reads single entries. The supervisor packs, unpacks and checks stores.
//!
//! A store may come from an untrusted source. Its contents are therefore checked before they are used, names cannot
//! lead out of the store, and links are not followed.

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
/// The folder that contains the state of an unfinished `pack`, so that it can be continued.
pub const PARTIAL: &str = "partial";

/// Largest number of parts of an entry's name: its folders below `entries`, and the file.
pub const MAX_NAME_DEPTH: usize = 16;
/// Largest size of an entry's name with its folders, in bytes.
pub const MAX_NAME_BYTES: usize = 1024;
/// Largest number of entries of a store: as many as a job may have.
pub const MAX_STORE_ENTRIES: usize = 100_000;

/// The kind of a folder of captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderForm {
    Files,
    Store,
    /// `pack` is still running or was interrupted.
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

/// The folder with the entries of a capture set: the folder itself or, for a store, a folder in it.
pub fn entries_folder(folder: &Path) -> PathBuf {
    match form_of(folder) {
        FolderForm::Store => folder.join(ENTRIES),
        FolderForm::Files | FolderForm::Unfinished => folder.to_owned(),
    }
}

/// Finds the finished store to which a manifest belongs.
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
