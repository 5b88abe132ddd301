//! Decides which bytes of a `.pt` file are stored as blobs, and which stay in the manifest.

use std::path::Path;

use opt_shared::capture::store::{MAX_BLOBS, MAX_LITERAL_BYTES};
use opt_shared::capture::{CaptureFile, ErrorKind, RecordRange};

use super::CapturesError;

pub(super) struct Layout {
    /// The ranges that become blobs, in file order. The bytes between them become literals in the manifest.
    pub(super) blobs: Vec<RecordRange>,
    /// Why the whole file is a single blob. `None` if it is not.
    pub(super) kept_whole: Option<String>,
}

/// Decides the layout of a file. A file that is not a capture becomes a single blob, because `unpack` must restore
/// every file.
pub(super) fn of_file(path: &Path, bytes: u64) -> Result<Layout, CapturesError> {
    match CaptureFile::open(path) {
        Ok(capture) if capture.is_packed() => {
            let what = "it is an entry of a capture store (unpack that store first)".to_owned();
            Err(CapturesError::Damaged { path: path.to_owned(), what })
        }
        Ok(capture) => Ok(of_records(capture.records(), bytes)),
        Err(error) if error.kind == ErrorKind::Io => Err(error.into()),
        Err(error) => Ok(whole(bytes, format!("{}: {}", error.kind, error.detail))),
    }
}

fn whole(bytes: u64, why: String) -> Layout {
    let blobs = if bytes == 0 { Vec::new() } else { vec![RecordRange { offset: 0, bytes, crc32: None }] };
    Layout { blobs, kept_whole: Some(why) }
}

fn of_records(records: &[RecordRange], file_bytes: u64) -> Layout {
    let mut blobs = records.to_vec();
    // If there are too many records, the smallest ones stay in the manifest.
    blobs.sort_by_key(|record| (std::cmp::Reverse(record.bytes), record.offset));
    blobs.truncate(MAX_BLOBS);
    blobs.sort_unstable();
    let mut end = 0;
    for record in &blobs {
        if record.offset < end {
            return whole(file_bytes, "its storages overlap".to_owned());
        }
        end = record.offset.saturating_add(record.bytes);
    }
    let in_blobs = blobs.iter().fold(0u64, |sum, record| sum.saturating_add(record.bytes));
    if file_bytes < end {
        return whole(file_bytes, "a storage extends beyond the end of the file".to_owned());
    }
    if MAX_LITERAL_BYTES < file_bytes - in_blobs {
        return whole(file_bytes, "too much of it is not tensor data".to_owned());
    }
    Layout { blobs, kept_whole: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(offset: u64, bytes: u64) -> RecordRange {
        RecordRange { offset, bytes, crc32: None }
    }

    #[test]
    fn smallest_storages_stay_in_the_manifest() {
        let records: Vec<RecordRange> =
            (0..300).map(|at| record(64 + at * 1000, if at % 3 == 0 { 8 } else { 800 })).collect();
        let layout = of_records(&records, 400_000);
        assert!(layout.kept_whole.is_none());
        assert_eq!(layout.blobs.len(), MAX_BLOBS);
        assert!(layout.blobs.iter().all(|record| record.bytes == 800) && layout.blobs.is_sorted());
    }

    #[test]
    fn file_that_cannot_be_split_becomes_one_blob() {
        for (records, bytes) in [
            (vec![record(0, 10), record(5, 10)], 100),
            (vec![record(0, 200)], 100),
            (vec![record(0, 10)], MAX_LITERAL_BYTES + 11),
        ] {
            let layout = of_records(&records, bytes);
            assert!(layout.kept_whole.is_some());
            assert_eq!(layout.blobs, [record(0, bytes)]);
        }
        assert!(of_records(&[record(0, 10)], MAX_LITERAL_BYTES + 10).kept_whole.is_none());
        assert!(whole(0, String::new()).blobs.is_empty());
    }
}
