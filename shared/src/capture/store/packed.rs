//! Reads the bytes of a store's entry by their offset in the original `.pt` file, and finds the file of the store that
//! contains a range.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::blob::{BlobId, blob_path, open_blob};
use super::manifest::{Content, MAX_MANIFEST_BYTES, Manifest};
use super::root_of;
use crate::capture::error::{ErrorKind, Fault};

pub(in crate::capture) struct Packed {
    root: PathBuf,
    manifest_file: Arc<File>,
    manifest: Manifest,
    /// The blob that was read last. Consecutive reads are often from the same blob.
    last: Mutex<Option<(BlobId, Arc<File>)>>,
}

/// Returns the first link on the path from a store to one of its entries.
fn link_below(root: &Path, entry: &Path) -> Option<PathBuf> {
    let entry = std::path::absolute(entry).ok()?;
    let below = entry.strip_prefix(root).ok()?;
    below
        .components()
        .scan(root.to_owned(), |at, part| {
            at.push(part);
            Some(at.clone())
        })
        .find(|at| at.symlink_metadata().is_ok_and(|found| found.is_symlink()))
}

/// The error for a blob that existed when the entry was opened, but cannot be opened now.
#[derive(Debug, thiserror::Error)]
#[error("could not open blob {}", path.display())]
struct Unopened {
    path: PathBuf,
    source: io::Error,
}

impl Packed {
    /// Opens an entry. `file` is the manifest at `path`. Checks that every blob exists and has the right size.
    pub(in crate::capture) fn open(path: &Path, file: Arc<File>) -> Result<Self, Fault> {
        let root = root_of(path).ok_or_else(|| {
            Fault::new(
                ErrorKind::CorruptStore,
                "it is an entry of a capture store, but is not in a finished store (keep entries in their store; if \
                 `captures pack` was interrupted there, run it again)",
            )
        })?;
        if let Some(link) = link_below(&root, path) {
            let detail = format!(
                "{} is a link, which a store must not contain (run `captures check`)",
                link.display()
            );
            return Err(Fault::new(ErrorKind::CorruptStore, detail));
        }
        let mut bytes = Vec::new();
        (&*file)
            .take(MAX_MANIFEST_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|source| Fault::read("its manifest", source))?;
        let manifest = Manifest::parse(&bytes).map_err(|source| {
            Fault::new(ErrorKind::CorruptStore, "its manifest is damaged (run `captures check`)")
                .because(source)
        })?;
        let packed = Self { root, manifest_file: file, manifest, last: Mutex::new(None) };
        for (id, bytes) in packed.manifest.blobs() {
            packed.check(id, bytes)?;
        }
        Ok(packed)
    }

    fn check(&self, id: BlobId, bytes: u64) -> Result<(), Fault> {
        let path = self.root.join(blob_path(id));
        let file = open_blob(&self.root, id).map_err(|source| {
            let (kind, what) = if source.kind() == io::ErrorKind::NotFound {
                (ErrorKind::MissingBlob, "is missing")
            } else {
                (ErrorKind::CorruptStore, "cannot be opened")
            };
            Fault::new(kind, format!("blob {} {what} (run `captures check`)", path.display())).because(source)
        })?;
        let found = file.metadata().map_err(|source| Fault::read("the size of a blob", source))?.len();
        if found == bytes {
            return Ok(());
        }
        Err(Fault::new(
            ErrorKind::CorruptStore,
            format!("blob {} has {found} bytes instead of {bytes} (run `captures check`)", path.display()),
        ))
    }

    /// The size of the packed file.
    pub(in crate::capture) fn file_bytes(&self) -> u64 {
        self.manifest.file_bytes
    }

    pub(in crate::capture) fn blobs(&self) -> Vec<(BlobId, u64)> {
        self.manifest.blobs()
    }

    /// Finds a range of the packed file: returns the blob that contains the range, and the offset of the range in the
    /// blob. If the manifest contains the range, returns no blob, and the offset in the manifest.
    pub(in crate::capture) fn locate(&self, offset: u64, bytes: u64) -> Result<(Option<BlobId>, u64), Fault> {
        let segment = self.manifest.segment_at(offset).filter(|segment| {
            let end = segment.start + segment.bytes;
            offset.checked_add(bytes).is_some_and(|range_end| range_end <= end)
        });
        match segment {
            Some(segment) => Ok(match segment.content {
                Content::Literal { at } => (None, at + (offset - segment.start)),
                Content::Blob(id) => (Some(id), offset - segment.start),
            }),
            None => Err(Fault::new(
                ErrorKind::CorruptStore,
                "a storage is divided between several blobs of the store (pack the captures again)",
            )),
        }
    }

    pub(in crate::capture) fn file_of(&self, blob: Option<BlobId>) -> io::Result<Arc<File>> {
        let Some(id) = blob else { return Ok(self.manifest_file.clone()) };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, file)) = &*last
            && *known == id
        {
            return Ok(file.clone());
        }
        let file = open_blob(&self.root, id).map(Arc::new).map_err(|source| {
            let path = self.root.join(blob_path(id));
            io::Error::new(source.kind(), Unopened { path, source })
        })?;
        *last = Some((id, file.clone()));
        Ok(file)
    }

    pub(in crate::capture) fn blob_path(&self, id: BlobId) -> PathBuf {
        self.root.join(blob_path(id))
    }

    /// Reads at most to the end of the segment that contains `offset`. Returns 0 at the end of the file.
    pub(in crate::capture) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let Some(segment) = self.manifest.segment_at(offset) else { return Ok(0) };
        let within = offset - segment.start;
        let length = usize::try_from(segment.bytes - within).unwrap_or(usize::MAX).min(buffer.len());
        let (blob, at) = match segment.content {
            Content::Literal { at } => (None, at + within),
            Content::Blob(id) => (Some(id), within),
        };
        self.file_of(blob)?.read_at(&mut buffer[..length], at)
    }
}
