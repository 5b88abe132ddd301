//! Defines the errors of the store. Each names the file and, if that helps, the operation and what to do.

use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// SQLite's extended error code `SQLITE_IOERR_SHMSIZE`, which means that the index of the write-ahead log could not
/// grow.
const SHARED_MEMORY_SIZE: i32 = 4874;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "{path}: a run database already exists (continue it with --resume, or choose another folder with --dir)"
    )]
    Exists { path: PathBuf },
    #[error("{path}: there is no run database (was this folder made by `opt-supervisor run`?)")]
    Missing { path: PathBuf },
    #[error(
        "{path}: could not {operation} (check that the folder can be written and is not a dangling link)"
    )]
    Io {
        path: PathBuf,
        operation: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("{path}: an SQLite database, but not one of a run (choose another folder)")]
    Foreign { path: PathBuf },
    #[error(
        "{path}: empty, because the run was interrupted before it recorded anything, or has just begun (if no run is \
         using the folder, delete it and start the run again)"
    )]
    Empty { path: PathBuf },
    #[error(
        "{path}: written with schema {found}, but this program reads schema {expected} (read it with the version of \
         opt-supervisor that wrote it, or start a new run)"
    )]
    Version { path: PathBuf, found: i64, expected: i64 },
    #[error(
        "{path}: damaged, could not {operation}: {what} (summary.json beside it, if there is one, is the \
         last complete state; keep the folder for its contents and start a new run with --dir)"
    )]
    Corrupt { path: PathBuf, operation: &'static str, what: String },
    #[error("{path}: in use by another process, could not {operation} (end the other run, or wait for it)")]
    Busy {
        path: PathBuf,
        operation: &'static str,
        #[source]
        source: rusqlite::Error,
    },
    #[error("{path}: no space left, could not {operation} (free disk space, then continue with --resume)")]
    Full {
        path: PathBuf,
        operation: &'static str,
        #[source]
        source: rusqlite::Error,
    },
    #[error("{path}: could not {operation}")]
    Sqlite {
        path: PathBuf,
        operation: &'static str,
        #[source]
        source: rusqlite::Error,
    },
    #[error("{path}: could not {operation}: {what} was never recorded (this is a bug in opt-supervisor)")]
    Unrecorded { path: PathBuf, operation: &'static str, what: String },
    #[error(
        "{path}: could not {operation}: {what} has {length} bytes, but at most {limit} are allowed (shorten it)"
    )]
    TooLong { path: PathBuf, operation: &'static str, what: &'static str, length: usize, limit: usize },
    #[error("{path}: could not {operation}: a value has no JSON form (this is a bug in opt-supervisor)")]
    Json {
        path: PathBuf,
        operation: &'static str,
        #[source]
        source: serde_json::Error,
    },
}

impl StoreError {
    /// Returns whether a retry may succeed: another process locks the file, the disk is full, or no file descriptor is
    /// left.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::Full { .. } => true,
            Self::Sqlite { source, .. } => source.sqlite_error_code() == Some(ErrorCode::CannotOpen),
            _ => false,
        }
    }

    /// Converts an error of SQLite. Errors that a user can act on have their own variants.
    pub(super) fn sqlite(path: &Path, operation: &'static str, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Corrupt { path, operation, what: source.to_string() }
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                Self::Busy { path, operation, source }
            }
            Some(ErrorCode::DiskFull) => Self::Full { path, operation, source },
            // The disk has no space for the index of the write-ahead log.
            Some(ErrorCode::SystemIoFailure) if extended_code_of(&source) == Some(SHARED_MEMORY_SIZE) => {
                Self::Full { path, operation, source }
            }
            _ => match source {
                rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::IntegralValueOutOfRange(..) => {
                    Self::Corrupt { path, operation, what: source.to_string() }
                }
                source => Self::Sqlite { path, operation, source },
            },
        }
    }
}

fn extended_code_of(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}
