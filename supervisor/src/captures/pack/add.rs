//! `captures add`: adds one or more files to a store.
//!
//! First, a finished store is turned into an unfinished one, with a journal that lists all of its entries. At the end,
//! the store is finished again. After an interruption, the next `add` continues from the journal. The recorder calls
//! `add` after each capture, so that a large tensor that captures share (such as an embedding table) is stored once.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use opt_shared::capture::store::{ENTRIES, FolderForm, INDEX, Index, PARTIAL, form_of, is_entry_name};
use opt_shared::units::Bytes;

use super::{Origin, Packed, Packing, blobs_of, remove_partial};
use crate::captures::claims::Claims;
use crate::captures::files::{lock_exclusively, make_folder, sync_folder};
use crate::captures::journal::{self, Journal, Line};
use crate::captures::sources::{Source, Stamp};
use crate::captures::{CapturesError, Tick, failed};

/// The source that is recorded for a store which `add` has created or extended. If an unfinished store has this source,
/// it was left by an interrupted `add`.
const ADDED_PROVENANCE: &str = "added file by file";

/// A file to add, and the name of its entry, such as `op/entry_000000.pt`.
#[derive(Clone, Debug)]
pub struct Added {
    pub path: PathBuf,
    pub name: String,
}

/// Adds files to a store. If an entry exists already, it is replaced if `replace` is set. Otherwise, no file is added.
/// Tensor data that no entry needs any more is removed.
pub fn add(
    store: &Path,
    files: &[Added],
    replace: bool,
    origin: Origin,
    tick: Tick<'_>,
) -> Result<Packed, CapturesError> {
    let sources: Vec<Source> = files.iter().map(source).collect::<Result<_, _>>()?;
    make_folder(store)?;
    let store = fs::canonicalize(store).map_err(failed("resolving", store))?;
    let lock = File::open(&store).map_err(failed("opening", &store))?;
    lock_exclusively(&lock, &store)?;
    if !replace {
        let existing = sources.iter().find(|source| store.join(ENTRIES).join(&source.name).exists());
        if let Some(source) = existing {
            let detail = format!("{} already has an entry {} (use --replace)", store.display(), source.name);
            return Err(CapturesError::Refused(detail));
        }
    }
    let mut packing = Packing::open_for_adding(&store, origin)?;
    let mut result = packing.require_space(&sources.iter().collect::<Vec<_>>());
    for source in &sources {
        result = result.and_then(|()| packing.pack_entry(source, &AtomicBool::new(false), tick));
        if result.is_ok() {
            packing.done.remove(&source.name);
        }
    }
    if packing.is_empty() {
        // There is nothing to finish, so the next `add` starts from the beginning.
        return result.map(|()| Packed::default());
    }
    let packed = packing.finish()?;
    result.map(|()| packed)
}

/// Checks a file's name and type, and reads its size and modification time.
fn source(file: &Added) -> Result<Source, CapturesError> {
    if !is_entry_name(&file.name) {
        let detail =
            format!("{} is not a valid name of an entry (an example is op/entry_000000.pt)", file.name);
        return Err(CapturesError::Refused(detail));
    }
    let metadata = fs::metadata(&file.path).map_err(failed("reading the metadata of", &file.path))?;
    if !metadata.is_file() {
        return Err(CapturesError::Refused(format!("{} is not a regular file", file.path.display())));
    }
    Ok(Source { name: file.name.clone(), path: file.path.clone(), stamp: Stamp::of(&metadata) })
}

impl Packing {
    fn open_for_adding(store: &Path, origin: Origin) -> Result<Self, CapturesError> {
        let partial = store.join(PARTIAL);
        if form_of(store) == FolderForm::Store {
            if partial.is_dir() {
                remove_partial(&partial)?;
            }
            reopen(store, &partial)?;
        }
        let Some(earlier) = (if partial.is_dir() { journal::read_earlier(&partial)? } else { None }) else {
            return Self::begin(store, Path::new(ADDED_PROVENANCE), origin);
        };
        if !earlier.provenance.source.ends_with(ADDED_PROVENANCE) {
            let (shown, from) = (store.display(), &earlier.provenance.source);
            let detail = format!("{shown} is unfinished (finish it with `captures pack {from} {shown}`)");
            return Err(CapturesError::Refused(detail));
        }
        journal::remove_drafts(&partial)?;
        Ok(Self {
            store: store.to_owned(),
            journal: Mutex::new((Journal::resume(&partial, &earlier)?, Vec::new(), Vec::new())),
            partial,
            provenance: earlier.provenance,
            resumed: true,
            done: earlier.done,
            claims: Claims::default(),
            sizes: blobs_of(store)?.into_values().collect(),
            drafts: Default::default(),
        })
    }
}

/// Turns a finished store into an unfinished one. The index is removed once the journal lists all of its entries.
fn reopen(store: &Path, partial: &Path) -> Result<(), CapturesError> {
    let index =
        Index::read(store).map_err(|source| CapturesError::Index { path: store.to_owned(), source })?;
    let mut provenance = index.provenance;
    if !provenance.source.ends_with(ADDED_PROVENANCE) {
        provenance.source = format!("{}, then {ADDED_PROVENANCE}", provenance.source);
    }
    make_folder(partial)?;
    let lines =
        index.entries.into_iter().map(|entry| Line { stamp: Stamp::unknown(Bytes::new(entry.bytes)), entry });
    Journal::begin_with(partial, &provenance, lines)?;
    fs::remove_file(store.join(INDEX)).map_err(failed("removing the old index of", store))?;
    sync_folder(store)
}
