//! `captures check`: reads a whole store and reports damaged, missing and unexpected files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use opt_shared::capture::store::{
    BLOBS, BlobId, ENTRIES, FolderForm, INDEX, INDEX_DIGEST, Index, IndexEntry, Manifest, PARTIAL, blob_path,
    form_of, open_blob,
};
use opt_shared::units::Bytes;

use super::files::{Stream, read_manifest};
use super::{CHUNK, CapturesError, Tick, failed, in_parallel};

/// The number of findings that are kept. Further findings are only counted, because a completely damaged store would
/// have a finding for each file.
const MAX_FINDINGS: usize = 1000;

#[derive(Clone, Debug, Default)]
pub struct Checked {
    pub entries: u64,
    pub blobs: u64,
    pub blob_bytes: Bytes,
    /// One line for each problem. Only the first thousand problems are listed.
    pub findings: Vec<String>,
    pub more_findings: u64,
}

impl Checked {
    fn add_finding(&mut self, what: String) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(what);
        } else {
            self.more_findings += 1;
        }
    }
}

/// Checks a whole store. `begin` is called with the total size of all blobs before the blobs are read.
pub fn check(store: &Path, begin: impl FnOnce(Bytes), tick: Tick<'_>) -> Result<Checked, CapturesError> {
    if form_of(store) == FolderForm::Files && !store.join(INDEX).exists() {
        return Err(CapturesError::Refused(format!("{} is not a capture store", store.display())));
    }
    let mut checked = Checked::default();
    check_top_level(store, &mut checked)?;
    let entries = match Index::read(store) {
        Ok(index) => Some(index.entries),
        Err(error) => {
            checked.add_finding(format!("{:#}", anyhow::Error::from(error)));
            None
        }
    };
    checked.entries = entries.as_ref().map_or(0, |entries| entries.len() as u64);
    let needed = match entries {
        Some(entries) => check_manifests(store, &entries, &mut checked)?,
        None => Needed::default(),
    };
    check_blobs(store, needed, &mut checked, begin, tick)?;
    Ok(checked)
}

fn check_top_level(store: &Path, checked: &mut Checked) -> Result<(), CapturesError> {
    for entry in fs::read_dir(store).map_err(failed("listing", store))? {
        let entry = entry.map_err(failed("listing", store))?;
        let name = entry.file_name();
        let kind = entry.file_type().map_err(failed("reading the metadata of", &entry.path()))?;
        if name == PARTIAL {
            checked.add_finding(format!(
                "{PARTIAL}: packing was interrupted, or has not ended yet (if it was interrupted, run the same `captures pack` or `captures add` again)"
            ));
        } else if !(kind.is_file() && (name == INDEX || name == INDEX_DIGEST)
            || kind.is_dir() && (name == ENTRIES || name == BLOBS))
        {
            checked.add_finding(format!("{}: it does not belong to a store", name.display()));
        }
    }
    Ok(())
}

/// A blob that an entry needs, with its expected size.
struct Wanted {
    bytes: u64,
    /// The first entry that needs the blob.
    by: String,
}

/// The blobs that the readable manifests name.
#[derive(Default)]
struct Needed {
    blobs: BTreeMap<BlobId, Wanted>,
    /// Whether the index and all manifests could be read. Only then is it certain that no entry needs any other blob.
    is_complete: bool,
}

/// Checks the manifests against the index.
fn check_manifests(
    store: &Path,
    entries: &[IndexEntry],
    checked: &mut Checked,
) -> Result<Needed, CapturesError> {
    let folder = store.join(ENTRIES);
    let mut wanted = BTreeMap::new();
    let mut is_complete = true;
    for entry in entries {
        match read_intact_manifest(&folder, entry) {
            Ok(manifest) => {
                for (id, bytes) in manifest.blobs() {
                    let wanted_blob =
                        wanted.entry(id).or_insert_with(|| Wanted { bytes, by: entry.name.clone() });
                    if wanted_blob.bytes != bytes {
                        let by = &wanted_blob.by;
                        checked.add_finding(format!(
                            "{ENTRIES}/{}: it gives the blob {id} another size than the entry {by} does",
                            entry.name
                        ));
                    }
                }
            }
            Err(what) => {
                is_complete = false;
                checked.add_finding(format!("{ENTRIES}/{}: {what}", entry.name));
            }
        }
    }
    let listed: BTreeSet<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    for (name, is_file) in files_below(&folder)? {
        if !is_file || !listed.contains(name.as_str()) {
            checked.add_finding(format!("{ENTRIES}/{name}: it is not a file that the index names"));
        }
    }
    Ok(Needed { blobs: wanted, is_complete })
}

