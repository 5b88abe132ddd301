//! Reads the database of a run as the document that `record` defines: as a whole into memory, or row by row.

use opt_shared::causes::chain;
use opt_shared::device::{Device, DeviceKind};
use opt_shared::ids::WorkerId;
use opt_shared::language::Tier;
use opt_shared::message::{Report, Role};
use opt_shared::outcome::{Blame, Status};
use opt_shared::units::Bytes;
use rusqlite::types::Type;
use rusqlite::{OptionalExtension as _, Params, Row, Transaction};
use serde::de::DeserializeOwned;
use serde::ser::{Error as _, SerializeSeq as _};
use serde::{Serialize, Serializer};

use super::write::{META_HOST, META_MEMORY};
use super::{Store, StoreError};
use crate::record::{
    AttemptRecord, CandidateRecord, CandidateTimes, CapturesForm, CapturesRecord, HostRecord, JobRecord,
    JobStatus, MemoryRecord, MemoryTotals, PhaseRecord, PolicyRecord, Ranking, RunInfo, RunRecord, RunStatus,
    SCHEMA, SourceRecord, Stage, UtcTime, WorkerRecord,
};

const LOAD: &str = "load the run";

/// The SQL that selects candidates. The caller appends the condition and the order.
macro_rules! candidates {
    () => {
        "SELECT key, name, source_path, other_paths, source_digest, status, blame, failed_stage, detail, feedback,
             rank, speedup, times, tier, not_timed_because
         FROM candidate "
    };
}

/// The order in which candidates are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Plan,
    /// By rank. Candidates without a rank come last, in the plan's order.
    Rank,
}

/// The document of a run. It is serialised directly from the store, with one candidate in memory at a time, and shows
/// the store as it was when the document was created.
#[derive(Debug)]
pub struct Document<'store> {
    pub(super) store: &'store Store,
    _snapshot: Transaction<'store>,
}

