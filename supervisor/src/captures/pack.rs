//! `captures pack`: turns a folder of `.pt` files into a store.
//!
//! Each file is read from start to end, usually once, hashed as a whole, and split into blobs (its storages, the blocks
//! of data behind its tensors) and literals (the bytes between them). A storage that was seen before is hashed, but not
//! written again. For each entry, the blobs are written first, then the manifest that names them, then the line in the
//! journal. The index is written last. The files on disk are therefore valid at any moment.

mod add;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use opt_shared::capture::RecordRange;
use opt_shared::capture::store::{
    BLOBS, BlobId, Content, ENTRIES, FolderForm, INDEX, INDEX_DIGEST, Index, IndexEntry, Manifest, PARTIAL,
    Provenance, Segment, blob_path, form_of,
};
use opt_shared::causes::chain;
use opt_shared::units::Bytes;

use super::claims::Claims;
use super::files::{
    Draft, Stream, lock_exclusively, make_folder, read_manifest, require_space, resolved, sync_folder,
};
use super::journal::{self, Journal, Line};
use super::layout::{self, Layout};
use super::sources::{self, Found, Source, Stamp};
use super::{CHUNK, CapturesError, Tick, failed, in_parallel};

pub use self::add::{Added, add};

/// The mode of blobs: read-only, because they never change.
const BLOB_MODE: u32 = 0o444;
/// The estimated disk space that a file takes in addition to its content.
const OVERHEAD_PER_FILE: u64 = 4096;

#[derive(Clone, Debug, Default)]
pub struct Packed {
    pub entries: u64,
    /// The number of entries that an earlier, interrupted `pack` had finished.
    pub found_done: u64,
    pub bytes: Bytes,
    pub blobs: u64,
    pub blob_bytes: Bytes,
    /// The entries that this call stored as a single blob, with reasons.
    pub kept_whole: Vec<String>,
    /// The files and folders that were not packed, with reasons.
    pub left_out: Vec<String>,
}

/// Packs `folder` into `store`, or continues an unfinished store. `origin` is written to the index of a new store. An
/// unfinished store keeps its own. `begin` is called with the number of bytes to process.
pub fn pack(
    folder: &Path,
    store: &Path,
    origin: Origin,
    begin: impl FnOnce(Bytes),
    tick: Tick<'_>,
) -> Result<Packed, CapturesError> {
    let Found { sources, left_out } = sources::find(folder)?;
    let folder = fs::canonicalize(folder).map_err(failed("resolving", folder))?;
    let store_is_inside = || {
        let detail = "the store would be inside the folder that is packed (use a folder beside it)";
        CapturesError::Refused(detail.to_owned())
    };
    if resolved(store)?.starts_with(&folder) {
        return Err(store_is_inside());
    }
    make_folder(store)?;
    let store = fs::canonicalize(store).map_err(failed("resolving", store))?;
    if store.starts_with(&folder) {
        // Another process has created a link in the meantime. `remove_dir` fails if the folder is not empty.
        let _ = fs::remove_dir(&store);
        return Err(store_is_inside());
    }
    let lock = File::open(&store).map_err(failed("opening", &store))?;
    lock_exclusively(&lock, &store)?;
    if let Some(packed) = finish_tidying(&store)? {
        return Ok(Packed { left_out, ..packed });
    }
    let mut packing = Packing::begin(&store, &folder, origin)?;
    packing.forget_changed(&sources)?;
    let todo: Vec<&Source> = sources.iter().filter(|it| !packing.done.contains_key(&it.name)).collect();
    packing.require_space(&todo)?;
    begin(todo.iter().map(|source| Bytes::new(source.stamp.bytes)).sum());
    let found_done = (sources.len() - todo.len()) as u64;
    let not_packed = Mutex::new(NotPacked { left_out, changed: None });
    in_parallel(&todo, |source, stop| {
        let Err(error) = packing.pack_entry(source, stop, tick) else { return Ok(()) };
        let mut not_packed = not_packed.lock().unwrap_or_else(PoisonError::into_inner);
        match error {
            // The other entries are still packed. A later run can pack this one once its file no longer changes.
            CapturesError::Changed { .. } => drop(not_packed.changed.get_or_insert(error)),
            error if error.path() == Some(&source.path) => {
                not_packed.left_out.push(format!("{}: {}", source.path.display(), chain(&error)));
            }
            error => return Err(error),
        }
        Ok(())
    })?;
    let NotPacked { mut left_out, changed } = not_packed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(changed) = changed {
        return Err(changed);
    }
    left_out.sort();
    if packing.is_empty() {
        let first = left_out.first().map_or("", String::as_str);
        return Err(CapturesError::Refused(format!("no capture could be packed ({first})")));
    }
    let packed = packing.finish()?;
    Ok(Packed { found_done, left_out, ..packed })
}

