//! Reads and writes the run's database, `RUN_DIR/run.sqlite`, which is the authoritative record of a run.
//!
//! This module defines what is written, when it is safe on disk, and how it is read back. It makes no decisions. The
//! driver reports what happened, computes scores, and locks the run folder against a second run.
//!
//! There are two kinds of writes. *Synced* writes are on disk when the call returns. Examples are the end of a
//! candidate, and the reason for a kill, which is written before the signal is sent. *Ordered* writes survive `kill -9`
//! of every process, and reach the disk with the next synced write. Examples are starts, ends of stages, samples and
//! policy rows. A resumed run may write rows again that exist already. Only policy rows, samples and phases of replays
//! may not be written again, because they would be added twice.

mod block;
mod bound;
mod error;
mod filesystem;
mod load;
mod lookup;
mod processes;
mod replays;
mod resume;
mod rows;
mod samples;
mod schema;
mod stream;
mod write;

use std::collections::HashMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use opt_shared::ids::{CandidateId, JobId};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

pub use error::StoreError;
pub use filesystem::Journal;
pub use load::{Document, Order};
pub use replays::{ReplayEnd, ReplayRow, ReplayStart};
pub use resume::{Abandoned, Counters, StoredAttempt, StoredCandidate, StoredJob};
pub use rows::{
    AttemptEnd, AttemptKey, AttemptRow, CandidateEnd, CandidateRow, DevicePhase, JobEnd, JobRow, PhaseRow,
    ProcessKind, ReplayPhaseRow, RunRow, ScoreRow, WorkerEnd, WorkerRow,
};
pub use samples::MAX_POINTS;
pub use stream::JobKey;

pub const FILE_NAME: &str = "run.sqlite";

/// The timeout of a write while another process locks the file. With the write-ahead log, a reader (such as `report`)
/// does so for milliseconds at most.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// The size of SQLite's page cache, in KiB. It counts towards the supervisor's memory, whose target is at most 20 MiB.
const CACHE_KIB: i32 = 512;
/// The number of frames (at most 4 MiB) after which the write-ahead log is copied into the database.
const CHECKPOINT_PAGES: i32 = 1000;
/// The number of prepared statements that are cached. The store has fewer statements than that.
const STATEMENTS: usize = 64;

/// An open run database.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
    durability: Option<Durability>,
    notes: Vec<String>,
    jobs: HashMap<JobId, i64>,
    /// The database key of each recorded candidate, by candidate id.
    candidates: Vec<Option<NonZero<i64>>>,
}

/// When a write reaches the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durability {
    Ordered,
    Synced,
}

impl Store {
    /// Creates a database in a folder that has none.
    pub fn create(folder: &Path) -> Result<Self, StoreError> {
        let (journal, note) = filesystem::journal_for(folder);
        Self::create_with(folder, journal, note)
    }

    fn create_with(folder: &Path, journal: Journal, note: Option<String>) -> Result<Self, StoreError> {
        const OPERATION: &str = "create the run database";
        let path = folder.join(FILE_NAME);
        if let Some(error) = std::fs::OpenOptions::new().write(true).create_new(true).open(&path).err() {
            return Err(match error.kind() {
                // A run that was killed before it made its tables leaves an empty file.
                std::io::ErrorKind::AlreadyExists if is_empty(&path) => {
                    return Self::create_tables(path, journal, note);
                }
                std::io::ErrorKind::AlreadyExists => StoreError::Exists { path },
                _ => StoreError::Io { path, operation: OPERATION, source: error },
            });
        }
        Self::create_tables(path, journal, note)
    }

    fn create_tables(path: PathBuf, journal: Journal, note: Option<String>) -> Result<Self, StoreError> {
        const OPERATION: &str = "create the tables of the run database";
        let mut store = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, journal, note)?;
        store.synced(OPERATION, |transaction| {
            transaction.execute_batch(schema::TABLES)?;
            transaction.pragma_update(None, "application_id", schema::APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", schema::VERSION)
        })?;
        Ok(store)
    }

