//! Why a capture could not be read: one closed set of kinds, and what was found where.
//!
//! Parsers below know bytes and no path: they return a `Fault`, and `CaptureFile` adds the path.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

/// What is wrong with a file. The names are a contract: tests and reports use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The operating system refused, or it is no regular file.
    Io,
    /// Neither a zip nor torch's old format.
    BadMagic,
    Truncated,
    CorruptZip,
    CrcMismatch,
    MissingRecord,
    BadPickle,
    /// The pickle names something that is not on the list of what a capture may hold.
    UnsafeGlobal,
    /// Understood, but no dense little-endian tensor.
    Unsupported,
    UnsupportedCompression,
    /// A view leaves its storage, or a storage its record.
    OutOfBounds,
    Limit,
    /// The capture lies in a store, and a blob of it is not there.
    MissingBlob,
    /// The store that the capture lies in is damaged.
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

/// A capture that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("capture {}: {detail}", path.display())]
pub struct CaptureError {
    pub path: PathBuf,
    pub kind: ErrorKind,
    /// What was attempted and what was found. Text out of the file is quoted and cut short.
    pub detail: String,
    #[source]
    pub source: Option<Cause>,
}

/// A `CaptureError` that does not know its file yet.
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

    /// A read that failed: the file got shorter than it was, or the system refused.
    pub(super) fn read(what: &str, source: std::io::Error) -> Self {
        let (kind, detail) = if source.kind() == std::io::ErrorKind::UnexpectedEof {
            (ErrorKind::Truncated, format!("the file ends inside {what}"))
        } else {
            (ErrorKind::Io, format!("could not read {what}"))
        };
        Self::new(kind, detail).because(source)
    }

    pub(super) fn bad_pickle(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadPickle, detail)
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

/// Text out of a file, fit for a message: quoted, without control characters, cut short.
pub(super) fn quoted(text: &str) -> String {
    const SHOWN_CHARACTERS: usize = 100;
    let mut shown: String = text.chars().take(SHOWN_CHARACTERS).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARACTERS).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}