struct NotPacked {
    left_out: Vec<String>,
    /// The error about the first file that changed while it was being read.
    changed: Option<CapturesError>,
}

/// The provenance of a new store, except for the store's source.
pub struct Origin {
    pub tool: String,
    pub packed_by: String,
    pub started: String,
}

struct Packing {
    store: PathBuf,
    partial: PathBuf,
    provenance: Provenance,
    resumed: bool,
    done: BTreeMap<String, Line>,
    journal: Mutex<(Journal, Vec<Line>, Vec<String>)>,
    claims: Claims,
    /// The sizes of blobs that an earlier command has left. A storage of such a size is hashed before it is written.
    sizes: HashSet<u64>,
    /// The number in the name of the next draft.
    drafts: AtomicU64,
}

impl Packing {
    fn begin(store: &Path, folder: &Path, origin: Origin) -> Result<Self, CapturesError> {
        let partial = store.join(PARTIAL);
        let shown = store.display();
        if form_of(store) == FolderForm::Store {
            let detail = format!("{shown} is a finished store and is not overwritten (use another folder)");
            return Err(CapturesError::Refused(detail));
        }
        if !partial.is_dir() {
            let mut existing = fs::read_dir(store).map_err(failed("listing", store))?;
            if existing.next().is_some() {
                let detail =
                    format!("{shown} is not empty, and is not an unfinished store (use another folder)");
                return Err(CapturesError::Refused(detail));
            }
            make_folder(&partial)?;
        }
        make_folder(&store.join(ENTRIES))?;
        make_folder(&store.join(BLOBS))?;
        journal::remove_drafts(&partial)?;
        let earlier = journal::read_earlier(&partial)?;
        let source = folder.to_string_lossy().into_owned();
        let resumed = earlier.is_some();
        let (journal, provenance, done) = match earlier {
            Some(earlier) if earlier.provenance.source != source => {
                let from = &earlier.provenance.source;
                let detail =
                    format!("{shown} was begun from {from} (continue with that folder, or remove the store)");
                return Err(CapturesError::Refused(detail));
            }
            Some(earlier) => (Journal::resume(&partial, &earlier)?, earlier.provenance, earlier.done),
            None => {
                let Origin { tool, packed_by, started } = origin;
                let provenance = Provenance { tool, packed_by, started, source };
                (Journal::begin(&partial, &provenance)?, provenance, BTreeMap::new())
            }
        };
        let sizes = if resumed { blobs_of(store)?.into_values().collect() } else { HashSet::new() };
        Ok(Self {
            store: store.to_owned(),
            partial,
            provenance,
            resumed,
            done,
            journal: Mutex::new((journal, Vec::new(), Vec::new())),
            claims: Claims::default(),
            sizes,
            drafts: AtomicU64::new(0),
        })
    }

    /// Forgets entries whose files or manifests have changed, so that they are packed again. Removes manifests whose
    /// files are gone, whether or not they are in the journal.
    fn forget_changed(&mut self, sources: &[Source]) -> Result<(), CapturesError> {
        let now: BTreeMap<&str, Stamp> = sources.iter().map(|it| (it.name.as_str(), it.stamp)).collect();
        let entries = self.store.join(ENTRIES);
        self.done.retain(|name, line| {
            let manifest = read_manifest(&entries.join(name));
            let intact =
                manifest.is_ok_and(|bytes| BlobId::from(blake3::hash(&bytes)) == line.entry.manifest);
            intact && now.get(name.as_str()) == Some(&line.stamp)
        });
        for found in walkdir::WalkDir::new(&entries) {
            let found = found.map_err(|error| failed("listing", &entries)(error.into()))?;
            let name = found.path().strip_prefix(&entries).unwrap_or(found.path()).to_string_lossy();
            if !found.file_type().is_dir() && !now.contains_key(name.as_ref()) {
                fs::remove_file(found.path()).map_err(failed("removing", found.path()))?;
            }
        }
        Ok(())
    }