impl Store {
    pub fn document(&self) -> Result<Document<'_>, StoreError> {
        let snapshot = self.connection.unchecked_transaction().map_err(|source| self.failed(source))?;
        // The snapshot is taken at the transaction's first read.
        snapshot
            .query_row("SELECT count(*) FROM run", [], |row| row.get::<_, i64>(0))
            .map_err(|source| self.failed(source))?;
        Ok(Document { store: self, _snapshot: snapshot })
    }

    /// Loads the whole document into memory.
    pub fn load(&self) -> Result<RunRecord, StoreError> {
        let document = self.document()?;
        let mut jobs = Vec::new();
        for (key, job) in document.store.job_heads()? {
            let mut candidates = Vec::new();
            infallible(self.each_candidate(key, Order::Plan, |candidate| keep(&mut candidates, candidate))?);
            jobs.push(job.with_candidates(candidates));
        }
        let (mut workers, mut phases, mut policy) = (Vec::new(), Vec::new(), Vec::new());
        infallible(self.each_worker(|worker| keep(&mut workers, worker))?);
        infallible(self.each_phase(|phase| keep(&mut phases, phase))?);
        infallible(self.each_policy(|row| keep(&mut policy, row))?);
        Ok(RunRecord {
            schema: SCHEMA,
            run: self.run_info()?,
            host: self.host_record()?,
            jobs,
            workers,
            memory: MemoryRecord { totals: self.memory_totals()?, phases },
            replays: self.replays()?,
            policy,
        })
    }

    pub(super) fn failed(&self, source: rusqlite::Error) -> StoreError {
        StoreError::sqlite(&self.path, LOAD, source)
    }

    pub(super) fn meta_value(&self, key: &str) -> Result<Option<String>, StoreError> {
        self.connection
            .query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0))
            .optional()
            .map_err(|source| self.failed(source))
    }

    fn meta_json<T: DeserializeOwned + Default>(&self, key: &str) -> Result<T, StoreError> {
        let Some(text) = self.meta_value(key)? else { return Ok(T::default()) };
        serde_json::from_str(&text).map_err(|error| StoreError::Corrupt {
            path: self.path.clone(),
            operation: LOAD,
            what: format!("meta `{key}`: {error}"),
        })
    }

    pub(super) fn host_record(&self) -> Result<HostRecord, StoreError> {
        self.meta_json(META_HOST)
    }

    /// Returns the memory totals that have been recorded so far.
    pub fn memory_totals(&self) -> Result<MemoryTotals, StoreError> {
        self.meta_json(META_MEMORY)
    }

    pub(super) fn run_info(&self) -> Result<RunInfo, StoreError> {
        self.connection
            .query_row(
                "SELECT name, status, started, finished, version, device, exit_code,
                     (SELECT value FROM meta WHERE key = 'command'),
                     (SELECT count(*) FROM candidate WHERE status = ?1) FROM run",
                [Status::InfraError.name()],
                |row| {
                    Ok(RunInfo {
                        name: row.get(0)?,
                        status: word(row, 1, RunStatus::from_name)?,
                        started: word(row, 2, time)?,
                        finished: word_option(row, 3, time)?,
                        version: row.get(4)?,
                        device_kind: kind_of(&row.get::<_, String>(5)?),
                        device: row.get(5)?,
                        exit_code: row.get(6)?,
                        command: row.get(7)?,
                        without_verdict: row.get(8)?,
                    })
                },
            )
            .optional()
            .map_err(|source| self.failed(source))?
            .ok_or_else(|| StoreError::Empty { path: self.path.clone() })
    }

    /// Returns the jobs in the plan's order, without their candidates.
    pub(super) fn job_heads(&self) -> Result<Vec<(i64, JobRecord<()>)>, StoreError> {
        let mut jobs = Vec::new();
        infallible(self.each(
            "SELECT key, name, status, detail, baseline, winner, signature_digest, entries, bytes, unique_bytes,
                 captures_digest, captures_form, ranking, unsettled_because, winner_confirmed FROM job ORDER BY place, key",
            [],
            |row| {
                let head = JobRecord {
                    name: row.get(1)?,
                    status: word(row, 2, JobStatus::from_name)?,
                    detail: row.get(3)?,
                    baseline: row.get(4)?,
                    winner: row.get(5)?,
                    ranking: row.get::<_, Option<String>>(12)?.as_deref().and_then(Ranking::from_name),
                    unsettled_because: row.get(13)?,
                    winner_confirmed: row.get(14)?,
                    signature_digest: row.get(6)?,
                    captures: CapturesRecord {
                        entries: count(row, 7)?,
                        bytes: bytes(row, 8)?,
                        unique_bytes: bytes(row, 9)?,
                        digest: row.get(10)?,
                        form: row.get::<_, Option<String>>(11)?.as_deref().and_then(CapturesForm::from_name),
                    },
                    candidates: (),
                };
                Ok((row.get(0)?, head))
            },
            |job| keep(&mut jobs, job),
        )?);
        Ok(jobs)
    }

    pub(super) fn each_candidate<E>(
        &self,
        job: i64,
        order: Order,
        visit: impl FnMut(CandidateRecord) -> Result<(), E>,
    ) -> Result<Result<(), E>, StoreError> {
        let sql = match order {
            Order::Plan => concat!(candidates!(), "WHERE job = ?1 ORDER BY place, key"),
            Order::Rank => concat!(candidates!(), "WHERE job = ?1 ORDER BY rank IS NULL, rank, place, key"),
        };
        self.each(sql, [job], |row| self.candidate_record(row), visit)
    }

    pub(super) fn one_candidate<E>(
        &self,
        key: i64,
        visit: impl FnMut(CandidateRecord) -> Result<(), E>,
    ) -> Result<Result<(), E>, StoreError> {
        let sql = concat!(candidates!(), "WHERE key = ?1");
        self.each(sql, [key], |row| self.candidate_record(row), visit)
    }

    fn candidate_record(&self, row: &Row<'_>) -> rusqlite::Result<CandidateRecord> {
        let key: i64 = row.get(0)?;
        let source = SourceRecord { path: row.get(2)?, other_paths: json(row, 3)?, digest: row.get(4)? };
        let mut candidate = CandidateRecord::new(row.get(1)?, source);
        let mut reports = self.connection.prepare_cached(
            "SELECT report, stage, max(number) FROM attempt
             WHERE candidate = ?1 AND report IS NOT NULL AND NOT superseded
             GROUP BY stage
             ORDER BY CASE stage WHEN 'build' THEN 1 WHEN 'verify' THEN 2 WHEN 'screen' THEN 3 WHEN 'profile' THEN 4 ELSE 5 END",
        )?;
        let mut reports = reports.query([key])?;
        while let Some(report) = reports.next()? {
            candidate.absorb(word(report, 1, Stage::from_name)?, json::<Report>(report, 0)?);
        }
        candidate.status = word_option(row, 5, Status::from_name)?;
        candidate.blame = word_option(row, 6, blame)?;
        candidate.failed_stage = word_option(row, 7, Stage::from_name)?;
        candidate.detail = row.get(8)?;
        candidate.feedback = row.get(9)?;
        candidate.rank = row.get(10)?;
        candidate.speedup = json_option(row, 11)?;
        candidate.tier = word_option(row, 13, Tier::from_name)?;
        // Only a candidate that passed needs this reason. For any other, the status is the reason.
        candidate.not_timed_because =
            row.get::<_, Option<String>>(14)?.filter(|_| candidate.status == Some(Status::Passed));
        if let Some(profile) = &mut candidate.profile {
            profile.times = json_option::<CandidateTimes>(row, 12)?.unwrap_or_default();
        }
        let mut attempts = self.connection.prepare_cached(
            "SELECT stage, number, worker, status, started, ms, predicted FROM attempt WHERE candidate = ?1
             ORDER BY key",
        )?;
        let mut attempts = attempts.query([key])?;
        while let Some(attempt) = attempts.next()? {
            candidate.attempts.push(AttemptRecord {
                stage: word(attempt, 0, Stage::from_name)?,
                number: attempt.get(1)?,
                worker: attempt.get::<_, Option<u32>>(2)?.map(WorkerId),
                status: word_option(attempt, 3, Status::from_name)?,
                started: word(attempt, 4, time)?,
                ms: attempt.get(5)?,
            });
            let predicted = bytes(attempt, 6)?;
            candidate.resources.predicted_bytes = candidate.resources.predicted_bytes.max(predicted);
        }
        Ok(candidate)
    }

    pub(super) fn each_worker<E>(
        &self,
        visit: impl FnMut(WorkerRecord) -> Result<(), E>,
    ) -> Result<Result<(), E>, StoreError> {
        self.each(
            "SELECT id, role, pid, started, ready_ms, ended, end_class, recycled_because, leases, peak_owed,
                 peak_device
             FROM worker ORDER BY id",
            [],
            |row| {
                Ok(WorkerRecord {
                    id: WorkerId(row.get(0)?),
                    role: word(row, 1, role)?,
                    pid: row.get(2)?,
                    started: word(row, 3, time)?,
                    ready_ms: row.get(4)?,
                    ended: word_option(row, 5, time)?,
                    end_class: row.get(6)?,
                    recycled_because: row.get(7)?,
                    leases: row.get(8)?,
                    peak_owed_bytes: bytes(row, 9)?,
                    device_peak_bytes: bytes(row, 10)?,
                })
            },
            visit,
        )
    }

    pub(super) fn each_phase<E>(
        &self,
        mut visit: impl FnMut(PhaseRecord) -> Result<(), E>,
    ) -> Result<Result<(), E>, StoreError> {
        // Each of the two queries reads rows in the order of their keys. A single query over both tables would sort all
        // rows.
        for sql in [
            "SELECT it.stage, job.name, candidate.name, it.worker, it.predicted, it.peak_owed, it.started, it.ended,
                 it.peak_reclaimable, it.swap_delta, it.switch_us, it.predicted_device, it.peak_device
             FROM phase AS it CROSS JOIN candidate ON candidate.key = it.candidate
                 CROSS JOIN job ON job.key = candidate.job
             ORDER BY it.key",
            // Replays come after everything else.
            "SELECT 'replay', replay.name, NULL, it.worker, it.predicted, it.peak_owed, it.started, it.ended,
                 it.peak_reclaimable, it.swap_delta, it.switch_us, it.predicted_device, it.peak_device
             FROM replay_phase AS it CROSS JOIN replay ON replay.key = it.replay
             ORDER BY it.key",
        ] {
            if let Err(error) = self.each(sql, [], phase_record, &mut visit)? {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    pub(super) fn each_policy<E>(
        &self,
        visit: impl FnMut(PolicyRecord) -> Result<(), E>,
    ) -> Result<Result<(), E>, StoreError> {
        self.each(
            "SELECT t, decision, reason, numbers FROM policy ORDER BY key",
            [],
            |row| {
                Ok(PolicyRecord {
                    t: word(row, 0, time)?,
                    decision: row.get(1)?,
                    reason: row.get(2)?,
                    numbers: json(row, 3)?,
                })
            },
            visit,
        )
    }

    /// Passes every row to `visit`. If `visit` fails, the reading stops, and the error of `visit` becomes the inner
    /// result.
    pub(super) fn each<T, E>(
        &self,
        sql: &str,
        params: impl Params,
        convert: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
        mut visit: impl FnMut(T) -> Result<(), E>,
    ) -> Result<Result<(), E>, StoreError> {
        let mut statement = self.connection.prepare_cached(sql).map_err(|source| self.failed(source))?;
        let mut rows = statement.query(params).map_err(|source| self.failed(source))?;
        while let Some(row) = rows.next().map_err(|source| self.failed(source))? {
            let item = convert(row).map_err(|source| self.failed(source))?;
            if let Err(error) = visit(item) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }
}

fn phase_record(row: &Row<'_>) -> rusqlite::Result<PhaseRecord> {
    Ok(PhaseRecord {
        stage: word(row, 0, Stage::from_name)?,
        job: row.get(1)?,
        candidate: row.get(2)?,
        worker: WorkerId(row.get(3)?),
        predicted_bytes: bytes(row, 4)?,
        peak_owed_bytes: bytes(row, 5)?,
        started: word(row, 6, time)?,
        ended: word_option(row, 7, time)?,
        peak_reclaimable_bytes: bytes(row, 8)?,
        swap_delta_bytes: row.get(9)?,
        switch_us: row.get::<_, Option<i64>>(10)?.and_then(|it| u64::try_from(it).ok()),
        device_predicted_bytes: bytes(row, 11)?,
        device_peak_bytes: bytes(row, 12)?,
    })
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let store = self.store;
        let heads = store.job_heads().map_err(|error| S::Error::custom(chain(&error)))?;
        let head = || -> Result<_, StoreError> {
            Ok((store.run_info()?, store.host_record()?, store.memory_totals()?, store.replays()?))
        };
        let (run, host, totals, replays) = head().map_err(|error| S::Error::custom(chain(&error)))?;
        RunRecord {
            schema: SCHEMA,
            run,
            host,
            jobs: heads
                .into_iter()
                .map(|(key, job)| job.with_candidates(Rows { store, list: List::Candidates(key) }))
                .collect::<Vec<_>>(),
            workers: Rows { store, list: List::Workers },
            memory: MemoryRecord { totals, phases: Rows { store, list: List::Phases } },
            replays,
            policy: Rows { store, list: List::Policy },
        }
        .serialize(serializer)
    }
}

/// A list in the document. Its rows are read from the store while the document is written.
struct Rows<'store> {
    store: &'store Store,
    list: List,
}

enum List {
    /// The candidates of the job with this key.
    Candidates(i64),
    Workers,
    Phases,
    Policy,
}

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        let written = match self.list {
            List::Candidates(job) => {
                self.store.each_candidate(job, Order::Plan, |row| list.serialize_element(&row))
            }
            List::Workers => self.store.each_worker(|row| list.serialize_element(&row)),
            List::Phases => self.store.each_phase(|row| list.serialize_element(&row)),
            List::Policy => self.store.each_policy(|row| list.serialize_element(&row)),
        };
        written.map_err(|error| S::Error::custom(chain(&error)))??;
        list.end()
    }
}

