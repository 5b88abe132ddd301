//! Defines the errors of the capture reader: a fixed set of kinds, each error with details.
//!
//! Parsers get only bytes and therefore return a `Fault`, to which `CaptureFile` adds the path.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

/// The kind of error. Tests and reports rely on these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The operating system reported an error, or the path is not a regular file.
    Io,
    /// The file is neither a zip nor in torch's old format.
    BadMagic,
    Truncated,
    CorruptZip,
    CrcMismatch,
    MissingRecord,
    BadPickle,
    /// The pickle names something that a capture must not contain.
    UnsafeGlobal,
    /// The contents may be valid, but this reader does not support them: for example, a tensor that is not dense, a
    /// big-endian file, or an encrypted record.
    Unsupported,
    UnsupportedCompression,
    /// A view extends beyond its storage, or a storage extends beyond its record.
    OutOfBounds,
    Limit,
    /// The capture is in a store, and one of its blobs is missing.
    MissingBlob,
    /// The capture is in a store that is damaged.
    CorruptStore,
}

impl ErrorKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Io => "io",
            Self::BadMagic => "bad_magic",
            Self::Truncated => "truncated",
            Self::CorruptZip => "corrupt_zip",
            Self::CrcMismatch => "crc_mismatch",
            Self::MissingRecord => "missing_record",
            Self::BadPickle => "bad_pickle",
            Self::UnsafeGlobal => "unsafe_global",
            Self::Unsupported => "unsupported",
            Self::UnsupportedCompression => "unsupported_compression",
            Self::OutOfBounds => "out_of_bounds",
            Self::Limit => "limit",
            Self::MissingBlob => "missing_blob",
            Self::CorruptStore => "corrupt_store",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

type Cause = Box<dyn Error + Send + Sync>;

/// A capture that could not be read, with its path.
#[derive(Debug, thiserror::Error)]
#[error("capture {}: {detail}", path.display())]
pub struct CaptureError {
    pub path: PathBuf,
    pub kind: ErrorKind,
    /// Says what was attempted and what was found. Text from the file is quoted and shortened.
    pub detail: String,
    #[source]
    pub source: Option<Cause>,
}

/// A `CaptureError` without its path.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) kind: ErrorKind,
    pub(super) detail: String,
    source: Option<Cause>,
}

impl Fault {
    pub(super) fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), source: None }
    }

    pub(super) fn because(mut self, source: impl Into<Cause>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// A failed read: either the file ends too early, or the system reported an error.
    pub(super) fn read(what: &str, source: std::io::Error) -> Self {
        let (kind, detail) = if source.kind() == std::io::ErrorKind::UnexpectedEof {
            (ErrorKind::Truncated, format!("the file ends inside {what}"))
        } else {
            (ErrorKind::Io, format!("could not read {what}"))
        };
        Self::new(kind, detail).because(source)
    }

    pub(super) fn bad_pickle(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadPickle, format!("its pickle is malformed: {}", detail.into()))
    }

    pub(super) fn unsupported(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, detail)
    }

    pub(super) fn limit(what: &str, limit: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Limit, format!("{what} (the limit is {limit})"))
    }

    pub(super) fn at(self, path: &Path) -> CaptureError {
        CaptureError { path: path.to_owned(), kind: self.kind, detail: self.detail, source: self.source }
    }
}

/// Prepares text from a file for a message: quotes it, escapes special characters, and shortens it.
pub(super) fn quoted(text: &str) -> String {
    const SHOWN_CHARACTERS: usize = 100;
    let mut shown: String = text.chars().take(SHOWN_CHARACTERS).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARACTERS).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}