    /// Fails if the disk has too little space. The estimate may be too low: storages of equal size and CRC are counted
    /// once, and for each blob in the store, one storage of the same size is assumed to be this blob.
    fn require_space(&self, todo: &[&Source]) -> Result<(), CapturesError> {
        let mut seen = HashSet::new();
        let mut needed = Bytes::ZERO;
        let mut present: HashMap<u64, usize> = HashMap::new();
        for bytes in blobs_of(&self.store)?.into_values() {
            *present.entry(bytes).or_default() += 1;
        }
        for source in todo {
            // If the file cannot be read, this is reported when the file is packed.
            let Ok(Layout { blobs, .. }) = layout::of_file(&source.path, source.stamp.bytes) else {
                continue;
            };
            let in_blobs: Bytes = blobs.iter().map(|record| Bytes::new(record.bytes)).sum();
            needed += Bytes::new(source.stamp.bytes) - in_blobs + Bytes::new(2 * OVERHEAD_PER_FILE);
            for record in blobs {
                if record.crc32.is_some_and(|crc| !seen.insert((record.bytes, crc))) {
                    continue;
                }
                match present.get_mut(&record.bytes).filter(|left| 0 < **left) {
                    Some(left) => *left -= 1,
                    None => needed += Bytes::new(record.bytes) + Bytes::new(OVERHEAD_PER_FILE),
                }
            }
        }
        require_space(&self.store, needed)
    }