/// Reads an entry's manifest and compares it with the index. The error says why it cannot be read, or how it differs.
fn read_intact_manifest(folder: &Path, entry: &IndexEntry) -> Result<Manifest, String> {
    let bytes = read_manifest(&folder.join(&entry.name))
        .map_err(|error| format!("{:#}", anyhow::Error::from(error)))?;
    if BlobId::from(blake3::hash(&bytes)) != entry.manifest {
        return Err("its digest is not the one in the index".to_owned());
    }
    let manifest = Manifest::parse(&bytes).map_err(|error| error.to_string())?;
    if (manifest.file_bytes, manifest.file_digest) != (entry.bytes, entry.blake3) {
        return Err(
            "the size or digest that it gives for the packed file is not the one in the index".to_owned()
        );
    }
    Ok(manifest)
}

fn check_blobs(
    store: &Path,
    needed: Needed,
    checked: &mut Checked,
    begin: impl FnOnce(Bytes),
    tick: Tick<'_>,
) -> Result<(), CapturesError> {
    let Needed { blobs: mut wanted, is_complete } = needed;
    let mut present = Vec::new();
    let mut total = Bytes::ZERO;
    for (name, is_file) in files_below(&store.join(BLOBS))? {
        let id = name.rsplit('/').next().and_then(|last| last.parse::<BlobId>().ok());
        let has_expected_path = |id: &BlobId| Path::new(BLOBS).join(&name) == blob_path(*id);
        let Some(id) = id.filter(has_expected_path).filter(|_| is_file) else {
            checked.add_finding(format!("{BLOBS}/{name}: it is not a blob"));
            continue;
        };
        if wanted.remove(&id).is_none() && is_complete {
            checked.add_finding(format!("{BLOBS}/{name}: no entry needs it"));
        }
        total +=
            fs::symlink_metadata(store.join(blob_path(id))).map_or(Bytes::ZERO, |it| Bytes::new(it.len()));
        present.push(id);
    }
    for (id, Wanted { by, .. }) in wanted {
        checked.add_finding(format!("{}: it is missing (entry {by} needs it)", blob_path(id).display()));
    }
    checked.blobs = present.len() as u64;
    checked.blob_bytes = total;
    begin(total);
    let damaged = Mutex::new(Vec::new());
    in_parallel(&present, |id, _| {
        if let Some(what) = damage(store, *id, tick) {
            let what = format!("{}: {what}", blob_path(*id).display());
            damaged.lock().unwrap_or_else(PoisonError::into_inner).push(what);
        }
        Ok(())
    })?;
    let mut damaged = damaged.into_inner().unwrap_or_else(PoisonError::into_inner);
    damaged.sort();
    damaged.into_iter().for_each(|what| checked.add_finding(what));
    Ok(())
}

/// Returns a description of what is wrong with a blob, or `None` if it is intact. If the digest is equal, so is the
/// size.
fn damage(store: &Path, id: BlobId, tick: Tick<'_>) -> Option<String> {
    let path = store.join(blob_path(id));
    let hash = || -> Result<BlobId, CapturesError> {
        let file = open_blob(store, id).map_err(failed("opening the blob", &path))?;
        let bytes = file.metadata().map_err(failed("reading the size of the blob", &path))?.len();
        let mut hasher = blake3::Hasher::new();
        Stream::new(&path, file).each_chunk(bytes, &mut vec![0; CHUNK], tick, |chunk| {
            hasher.update(chunk);
            Ok(())
        })?;
        Ok(hasher.finalize().into())
    };
    match hash() {
        Ok(found) if found == id => None,
        Ok(found) => Some(format!("it is damaged: its digest is {found}")),
        Err(error) => Some(format!("{:#}", anyhow::Error::from(error))),
    }
}

/// Returns the paths of everything below `folder` except folders, relative to `folder`. The flag is true for regular
/// files.
fn files_below(folder: &Path) -> Result<Vec<(String, bool)>, CapturesError> {
    let mut names = Vec::new();
    for entry in walkdir::WalkDir::new(folder).min_depth(1).sort_by_file_name() {
        let entry = entry.map_err(|error| failed("listing", folder)(error.into()))?;
        if !entry.file_type().is_dir() {
            let name = entry.path().strip_prefix(folder).unwrap_or(entry.path());
            names.push((name.to_string_lossy().into_owned(), entry.file_type().is_file()));
        }
    }
    Ok(names)
}
