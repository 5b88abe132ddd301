//! `captures unpack`: restores the `.pt` files of a store, byte for byte.
//!
//! A file gets its final name only if its digest equals the digest of the file that was packed. If a file of that name
//! already exists, it is kept if it has the same content, and is an error otherwise.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use opt_shared::capture::store::{
    BlobId, Content, ENTRIES, FolderForm, Index, IndexEntry, Manifest, PARTIAL, blob_path, form_of, open_blob,
};
use opt_shared::causes::chain;
use opt_shared::units::Bytes;

use super::files::{Draft, Stream, make_folder, read_manifest, require_space};
use super::{CHUNK, CapturesError, Tick, failed, in_parallel};

/// The longest file name, in bytes, that most file systems of Linux allow.
const MAX_FILE_NAME: usize = 255;

#[derive(Clone, Debug, Default)]
pub struct Unpacked {
    pub written: u64,
    pub bytes: Bytes,
    /// The number of files that already existed with the same content.
    pub found: u64,
    /// The entries that could not be restored, with reasons.
    pub failed: Vec<String>,
}

/// Restores the entries in `only`, which are written like `op/entry_000003.pt`, with or without the suffix. If `only`
/// is empty, all entries are restored.
pub fn unpack(
    store: &Path,
    folder: &Path,
    only: &[String],
    begin: impl FnOnce(Bytes),
    tick: Tick<'_>,
) -> Result<Unpacked, CapturesError> {
    let index = read_index(store)?;
    let chosen = choose(&index.entries, only)?;
    let mut todo = Vec::new();
    let mut found = 0;
    for entry in chosen {
        let target = folder.join(&entry.name);
        match std::fs::symlink_metadata(&target) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => todo.push(entry),
            Err(error) => return Err(failed("reading the metadata of", &target)(error)),
            Ok(metadata) if metadata.is_file() && is_already_restored(&target, entry, metadata.len())? => {
                found += 1
            }
            Ok(_) => {
                let target = target.display();
                let detail = format!("{target} exists with different content (use another folder)");
                return Err(CapturesError::Refused(detail));
            }
        }
    }
    let bytes = todo.iter().map(|entry| Bytes::new(entry.bytes)).sum();
    require_space(folder, bytes)?;
    make_folder(folder)?;
    begin(bytes);
    let failed = Mutex::new(Vec::new());
    in_parallel(&todo, |&entry, stop| {
        let mut restoring = Restoring { store, stop, tick, buffer: vec![0; CHUNK] };
        match restoring.restore_entry(entry, folder) {
            // If an entry is damaged, the other entries are still restored.
            Err(error) if error.concerns_file_in(store) => {
                let why = chain(&error);
                failed.lock().unwrap_or_else(PoisonError::into_inner).push((entry, why));
                Ok(())
            }
            done => done,
        }
    })?;
    let mut failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
    let lost: Bytes = failed.iter().map(|(entry, _)| Bytes::new(entry.bytes)).sum();
    Ok(Unpacked {
        written: (todo.len() - failed.len()) as u64,
        bytes: bytes - lost,
        found,
        failed: failed.into_iter().map(|(entry, why)| format!("{}: {why}", entry.name)).collect(),
    })
}

/// Refuses symbolic links on the path to a target, because they could lead out of the folder.
fn refuse_links(folder: &Path, target: &Path) -> Result<(), CapturesError> {
    for parent in target.ancestors().skip(1).take_while(|parent| *parent != folder) {
        if parent.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
            let parent = parent.display();
            let detail =
                format!("{parent} is a symbolic link, which `unpack` does not follow (use another folder)");
            return Err(CapturesError::Refused(detail));
        }
    }
    Ok(())
}

pub(super) fn read_index(store: &Path) -> Result<Index, CapturesError> {
    match form_of(store) {
        FolderForm::Store => {}
        FolderForm::Unfinished => {
            let detail = format!(
                "{} is not finished (finish it with `captures pack`, or with `captures add` if that made it)",
                store.display()
            );
            return Err(CapturesError::Refused(detail));
        }
        FolderForm::Files => {
            return Err(CapturesError::Refused(format!("{} is not a capture store", store.display())));
        }
    }
    if store.join(PARTIAL).exists() {
        let detail = format!(
            "{} still has temporary files (run the `captures pack` or `captures add` that made it again)",
            store.display()
        );
        return Err(CapturesError::Refused(detail));
    }
    Index::read(store).map_err(|source| CapturesError::Index { path: store.to_owned(), source })
}

fn choose<'i>(entries: &'i [IndexEntry], only: &[String]) -> Result<Vec<&'i IndexEntry>, CapturesError> {
    let matches = |entry: &IndexEntry, wanted: &String| {
        entry.name == *wanted || entry.name.strip_suffix(".pt") == Some(wanted)
    };
    if let Some(wanted) = only.iter().find(|wanted| !entries.iter().any(|entry| matches(entry, wanted))) {
        return Err(CapturesError::Refused(format!("the store has no entry `{wanted}`")));
    }
    let chosen = |entry: &&IndexEntry| only.is_empty() || only.iter().any(|wanted| matches(entry, wanted));
    Ok(entries.iter().filter(chosen).collect())
}