    fn pack_entry(&self, source: &Source, stop: &AtomicBool, tick: Tick<'_>) -> Result<(), CapturesError> {
        let file = File::open(&source.path).map_err(failed("opening", &source.path))?;
        let layout = layout::of_file(&source.path, source.stamp.bytes)?;
        let mut reading = Reading {
            stream: Stream::new(&source.path, file),
            file_hash: blake3::Hasher::new(),
            buffer: vec![0; CHUNK],
        };
        let changed = || CapturesError::Changed { path: source.path.clone() };
        let unchanged = |reading: &Reading| {
            let metadata =
                reading.stream.file().metadata().map_err(failed("reading the metadata of", &source.path))?;
            if Stamp::of(&metadata) == source.stamp { Ok(()) } else { Err(changed()) }
        };
        unchanged(&reading)?;
        let (mut segments, mut literals) = (Vec::new(), Vec::new());
        let mut at = 0;
        for record in &layout.blobs {
            if stop.load(Ordering::Relaxed) {
                return Err(CapturesError::GivenUp);
            }
            read_literal(&mut reading, &mut segments, &mut literals, at, record.offset, tick)?;
            let id = self.write_blob(&mut reading, record, stop, tick)?;
            segments.push(Segment { start: record.offset, bytes: record.bytes, content: Content::Blob(id) });
            at = record.offset + record.bytes;
        }
        read_literal(&mut reading, &mut segments, &mut literals, at, source.stamp.bytes, tick)?;
        unchanged(&reading)?;
        let manifest = Manifest {
            file_bytes: source.stamp.bytes,
            file_digest: reading.file_hash.finalize().into(),
            segments,
        };
        let encoded = manifest.encode(&literals);
        // This is a cheap check that the program can read the manifest that it is about to write.
        Manifest::parse(&encoded)
            .map_err(|error| CapturesError::Manifest { path: source.path.clone(), source: error })?;
        let target = self.store.join(ENTRIES).join(&source.name);
        make_folder(target.parent().unwrap_or(&self.store))?;
        let mut draft = self.draft()?;
        draft.write(&encoded)?;
        draft.place(&target, 0o644)?;
        let line = Line {
            stamp: source.stamp,
            entry: IndexEntry {
                name: source.name.clone(),
                bytes: source.stamp.bytes,
                blake3: manifest.file_digest,
                manifest: blake3::hash(&encoded).into(),
            },
        };
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, lines, kept_whole) = &mut *journal;
        file.add(&line)?;
        lines.push(line);
        kept_whole.extend(layout.kept_whole.map(|why| format!("{}: {why}", source.name)));
        Ok(())
    }

    /// Reads a storage, usually only once, and returns its blob's id. Writes the blob unless the store has it.
    fn write_blob(
        &self,
        reading: &mut Reading,
        record: &RecordRange,
        stop: &AtomicBool,
        tick: Tick<'_>,
    ) -> Result<BlobId, CapturesError> {
        let Reading { stream, file_hash, buffer } = reading;
        if record.bytes <= CHUNK as u64 {
            let mut taken = Vec::new();
            stream.each_chunk(record.bytes, buffer, tick, |chunk| {
                file_hash.update(chunk);
                taken.extend_from_slice(chunk);
                Ok(())
            })?;
            let id = BlobId::from(blake3::hash(&taken));
            if !self.has(id) {
                let mut draft = self.draft()?;
                draft.write(&taken)?;
                self.place(draft, id)?;
            }
            return Ok(id);
        }
        let size_and_crc = record.crc32.map(|crc| (record.bytes, crc));
        let claim =
            size_and_crc.filter(|_| !self.sizes.contains(&record.bytes)).and_then(|it| self.claims.take(it));
        let mut draft = if claim.is_some() { Some(self.draft()?) } else { None };
        let mut hasher = blake3::Hasher::new();
        stream.each_chunk(record.bytes, buffer, tick, |chunk| {
            file_hash.update(chunk);
            hasher.update(chunk);
            draft.as_mut().map_or(Ok(()), |draft| draft.write(chunk))
        })?;
        let id = BlobId::from(hasher.finalize());
        if let Some(draft) = draft {
            if !self.has(id) {
                self.place(draft, id)?;
            }
            return Ok(id);
        }
        if let Some(size_and_crc) = size_and_crc {
            self.claims.wait(size_and_crc, stop)?;
        }
        if self.has(id) {
            return Ok(id);
        }
        // The storage was only hashed: it has no CRC, an older blob's size, or another storage's size and CRC.
        let mut draft = self.draft()?;
        let mut again = blake3::Hasher::new();
        stream.seek(record.offset);
        stream.each_chunk(record.bytes, buffer, &|_| {}, |chunk| {
            again.update(chunk);
            draft.write(chunk)
        })?;
        if BlobId::from(again.finalize()) != id {
            return Err(CapturesError::Changed { path: stream.path().to_owned() });
        }
        self.place(draft, id)?;
        Ok(id)
    }

    fn is_empty(&self) -> bool {
        self.done.is_empty() && self.journal.lock().unwrap_or_else(PoisonError::into_inner).1.is_empty()
    }

    fn has(&self, id: BlobId) -> bool {
        self.store.join(blob_path(id)).is_file()
    }

    fn draft(&self) -> Result<Draft, CapturesError> {
        let number = self.drafts.fetch_add(1, Ordering::Relaxed);
        Draft::create(self.partial.join(format!("{number}.draft")))
    }

    fn place(&self, draft: Draft, id: BlobId) -> Result<(), CapturesError> {
        let target = self.store.join(blob_path(id));
        make_folder(target.parent().unwrap_or(&self.store))?;
        draft.place(&target, BLOB_MODE)
    }

    fn finish(self) -> Result<Packed, CapturesError> {
        let (journal, lines, kept_whole) = self.journal.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut entries: Vec<IndexEntry> =
            self.done.into_values().chain(lines).map(|line| line.entry).collect();
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        let used = used_blobs(&self.store, &entries)?;
        if self.resumed {
            // An unused blob belongs to a file that was changed, replaced, removed or left out since it was packed.
            for (id, bytes) in blobs_of(&self.store)? {
                if !used.contains(&(id, bytes)) {
                    let path = self.store.join(blob_path(id));
                    fs::remove_file(&path).map_err(failed("removing", &path))?;
                }
            }
        }
        let packed = Packed::of(&entries, &used, kept_whole);
        let index = Index::new(self.provenance, entries);
        let (text, digest) =
            index.encode().map_err(|source| CapturesError::Index { path: self.store.clone(), source })?;
        for (name, contents) in [(INDEX_DIGEST, digest), (INDEX, text)] {
            let mut draft = Draft::create(self.partial.join(format!("{name}.draft")))?;
            draft.write(&contents)?;
            draft.place(&self.store.join(name), 0o644)?;
        }
        drop(journal);
        remove_partial(&self.partial)?;
        sync_folder(&self.store)?;
        Ok(packed)
    }
}

