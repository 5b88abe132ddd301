//! Finds the tensors that each entry of a replay needs, their locations in the captures, and their digests.
//!
//! This file reads the headers of all entries, and makes the recording if there is none yet. Tensors are read in
//! chunks, and their cached pages are dropped if the task requires this. `cursor` compares the entries with the
//! schedule in the recording.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use opt_shared::arguments::Signature;
use opt_shared::cache::CacheGuard;
use opt_shared::capture::{CaptureError, CaptureFile};
use opt_shared::folder::make_folder;
use opt_shared::formula::STAGING_SLOT;
use opt_shared::ids::StorageId;
use opt_shared::message::{EntryRef, ReplayTask};
use opt_shared::replay::{
    Constant, Digest, Key, MAX_FILE_BYTES, Need, NeedsError, Recorder, Recording, RecordingError,
    Unrecordable, needs,
};
use opt_shared::units::Bytes;

use super::pool::ConstantReader;
use crate::page_cache::EntryGuards;
use crate::recorded::{Recorded, RecordedError};
use crate::residency::staging::Source;

/// An error in reading captures. A capture is to blame, unless file descriptors or memory ran out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CapturesError {
    #[error(transparent)]
    Recorded(#[from] RecordedError),
    #[error(transparent)]
    Needs(#[from] NeedsError),
    #[error(transparent)]
    Unrecordable(#[from] Unrecordable),
    #[error("reading the tensor {name}")]
    Read { name: String, source: io::Error },
}

/// An error in reading or writing the recording's file. The host is to blame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("reading the recording {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the recording {} is larger than {MAX_FILE_BYTES} bytes", path.display())]
    TooLarge { path: PathBuf },
    #[error("the recording {} cannot be used (remove it; the next run makes a new one)", path.display())]
    Unreliable { path: PathBuf, source: RecordingError },
    #[error("writing the recording {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// The location of a tensor's bytes: `bytes` bytes of a storage, beginning at offset `start`.
#[derive(Clone, Debug)]
struct Location {
    capture: PathBuf,
    storage: StorageId,
    start: u64,
    bytes: Bytes,
    /// The names of the tensor and its entry, for messages.
    name: String,
}

/// The location of every distinct tensor, by the tensor's key.
#[derive(Default)]
pub(crate) struct Locations {
    of: HashMap<Key, Location>,
}

/// An opened entry, and the tensors that it needs in the order of the call's arguments.
pub(crate) struct OpenedEntry {
    pub(crate) recorded: Recorded,
    pub(crate) needs: Vec<Need>,
    /// For every tensor argument, the index of its tensor in `needs`, or `None` if the tensor has no bytes.
    pub(crate) need_of_tensor: Vec<Option<usize>>,
}

pub(crate) fn open_entry(entry: &EntryRef, signature: &Signature) -> Result<OpenedEntry, CapturesError> {
    let recorded = Recorded::open(entry, signature)?;
    let (needs, need_of_tensor) = needs(&recorded.capture, &entry.name, &recorded.arguments)?;
    Ok(OpenedEntry { recorded, needs, need_of_tensor })
}

/// Opens the entry of every step, and collects the uses and the locations of its tensors.
pub(crate) fn survey(task: &ReplayTask) -> Result<(Recorder, Locations), CapturesError> {
    let mut recorder = Recorder::default();
    let mut locations = Locations::default();
    for call in &task.steps {
        let Some(callee) = task.callees.get(call.callee as usize) else { continue };
        // The guards are needed because reading an entry's headers leaves a whole read-ahead window in the page cache.
        let guards = task.drop_cache.then(|| EntryGuards::watch(std::slice::from_ref(&call.entry), true));
        let opened = open_entry(&call.entry, &callee.callee.signature)?;
        drop(guards);
        recorder.step(&callee.job, &call.entry.name, &opened.needs)?;
        for need in &opened.needs {
            locations.of.entry(need.key).or_insert_with(|| Location {
                capture: call.entry.path.clone(),
                storage: need.storage,
                start: need.start,
                bytes: need.bytes,
                name: format!("`{}` of {}", need.name, call.entry.name),
            });
        }
    }
    Ok((recorder, locations))
}

/// Reads every distinct tensor once, and returns the recording with their digests.
pub(crate) fn record(
    recorder: Recorder,
    locations: &Locations,
    drop_cache: bool,
    mut each: impl FnMut(usize),
) -> Result<Recording, CapturesError> {
    let mut digests = Vec::new();
    let mut chunk = vec![0; STAGING_SLOT.to_usize()];
    for (number, constant) in recorder.recording().constants.iter().enumerate() {
        let digest = locations.digest(constant, drop_cache, &mut chunk);
        digests.push(digest.map_err(|source| CapturesError::Read {
            name: locations.of.get(&constant.key).map_or_else(String::new, |location| location.name.clone()),
            source,
        })?);
        each(number + 1);
    }
    Ok(recorder.finish(&digests))
}

/// Reads a recording. Returns `None` if there is none yet.
pub(crate) fn read_recording(path: &Path) -> Result<Option<Recording>, FileError> {
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let length = file.metadata().map_err(failed)?.len();
    if MAX_FILE_BYTES < length {
        return Err(FileError::TooLarge { path: path.to_owned() });
    }
    let mut bytes = vec![0; Bytes::new(length).to_usize()];
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    let recording = Recording::decode(&bytes)
        .map_err(|source| FileError::Unreliable { path: path.to_owned(), source })?;
    Ok(Some(recording))
}

/// Writes the recording so that its file is either complete or does not exist.
pub(crate) fn write_recording(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    // `read_recording` would refuse a larger file.
    if MAX_FILE_BYTES < bytes.len() as u64 {
        return Err(FileError::TooLarge { path: path.to_owned() });
    }
    let failed = |source| FileError::Write { path: path.to_owned(), source };
    let folder = path.parent().unwrap_or(Path::new("."));
    make_folder(folder).map_err(failed)?;
    let unfinished = path.with_extension("unfinished");
    std::fs::write(&unfinished, bytes).map_err(failed)?;
    File::open(&unfinished).and_then(|file| file.sync_all()).map_err(failed)?;
    std::fs::rename(&unfinished, path).map_err(failed)?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

impl Locations {
    /// Checks the CRCs of the storages that the pool loads for these needs from captures other than `own`.
    pub(crate) fn check_crcs(&self, needs: &[Need], own: &Path) -> Result<(), CaptureError> {
        let locations = needs.iter().filter_map(|need| self.of.get(&need.key));
        locations.filter(|location| location.capture != own).try_for_each(|location| {
            let capture = CaptureFile::open(&location.capture)?;
            // A file that was replaced in the meantime may have fewer storages.
            capture
                .storages()
                .get(location.storage.index())
                .map_or(Ok(()), |storage| capture.check_storage(storage.id))
        })
    }

    fn digest(&self, constant: &Constant, drop_cache: bool, chunk: &mut [u8]) -> io::Result<Digest> {
        let mut source = self.open(constant, drop_cache)?;
        let mut hasher = blake3::Hasher::new();
        let (mut at, all) = (0, source.bytes().get());
        while at < all {
            let length = Bytes::new(all - at).to_usize().min(chunk.len());
            source.read_at(Bytes::new(at), &mut chunk[..length])?;
            hasher.update(&chunk[..length]);
            at += length as u64;
        }
        Ok(Digest(*hasher.finalize().as_bytes()))
    }

    fn open(&self, constant: &Constant, drop_cache: bool) -> io::Result<FileSource> {
        let location = self.of.get(&constant.key).ok_or_else(|| {
            io::Error::other("no entry of this replay contains this tensor (were the captures changed?)")
        })?;
        let capture = CaptureFile::open(&location.capture).map_err(io::Error::other)?;
        let storage = capture.storages().get(location.storage.index()).ok_or(io::ErrorKind::UnexpectedEof)?;
        let file = capture.file_of(storage.blob)?;
        let guard = CacheGuard::watch(Arc::clone(&file), drop_cache);
        let (offset, bytes) = (storage.file_offset + location.start, location.bytes);
        Ok(FileSource { file, guard, offset, bytes, name: location.name.clone() })
    }
}

struct FileSource {
    file: Arc<File>,
    guard: CacheGuard,
    offset: u64,
    bytes: Bytes,
    name: String,
}

impl Source for FileSource {
    fn bytes(&self) -> Bytes {
        self.bytes
    }

    fn describe(&self) -> String {
        self.name.clone()
    }

    fn read_at(&mut self, at: Bytes, into: &mut [u8]) -> io::Result<()> {
        let from = self.offset + at.get();
        self.file.read_exact_at(into, from)?;
        self.guard.drop_before(from + into.len() as u64);
        Ok(())
    }
}

pub(crate) struct CaptureSource<'a> {
    pub(crate) locations: &'a Locations,
    pub(crate) constants: &'a [Constant],
    pub(crate) drop_cache: bool,
}

impl ConstantReader for CaptureSource<'_> {
    fn open(&mut self, constant: u32) -> io::Result<Box<dyn Source + '_>> {
        let constant = self.constants.get(constant as usize).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(self.locations.open(constant, self.drop_cache)?))
    }
}