fn keep<T>(list: &mut Vec<T>, item: T) -> Result<(), std::convert::Infallible> {
    list.push(item);
    Ok(())
}

/// Unwraps the result of a reading whose `visit` cannot fail.
pub(super) fn infallible(result: Result<(), std::convert::Infallible>) {
    match result {
        Ok(()) => {}
    }
}

/// Reads a column that contains one of a fixed set of words.
pub(super) fn word<T>(row: &Row<'_>, column: usize, read: impl Fn(&str) -> Option<T>) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    read(&text).ok_or_else(|| unknown(column, &text))
}

pub(super) fn word_option<T>(
    row: &Row<'_>,
    column: usize,
    read: impl Fn(&str) -> Option<T>,
) -> rusqlite::Result<Option<T>> {
    let text: Option<String> = row.get(column)?;
    text.map(|text| read(&text).ok_or_else(|| unknown(column, &text))).transpose()
}

fn unknown(column: usize, text: &str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, format!("unknown word `{text}`").into())
}

pub(super) fn json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    serde_json::from_str(text)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

pub(super) fn json_option<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<T>> {
    if row.get_ref(column)? == rusqlite::types::ValueRef::Null {
        return Ok(None);
    }
    json(row, column).map(Some)
}

pub(super) fn bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Bytes>> {
    Ok(count(row, column)?.map(Bytes::new))
}

fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<u64>> {
    let Some(number) = row.get::<_, Option<i64>>(column)? else { return Ok(None) };
    u64::try_from(number).map(Some).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, number))
}

pub(super) fn time(text: &str) -> Option<UtcTime> {
    text.parse().ok()
}

pub(super) fn blame(name: &str) -> Option<Blame> {
    [Blame::Candidate, Blame::Capture, Blame::Worker, Blame::Host, Blame::Plan]
        .into_iter()
        .find(|blame| blame.name() == name)
}

pub(super) fn role(name: &str) -> Option<Role> {
    [Role::Verifier, Role::Profiler].into_iter().find(|role| role.name() == name)
}

/// Returns the kind of a device. A device that this version does not know counts as the default device.
fn kind_of(device: &str) -> DeviceKind {
    Device::from_name(device).unwrap_or_default().kind()
}