impl Packed {
    fn of(entries: &[IndexEntry], used: &BTreeSet<(BlobId, u64)>, kept_whole: Vec<String>) -> Self {
        Self {
            entries: entries.len() as u64,
            found_done: 0,
            bytes: entries.iter().map(|entry| Bytes::new(entry.bytes)).sum(),
            blobs: used.len() as u64,
            blob_bytes: used.iter().map(|(_, bytes)| Bytes::new(*bytes)).sum(),
            kept_whole,
            left_out: Vec::new(),
        }
    }
}

fn used_blobs(store: &Path, entries: &[IndexEntry]) -> Result<BTreeSet<(BlobId, u64)>, CapturesError> {
    let mut used = BTreeSet::new();
    for entry in entries {
        let path = store.join(ENTRIES).join(&entry.name);
        let manifest = Manifest::parse(&read_manifest(&path)?)
            .map_err(|source| CapturesError::Manifest { path: path.clone(), source })?;
        used.extend(manifest.blobs());
    }
    Ok(used)
}

/// Finishes an earlier `pack` that was interrupted after it wrote the index. Returns its figures if there was one.
fn finish_tidying(store: &Path) -> Result<Option<Packed>, CapturesError> {
    let partial = store.join(PARTIAL);
    if form_of(store) != FolderForm::Store || !partial.is_dir() {
        return Ok(None);
    }
    remove_partial(&partial)?;
    let index =
        Index::read(store).map_err(|source| CapturesError::Index { path: store.to_owned(), source })?;
    let used = used_blobs(store, &index.entries)?;
    let packed = Packed::of(&index.entries, &used, Vec::new());
    Ok(Some(Packed { found_done: packed.entries, ..packed }))
}

fn remove_partial(partial: &Path) -> Result<(), CapturesError> {
    fs::remove_dir_all(partial).map_err(failed("removing", partial))
}

struct Reading {
    stream: Stream,
    file_hash: blake3::Hasher,
    buffer: Vec<u8>,
}

/// Reads the bytes `from..to` and adds them as a literal segment. Its `at` stays 0; `Manifest::parse` computes it.
fn read_literal(
    reading: &mut Reading,
    segments: &mut Vec<Segment>,
    literals: &mut Vec<u8>,
    from: u64,
    to: u64,
    tick: Tick<'_>,
) -> Result<(), CapturesError> {
    if from == to {
        return Ok(());
    }
    let Reading { stream, file_hash, buffer } = reading;
    segments.push(Segment { start: from, bytes: to - from, content: Content::Literal { at: 0 } });
    stream.each_chunk(to - from, buffer, tick, |chunk| {
        file_hash.update(chunk);
        literals.extend_from_slice(chunk);
        Ok(())
    })
}

/// Returns the blobs of a store with their sizes. Files whose names are not blob ids are ignored.
fn blobs_of(store: &Path) -> Result<BTreeMap<BlobId, u64>, CapturesError> {
    let blobs = store.join(BLOBS);
    let mut found = BTreeMap::new();
    for entry in walkdir::WalkDir::new(&blobs).min_depth(2).max_depth(2) {
        let entry = entry.map_err(|error| failed("listing", &blobs)(error.into()))?;
        if let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            let metadata = entry
                .metadata()
                .map_err(|error| failed("reading the metadata of", entry.path())(error.into()))?;
            found.insert(id, metadata.len());
        }
    }
    Ok(found)
}
