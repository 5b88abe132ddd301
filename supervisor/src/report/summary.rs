//! Writes `summary.json`. The file is always complete: if the process is killed at any time, a reader sees either the
//! previous document or the new one.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

pub const FILE_NAME: &str = "summary.json";

/// The name of the document while it is being written. The name is fixed, so that a file that a killed process has left
/// is overwritten by the next write and removed by the next start.
pub const TEMPORARY_NAME: &str = ".summary.json.new";

#[derive(Debug, thiserror::Error)]
pub enum SummaryError {
    #[error("{path}: could not {operation} the summary (is the disk full, or the folder read-only?)")]
    Io {
        path: PathBuf,
        operation: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("{path}: could not compose the summary")]
    Compose {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

/// Replaces the summary in a run's folder: writes it to a temporary file, syncs the file and renames it. `document` is
/// a [`RunRecord`](crate::record::RunRecord), or something that is serialised like one.
pub fn write_summary<Document: Serialize>(folder: &Path, document: &Document) -> Result<(), SummaryError> {
    let temporary = folder.join(TEMPORARY_NAME);
    let fail = |operation| {
        let path = temporary.clone();
        move |source| SummaryError::Io { path, operation, source }
    };
    let file = File::create(&temporary).map_err(fail("open"))?;
    let mut writer = BufWriter::new(file);
    serde_json::to_writer_pretty(&mut writer, document).map_err(|source| {
        if source.is_io() {
            fail("write")(source.into())
        } else {
            SummaryError::Compose { path: temporary.clone(), source }
        }
    })?;
    writer.write_all(b"\n").map_err(fail("write"))?;
    let file = writer.into_inner().map_err(|error| fail("write")(error.into_error()))?;
    file.sync_all().map_err(fail("sync"))?;
    std::fs::rename(&temporary, folder.join(FILE_NAME)).map_err(fail("put in place"))?;
    // The new name is safely on disk only when the folder has been synced.
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(fail("sync the folder of"))
}

/// Removes the temporary file of a [`write_summary`] that was killed. Returns true if there was one.
pub fn clear_leftover(folder: &Path) -> Result<bool, SummaryError> {
    let path = folder.join(TEMPORARY_NAME);
    match std::fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(SummaryError::Io { path, operation: "remove a partial copy of", source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RunRecord;
    use crate::record::sample::sample;

    #[test]
    fn summary_reads_back_and_leaves_no_other_file() {
        let folder = tempfile::tempdir().expect("folder");
        let run = sample();
        std::fs::write(folder.path().join(TEMPORARY_NAME), "an incomplete document")
            .expect("the leftover is written");
        write_summary(folder.path(), &run).expect("writes");
        let text = std::fs::read_to_string(folder.path().join(FILE_NAME)).expect("reads");
        let back: RunRecord = serde_json::from_str(&text).expect("is the document");
        assert_eq!(back, run);
        assert!(text.ends_with("}\n"));
        assert_eq!(std::fs::read_dir(folder.path()).expect("lists").count(), 1);
    }

    #[test]
    fn failed_write_keeps_the_previous_document() {
        struct Broken;
        impl Serialize for Broken {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::{Error as _, SerializeSeq as _};
                let mut list = serializer.serialize_seq(None)?;
                list.serialize_element(&"x".repeat(1 << 16))?;
                Err(S::Error::custom("the store went away"))
            }
        }
        let folder = tempfile::tempdir().expect("folder");
        write_summary(folder.path(), &"former").expect("writes");
        let error = write_summary(folder.path(), &Broken).expect_err("fails");
        assert!(matches!(error, SummaryError::Compose { .. }), "{error}");
        let text = std::fs::read_to_string(folder.path().join(FILE_NAME)).expect("reads");
        assert_eq!(text, "\"former\"\n");
        assert!(clear_leftover(folder.path()).expect("clears"));
        assert!(!clear_leftover(folder.path()).expect("clears"));
    }

    #[test]
    fn error_names_a_missing_folder() {
        let error = write_summary(Path::new("/nonexistent/run"), &1).expect_err("fails");
        assert!(error.to_string().contains("/nonexistent/run"), "{error}");
    }
}