fn is_already_restored(path: &Path, entry: &IndexEntry, bytes: u64) -> Result<bool, CapturesError> {
    if bytes != entry.bytes {
        return Ok(false);
    }
    let file = File::open(path).map_err(failed("opening", path))?;
    let mut hasher = blake3::Hasher::new();
    Stream::new(path, file).each_chunk(bytes, &mut vec![0; CHUNK], &|_| {}, |chunk| {
        hasher.update(chunk);
        Ok(())
    })?;
    Ok(BlobId::from(hasher.finalize()) == entry.blake3)
}

/// Returns the path of the draft for a target. It is always the same, so that a draft that an interrupted `unpack` has
/// left is found again.
fn draft_path(target: &Path) -> PathBuf {
    const SUFFIX: &str = ".part";
    let name = target.file_name().unwrap_or_default();
    if name.len() + SUFFIX.len() <= MAX_FILE_NAME {
        let mut draft = name.to_owned();
        draft.push(SUFFIX);
        return target.with_file_name(draft);
    }
    let digest = blake3::hash(name.as_encoded_bytes()).to_hex();
    target.with_file_name(format!("{digest}{SUFFIX}"))
}

struct Restoring<'w> {
    store: &'w Path,
    stop: &'w AtomicBool,
    tick: Tick<'w>,
    buffer: Vec<u8>,
}

impl Restoring<'_> {
    fn restore_entry(&mut self, entry: &IndexEntry, folder: &Path) -> Result<(), CapturesError> {
        let target = &folder.join(&entry.name);
        let path = self.store.join(ENTRIES).join(&entry.name);
        let bytes = read_manifest(&path)?;
        if BlobId::from(blake3::hash(&bytes)) != entry.manifest {
            return Err(CapturesError::Damaged {
                path,
                what: "the manifest is damaged: its digest differs from the one in the index (run `captures check`)"
                    .to_owned(),
            });
        }
        let manifest = Manifest::parse(&bytes)
            .map_err(|source| CapturesError::Manifest { path: path.clone(), source })?;
        refuse_links(folder, target)?;
        make_folder(target.parent().unwrap_or(target))?;
        let mut draft = Draft::create(draft_path(target))?;
        let mut hasher = blake3::Hasher::new();
        for segment in &manifest.segments {
            match segment.content {
                Content::Literal { at } => {
                    let literal = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
                    let literal = literal.and_then(|rest| rest.get(..Bytes::new(segment.bytes).to_usize()));
                    // Parsing has checked that the literal exists.
                    let literal = literal.unwrap_or_default();
                    hasher.update(literal);
                    draft.write(literal)?;
                    (self.tick)(Bytes::new(segment.bytes));
                }
                Content::Blob(id) => self.append_blob(id, segment.bytes, &mut hasher, &mut draft)?,
            }
        }
        let found = BlobId::from(hasher.finalize());
        if found != manifest.file_digest || found != entry.blake3 {
            let what =
                "the restored file differs from the packed one, so a blob is damaged (run `captures check`)"
                    .to_owned();
            return Err(CapturesError::Damaged { path, what });
        }
        draft.place_new(target, 0o644)
    }

    fn append_blob(
        &mut self,
        id: BlobId,
        bytes: u64,
        hasher: &mut blake3::Hasher,
        draft: &mut Draft,
    ) -> Result<(), CapturesError> {
        let path = self.store.join(blob_path(id));
        let file = open_blob(self.store, id).map_err(failed("opening the blob", &path))?;
        let found = file.metadata().map_err(failed("reading the size of the blob", &path))?.len();
        if found != bytes {
            let what = format!(
                "the blob is damaged: it has {found} bytes instead of {bytes} (run `captures check`)"
            );
            return Err(CapturesError::Damaged { path, what });
        }
        let stop = self.stop;
        Stream::new(&path, file).each_chunk(bytes, &mut self.buffer, self.tick, |chunk| {
            if stop.load(Ordering::Relaxed) {
                return Err(CapturesError::GivenUp);
            }
            hasher.update(chunk);
            draft.write(chunk)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draft_of_a_file_has_a_name_that_is_short_enough() {
        let name = |length: usize| format!("{}.pt", "n".repeat(length - 3));
        for (length, appended) in [(9, true), (250, true), (251, false), (255, false)] {
            let target = Path::new("op").join(name(length));
            let draft = draft_path(&target);
            assert_eq!(draft.parent(), target.parent());
            let draft_name = draft.file_name().expect("a name").to_str().expect("text");
            assert!(draft_name.len() <= MAX_FILE_NAME && draft_name.ends_with(".part"), "{draft_name}");
            assert_eq!(draft_name == format!("{}.part", name(length)), appended, "{length}");
        }
        let long = |last: &str| draft_path(Path::new(&format!("{}{last}", "n".repeat(254))));
        assert_ne!(long("a"), long("b"), "two entries of a folder are restored at the same time");
    }
}
