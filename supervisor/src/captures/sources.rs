//! The captures of a folder: every `.pt` file in it and below.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use opt_shared::capture::store::{FolderForm, MAX_NAME_DEPTH, MAX_STORE_ENTRIES, form_of, is_entry_name};

use super::{CapturesError, failed};

#[derive(Clone, Debug)]
pub(super) struct Source {
    /// Below the folder, with `/`.
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) stamp: Stamp,
}

/// By which a file is told to be the one it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Stamp {
    pub(super) bytes: u64,
    modified: i64,
    modified_ns: i64,
}

impl Stamp {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self { bytes: metadata.len(), modified: metadata.mtime(), modified_ns: metadata.mtime_nsec() }
    }
}

/// Sorted by name.
pub(super) fn find(folder: &Path) -> Result<Vec<Source>, CapturesError> {
    if !folder.is_dir() {
        return Err(CapturesError::Refused(format!("{} is not a folder of captures", folder.display())));
    }
    if form_of(folder) != FolderForm::Files {
        return Err(CapturesError::Refused(format!("{} is a capture store already", folder.display())));
    }
    let mut sources = Vec::new();
    for entry in walkdir::WalkDir::new(folder).max_depth(MAX_NAME_DEPTH).sort_by_file_name() {
        let entry = entry.map_err(|error| failed("looking into", folder)(error.into()))?;
        let path = entry.path();
        // A link to a file is packed as the file; what is behind a link to a folder is not looked for.
        if path.extension().is_none_or(|extension| extension != "pt") || path.is_dir() {
            continue;
        }
        let below = path.strip_prefix(folder).unwrap_or(path);
        let name = below.to_str().filter(|name| is_entry_name(name)).ok_or_else(|| {
            let path = path.display();
            CapturesError::Refused(format!("{path} has a name that no store takes (rename it)"))
        })?;
        let metadata = std::fs::metadata(path).map_err(failed("looking at", path))?;
        if !metadata.is_file() {
            let path = path.display();
            return Err(CapturesError::Refused(format!("{path} is not a regular file")));
        }
        if sources.len() == MAX_STORE_ENTRIES {
            let folder = folder.display();
            let detail = format!("{folder} holds more than {MAX_STORE_ENTRIES} captures (pack its folders)");
            return Err(CapturesError::Refused(detail));
        }
        let stamp = Stamp::of(&metadata);
        sources.push(Source { name: name.to_owned(), path: path.to_owned(), stamp });
    }
    if sources.is_empty() {
        return Err(CapturesError::Refused(format!("no .pt file in {}", folder.display())));
    }
    sources.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(sources)
}
