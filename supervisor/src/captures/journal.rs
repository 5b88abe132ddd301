//! Reads and writes the journal of an unfinished `pack` or `add`, in `partial/journal`. It has one JSON line about the
//! store, and then one for each finished entry.
//!
//! A line is written only after everything that it refers to is on disk. If a crash leaves an incomplete line, the line
//! is removed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use opt_shared::capture::store::{IndexEntry, MAX_INDEX_BYTES, Provenance, open_plain};

use rustix::fs::OFlags;

use super::files::Draft;
use super::sources::Stamp;
use super::{CapturesError, failed};

const NAME: &str = "journal";

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
/// The line of a finished entry, with the stamp of the file that was packed.
pub(super) struct Line {
    pub(super) stamp: Stamp,
    pub(super) entry: IndexEntry,
}

pub(super) struct Journal {
    path: PathBuf,
    file: File,
}

/// The contents of a journal that an earlier, interrupted command has left.
pub(super) struct Earlier {
    pub(super) provenance: Provenance,
    pub(super) done: BTreeMap<String, Line>,
    /// The offset of the first incomplete or unreadable line. If there is none, the length of the journal.
    complete: u64,
}

pub(super) fn read_earlier(partial: &Path) -> Result<Option<Earlier>, CapturesError> {
    let path = partial.join(NAME);
    let file = match open_plain(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("opening", &path)(error)),
    };
    // The journal may be larger than an index, because each line contains a stamp in addition to the entry.
    let mut reader = BufReader::new(file.take(2 * MAX_INDEX_BYTES));
    let mut line = Vec::new();
    let mut next = |line: &mut Vec<u8>| {
        line.clear();
        reader.read_until(b'\n', line).map_err(failed("reading", &path))
    };
    let mut complete = next(&mut line)? as u64;
    let provenance = serde_json::from_slice(&line).map_err(|error| CapturesError::Damaged {
        path: path.clone(),
        what: format!(
            "the journal is damaged: its first line does not describe a store: {error} (pack into another folder)"
        ),
    })?;
    let mut done = BTreeMap::new();
    while next(&mut line)? != 0 && line.ends_with(b"\n") {
        let Ok(parsed) = serde_json::from_slice::<Line>(&line) else { break };
        complete += line.len() as u64;
        done.insert(parsed.entry.name.clone(), parsed);
    }
    Ok(Some(Earlier { provenance, done, complete }))
}

impl Journal {
    pub(super) fn begin(partial: &Path, provenance: &Provenance) -> Result<Self, CapturesError> {
        Self::begin_with(partial, provenance, std::iter::empty())
    }

    /// Starts a journal that lists these entries as finished.
    pub(super) fn begin_with(
        partial: &Path,
        provenance: &Provenance,
        done: impl Iterator<Item = Line>,
    ) -> Result<Self, CapturesError> {
        let path = partial.join(NAME);
        let unwritten = |error: serde_json::Error| failed("writing", &path)(error.into());
        let mut draft = Draft::create(partial.join("journal.new"))?;
        let mut text = serde_json::to_vec(provenance).map_err(unwritten)?;
        text.push(b'\n');
        for line in done {
            text.extend(serde_json::to_vec(&line).map_err(unwritten)?);
            text.push(b'\n');
        }
        draft.write(&text)?;
        draft.place(&path, 0o644)?;
        Self::open(path)
    }

    /// Removes the first incomplete or unreadable line, and everything after it.
    pub(super) fn resume(partial: &Path, earlier: &Earlier) -> Result<Self, CapturesError> {
        let journal = Self::open(partial.join(NAME))?;
        journal.file.set_len(earlier.complete).map_err(failed("truncating", &journal.path))?;
        Ok(journal)
    }

    fn open(path: PathBuf) -> Result<Self, CapturesError> {
        let file = File::options()
            .append(true)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
            .map_err(failed("opening", &path))?;
        Ok(Self { path, file })
    }

    pub(super) fn add(&mut self, line: &Line) -> Result<(), CapturesError> {
        let written = serde_json::to_vec(line).map_err(std::io::Error::from).and_then(|mut text| {
            text.push(b'\n');
            self.file.write_all(&text)?;
            self.file.sync_data()
        });
        written.map_err(failed("writing", &self.path))
    }
}

/// Removes everything except the journal. The other files are drafts that an interrupted command has left.
pub(super) fn remove_drafts(partial: &Path) -> Result<(), CapturesError> {
    for entry in fs::read_dir(partial).map_err(failed("listing", partial))?.flatten() {
        if entry.file_name() != NAME {
            fs::remove_file(entry.path()).map_err(failed("removing", &entry.path()))?;
        }
    }
    Ok(())
}