    /// Opens the database of an earlier run to continue it. Its pages are checked first.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let (journal, note) = filesystem::journal_for(folder);
        let path = existing(folder)?;
        let store = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, journal, note)?;
        store.check_schema()?;
        store.check_pages()?;
        Ok(store)
    }

    /// Opens the database like `open`. If the run was killed before it could create the database or its tables, creates
    /// them.
    pub fn resume(folder: &Path) -> Result<Self, StoreError> {
        match Self::open(folder) {
            Err(StoreError::Missing { .. }) => Self::create(folder),
            Err(StoreError::Empty { path }) => {
                let (journal, note) = filesystem::journal_for(folder);
                Self::create_tables(path, journal, note)
            }
            result => result,
        }
    }

    /// Opens the database of a run for reading. The run may be in progress.
    pub fn read(folder: &Path) -> Result<Self, StoreError> {
        let path = existing(folder)?;
        // The connection is not read-only, because even a reader uses the shared memory of the write-ahead log, and
        // recovers the database after a kill.
        let shared = Self::read_with(&path, &path, OpenFlags::SQLITE_OPEN_READ_WRITE);
        let is_refused = match &shared {
            Err(StoreError::Sqlite { source, .. }) => matches!(
                source.sqlite_error_code(),
                Some(rusqlite::ErrorCode::ReadOnly | rusqlite::ErrorCode::CannotOpen)
            ),
            Err(StoreError::Full { .. }) => true,
            _ => false,
        };
        let has_changes = |suffix| beside(&path, suffix).metadata().is_ok_and(|log| log.len() != 0);
        if !is_refused || has_changes(LOG) || has_changes(JOURNAL) {
            return shared;
        }
        // The folder cannot be written to, so there can be no shared memory. This does no harm, because there is no log
        // and no journal with changes that a reader could miss.
        let Some(uri) = immutable_uri(&path) else { return shared };
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
        Self::read_with(&path, &uri, flags).or(shared)
    }

    /// Opens the database for reading. `name` is the name under which SQLite opens the file.
    fn read_with(path: &Path, name: &Path, flags: OpenFlags) -> Result<Self, StoreError> {
        let fail = |source| StoreError::sqlite(path, "open the run database for reading", source);
        let connection = open(name, flags).map_err(fail)?;
        connection.pragma_update(None, "query_only", true).map_err(fail)?;
        let store = Self::configured(connection, path.to_owned(), Vec::new())?;
        store.check_schema()?;
        Ok(store)
    }

    /// Sets the timeout of a write while other processes lock the file.
    pub fn wait_for_others(&self, timeout: Duration) -> Result<(), StoreError> {
        let fail = |source| StoreError::sqlite(&self.path, "set up the run database", source);
        self.connection.busy_timeout(timeout).map_err(fail)
    }

    /// Returns remarks for the user about the journal mode of the database.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn connect(
        path: PathBuf,
        flags: OpenFlags,
        journal: Journal,
        note: Option<String>,
    ) -> Result<Self, StoreError> {
        const OPERATION: &str = "open the run database";
        let fail = |source| StoreError::sqlite(&path, OPERATION, source);
        let connection = open(&path, flags).map_err(fail)?;
        let mut notes: Vec<String> = note.into_iter().collect();
        let reached: String = connection
            .pragma_update_and_check(None, "journal_mode", journal.pragma(), |row| row.get(0))
            .map_err(fail)?;
        if reached != journal.pragma() {
            notes.push(format!(
                "the run database is kept with journal mode `{reached}`: `{}` was refused",
                journal.pragma()
            ));
        }
        connection.pragma_update(None, "foreign_keys", true).map_err(fail)?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES).map_err(fail)?;
        Self::configured(connection, path, notes)
    }

    fn configured(connection: Connection, path: PathBuf, notes: Vec<String>) -> Result<Self, StoreError> {
        let fail = |source| StoreError::sqlite(&path, "set up the run database", source);
        connection.busy_timeout(BUSY_TIMEOUT).map_err(fail)?;
        connection.pragma_update(None, "cache_size", -CACHE_KIB).map_err(fail)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        // Without this, SQLite compiles a statement again for each new value of a parameter that could change its plan.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(fail)?;
        Ok(Self { connection, path, durability: None, notes, jobs: HashMap::new(), candidates: Vec::new() })
    }

    fn check_schema(&self) -> Result<(), StoreError> {
        let number = |pragma| {
            self.connection
                .pragma_query_value(None, pragma, |row| row.get::<_, i64>(0))
                .map_err(|source| StoreError::sqlite(&self.path, "read the schema version", source))
        };
        let path = || self.path.clone();
        match (number("application_id")?, number("user_version")?) {
            (schema::APPLICATION_ID, schema::VERSION) => Ok(()),
            (schema::APPLICATION_ID, found) => {
                Err(StoreError::Version { path: path(), found, expected: schema::VERSION })
            }
            (0, 0) if number("schema_version")? == 0 => Err(StoreError::Empty { path: path() }),
            _ => Err(StoreError::Foreign { path: path() }),
        }
    }

    fn check_pages(&self) -> Result<(), StoreError> {
        const OPERATION: &str = "check the run database";
        let answer: String = self
            .connection
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(|source| StoreError::sqlite(&self.path, OPERATION, source))?;
        if answer == "ok" {
            return Ok(());
        }
        Err(StoreError::Corrupt { path: self.path.clone(), operation: OPERATION, what: answer })
    }

    /// Runs a transaction that is on disk when this returns.
    fn synced<T>(
        &mut self,
        operation: &'static str,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.transaction(Durability::Synced, operation, work)
    }

    /// Runs a transaction that survives the death of every process, but may not be on disk yet when this returns.
    fn ordered<T>(
        &mut self,
        operation: &'static str,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.transaction(Durability::Ordered, operation, work)
    }

    fn transaction<T>(
        &mut self,
        durability: Durability,
        operation: &'static str,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let Self { connection, path, durability: current, .. } = self;
        let run = || {
            if *current != Some(durability) {
                let word = match durability {
                    Durability::Ordered => "NORMAL",
                    Durability::Synced => "FULL",
                };
                connection.pragma_update(None, "synchronous", word)?;
                *current = Some(durability);
            }
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = work(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        run().map_err(|source| StoreError::sqlite(path, operation, source))
    }

    fn job_key(&self, job: JobId, operation: &'static str) -> Result<i64, StoreError> {
        self.jobs.get(&job).copied().ok_or_else(|| self.unrecorded(operation, job.to_string()))
    }

    fn candidate_key(&self, candidate: CandidateId, operation: &'static str) -> Result<i64, StoreError> {
        let key = self.candidates.get(candidate.index()).copied().flatten();
        key.map(NonZero::get).ok_or_else(|| self.unrecorded(operation, candidate.to_string()))
    }

    fn unrecorded(&self, operation: &'static str, what: String) -> StoreError {
        StoreError::Unrecorded { path: self.path.clone(), operation, what }
    }
}

fn open(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
}

/// The suffixes of two files beside the database: the write-ahead log, and the journal that replaces it where the log
/// cannot be used.
const LOG: &str = "-wal";
const JOURNAL: &str = "-journal";

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns the file's name as a URI that makes SQLite assume that nothing changes the file. `None` if the name cannot
/// be written as a URI.
fn immutable_uri(path: &Path) -> Option<PathBuf> {
    let path = std::fs::canonicalize(path).ok()?;
    let escaped: String = path.to_str()?.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    Some(format!("file:{escaped}?immutable=1").into())
}

fn existing(folder: &Path) -> Result<PathBuf, StoreError> {
    let path = folder.join(FILE_NAME);
    match std::fs::metadata(&path) {
        Ok(file) if file.len() == 0 && is_empty(&path) => Err(StoreError::Empty { path }),
        Ok(_) => Ok(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(StoreError::Missing { path }),
        Err(source) => Err(StoreError::Io { path, operation: "open the run database", source }),
    }
}

/// Returns whether both the file and its write-ahead log are empty. Both are checked, because tables that were just
/// created may exist only in the log.
fn is_empty(path: &Path) -> bool {
    let length = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    length(path) == 0 && length(&beside(path, LOG)) == 0
}

#[cfg(test)]
mod tests;
