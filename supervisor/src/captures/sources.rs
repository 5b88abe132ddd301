//! Finds the captures in a folder: all `.pt` files in it and in its subfolders.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use opt_shared::capture::store::{FolderForm, MAX_NAME_DEPTH, MAX_STORE_ENTRIES, form_of, is_entry_name};

use opt_shared::units::Bytes;

use super::{CapturesError, failed};

#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The path relative to the folder, with `/` as separator.
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) stamp: Stamp,
}

/// The size and the modification time of a file. If either differs, the file has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Stamp {
    pub(super) bytes: u64,
    /// The modification time, in seconds since 1970.
    modified: i64,
    /// The nanoseconds of the modification time within that second.
    modified_ns: i64,
}

impl Stamp {
    /// Returns the stamp of an entry if the modification time of its file is not known.
    pub(super) fn unknown(bytes: Bytes) -> Self {
        Self { bytes: bytes.get(), modified: 0, modified_ns: 0 }
    }

    pub(super) fn of(metadata: &Metadata) -> Self {
        Self { bytes: metadata.len(), modified: metadata.mtime(), modified_ns: metadata.mtime_nsec() }
    }
}

#[derive(Debug, Default)]
pub(super) struct Found {
    /// The captures that were found, sorted by name.
    pub(super) sources: Vec<Source>,
    /// The files and folders that cannot be packed, with reasons.
    pub(super) left_out: Vec<String>,
}

impl Found {
    fn leave_out(&mut self, path: &Path, why: &str) {
        self.left_out.push(format!("{}: {why}", path.display()));
    }
}

pub(super) fn find(folder: &Path) -> Result<Found, CapturesError> {
    if !folder.is_dir() {
        return Err(CapturesError::Refused(format!("{} is not a folder of captures", folder.display())));
    }
    if form_of(folder) != FolderForm::Files {
        return Err(CapturesError::Refused(format!(
            "{} is already a capture store, finished or not",
            folder.display()
        )));
    }
    let mut found = Found::default();
    for entry in walkdir::WalkDir::new(folder).max_depth(MAX_NAME_DEPTH).sort_by_file_name() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if error.depth() == 0 => return Err(failed("listing", folder)(error.into())),
            Err(error) => {
                let path = error.path().unwrap_or(folder).to_owned();
                found.leave_out(&path, &format!("it cannot be read: {error}"));
                continue;
            }
        };
        let path = entry.path();
        if path.is_dir() {
            // A link to a file is packed like that file. A link to a folder could lead anywhere, even to a parent.
            if entry.path_is_symlink() {
                found.leave_out(path, "it is a link to a folder (pack that folder separately)");
            } else if entry.depth() == MAX_NAME_DEPTH && !is_empty(path) {
                found.leave_out(path, &format!("it is {MAX_NAME_DEPTH} folders deep (pack it separately)"));
            }
            continue;
        }
        if path.extension().is_none_or(|extension| extension != "pt") {
            continue;
        }
        let below = path.strip_prefix(folder).unwrap_or(path);
        let Some(name) = below.to_str().filter(|name| is_entry_name(name)) else {
            found.leave_out(path, "its name is not allowed in a store (rename it)");
            continue;
        };
        let metadata = match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => metadata,
            Ok(_) => {
                found.leave_out(path, "it is not a regular file");
                continue;
            }
            Err(error) => {
                found.leave_out(path, &format!("its metadata cannot be read: {error}"));
                continue;
            }
        };
        if found.sources.len() == MAX_STORE_ENTRIES {
            let folder = folder.display();
            let detail = format!(
                "{folder} has more than {MAX_STORE_ENTRIES} captures (pack its subfolders separately)"
            );
            return Err(CapturesError::Refused(detail));
        }
        let stamp = Stamp::of(&metadata);
        found.sources.push(Source { name: name.to_owned(), path: path.to_owned(), stamp });
    }
    if found.sources.is_empty() {
        let why =
            found.left_out.first().map_or(String::new(), |first| format!(" that can be packed ({first})"));
        return Err(CapturesError::Refused(format!("no .pt file in {}{why}", folder.display())));
    }
    found.sources.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}
