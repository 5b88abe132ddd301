//! Writes rows about the run, its jobs and candidates, in the order in which things happen.
//!
//! `processes` writes rows about workers, kills and decisions.

use std::num::NonZero;

use opt_shared::ids::{CandidateId, JobId};
use opt_shared::outcome::Body;
use opt_shared::units::Bytes;
use rusqlite::params;
use serde::Serialize;

use super::bound::{
    MAX_DETAIL, MAX_FEEDBACK, MAX_META, MAX_NAME, MAX_NUMBERS, MAX_REPORT, clip, clip_report,
};
use super::{
    AttemptEnd, AttemptKey, AttemptRow, CandidateEnd, CandidateRow, JobEnd, JobRow, RunRow, ScoreRow, Store,
    StoreError,
};
use crate::record::{
    CapturesForm, HostRecord, JobStatus, MemoryTotals, Numbers, Ranking, RunStatus, UtcTime,
};

/// The keys of the `meta` table.
pub(super) const META_HOST: &str = "host";
pub(super) const META_MEMORY: &str = "memory";
pub(super) const META_PLAN: &str = "plan";
const META_COMMAND: &str = "command";

impl Store {
    /// Records the start of the run. If the run is resumed, records this, and keeps the first start.
    pub fn run_started(&mut self, run: &RunRow) -> Result<(), StoreError> {
        self.synced("record the start of the run", |transaction| {
            transaction.execute(
                "INSERT INTO run (only, name, status, started, version, device) VALUES (1, ?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT (only) DO UPDATE SET status = excluded.status, version = excluded.version,
                     device = excluded.device, finished = NULL, exit_code = NULL",
                params![
                    clip(&run.name, MAX_NAME),
                    RunStatus::Running.name(),
                    run.started.to_string(),
                    clip(&run.version, MAX_DETAIL),
                    clip(&run.device, MAX_DETAIL)
                ],
            )
        })?;
        Ok(())
    }

    pub fn run_finished(
        &mut self,
        status: RunStatus,
        exit_code: i32,
        finished: UtcTime,
    ) -> Result<(), StoreError> {
        const OPERATION: &str = "record the end of the run";
        let changed = self.synced(OPERATION, |transaction| {
            transaction.execute(
                "UPDATE run SET status = ?1, exit_code = ?2, finished = ?3",
                params![status.name(), exit_code, finished.to_string()],
            )
        })?;
        self.expect_one(changed, OPERATION, || "the run".to_owned())
    }

    pub fn host(&mut self, host: &HostRecord) -> Result<(), StoreError> {
        self.meta(META_HOST, host, "record the host")
    }

    /// Stores the resolved plan, so that a resumed run can compare its own plan with it.
    pub fn plan(&mut self, resolved: &str) -> Result<(), StoreError> {
        const OPERATION: &str = "record the plan";
        self.meta_text(META_PLAN, resolved, OPERATION)
    }

    /// Stores the command that started the run. If the run is resumed, the first command is kept.
    pub fn command(&mut self, command: &str) -> Result<(), StoreError> {
        self.ordered("record the command", |transaction| {
            transaction.execute(
                "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO NOTHING",
                params![META_COMMAND, clip(command, MAX_DETAIL)],
            )
        })?;
        Ok(())
    }

    /// Combines the memory totals of this part of the run with the stored ones. Stored peaks only rise.
    pub fn memory(&mut self, totals: MemoryTotals) -> Result<(), StoreError> {
        const OPERATION: &str = "record the memory totals";
        let earlier = self.memory_totals()?;
        let text = self.json(&earlier.combined_with(totals), OPERATION)?;
        self.ordered(OPERATION, |transaction| put_meta(transaction, META_MEMORY, &text))
    }

    fn meta<T: Serialize>(
        &mut self,
        key: &str,
        value: &T,
        operation: &'static str,
    ) -> Result<(), StoreError> {
        let text = self.json(value, operation)?;
        self.meta_text(key, &text, operation)
    }

    fn meta_text(&mut self, key: &str, text: &str, operation: &'static str) -> Result<(), StoreError> {
        self.check_length(text, "the text", MAX_META, operation)?;
        self.synced(operation, |transaction| put_meta(transaction, key, text))
    }

    /// Records a job of the plan. If the job is already recorded, its description is replaced. Call `stored_jobs` first
    /// in order to compare the two descriptions.
    pub fn job(&mut self, job: &JobRow) -> Result<(), StoreError> {
        const OPERATION: &str = "record a job";
        self.check_length(&job.name, "its name", MAX_NAME, OPERATION)?;
        let key: i64 = self.ordered(OPERATION, |transaction| {
            transaction.query_row(
                "INSERT INTO job (place, name, status, baseline, entries, bytes, unique_bytes, captures_digest,
                     signature_digest, captures_form) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
                 ON CONFLICT (name) DO UPDATE SET place = excluded.place, baseline = excluded.baseline,
                     entries = excluded.entries, bytes = excluded.bytes, unique_bytes = excluded.unique_bytes,
                     captures_digest = excluded.captures_digest, signature_digest = excluded.signature_digest,
                     captures_form = excluded.captures_form
                 RETURNING key",
                params![
                    job.id.0,
                    job.name,
                    JobStatus::Pending.name(),
                    job.baseline,
                    job.captures.entries.map(count),
                    job.captures.bytes.map(bytes),
                    job.captures.unique_bytes.map(bytes),
                    job.captures.digest,
                    job.signature_digest,
                    job.captures.form.map(CapturesForm::name)
                ],
                |row| row.get(0),
            )
        })?;
        self.jobs.insert(job.id, key);
        Ok(())
    }

    pub fn job_status(&mut self, job: JobId, end: &JobEnd) -> Result<(), StoreError> {
        const OPERATION: &str = "record the state of a job";
        let key = self.job_key(job, OPERATION)?;
        self.ordered(OPERATION, |transaction| {
            transaction.execute(
                "UPDATE job SET status = ?2, detail = ?3, winner = ?4, ranking = ?5, unsettled_because = ?6,
                     winner_confirmed = ?7
                 WHERE key = ?1",
                params![
                    key,
                    end.status.name(),
                    clip_option(end.detail.as_deref(), MAX_DETAIL),
                    end.winner,
                    end.ranking.map(Ranking::name),
                    clip_option(end.unsettled_because.as_deref(), MAX_DETAIL),
                    end.winner_confirmed
                ],
            )
        })?;
        Ok(())
    }

    /// Records a candidate of the plan, or a submitted one. If it is already recorded, its description is replaced, and
    /// its results are kept. Its status is not kept if its sources have changed. Call `stored_candidate` first in order
    /// to compare the two descriptions.
    pub fn candidate(&mut self, candidate: &CandidateRow) -> Result<(), StoreError> {
        const OPERATION: &str = "record a candidate";
        let job = self.job_key(candidate.job, OPERATION)?;
        self.check_length(&candidate.name, "its name", MAX_NAME, OPERATION)?;
        let others = self.json(&candidate.source.other_paths, OPERATION)?;
        let key: i64 = self.ordered(OPERATION, |transaction| {
            transaction
                .prepare_cached(
                    "INSERT INTO candidate (job, place, name, source_path, other_paths, source_digest, tier, not_timed_because)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
                     ON CONFLICT (job, name) DO UPDATE SET place = excluded.place,
                         source_path = excluded.source_path, other_paths = excluded.other_paths,
                         source_digest = coalesce(excluded.source_digest, source_digest),
                         status = CASE WHEN source_digest <> excluded.source_digest THEN NULL ELSE status END,
                         tier = excluded.tier, not_timed_because = excluded.not_timed_because
                     RETURNING key",
                )?
                .query_row(
                    params![
                        job,
                        candidate.id.0,
                        candidate.name,
                        candidate.source.path,
                        others,
                        candidate.source.digest,
                        candidate.tier.name(),
                        candidate.not_timed_because
                    ],
                    |row| row.get(0),
                )
        })?;
        let index = candidate.id.index();
        if self.candidates.len() <= index {
            self.candidates.resize(index + 1, None);
        }
        self.candidates[index] = NonZero::new(key);
        Ok(())
    }

    /// Records the start of an attempt. If the start is already recorded, it is replaced, unless the attempt has ended.
    pub fn attempt_started(&mut self, attempt: &AttemptRow) -> Result<(), StoreError> {
        const OPERATION: &str = "record the start of an attempt";
        let candidate = self.candidate_key(attempt.key.candidate, OPERATION)?;
        self.ordered(OPERATION, |transaction| {
            transaction
                .prepare_cached(
                    "INSERT INTO attempt (candidate, stage, number, worker, lease, predicted, started)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                     ON CONFLICT (candidate, stage, number) DO UPDATE SET worker = excluded.worker,
                         lease = excluded.lease, predicted = excluded.predicted, started = excluded.started WHERE status IS NULL",
                )?
                .execute(params![
                    candidate,
                    attempt.key.stage.name(),
                    attempt.key.number,
                    attempt.worker.map(|worker| worker.0),
                    attempt.lease.map(|lease| lease.0),
                    attempt.predicted.map(bytes),
                    attempt.started.to_string()
                ])
        })?;
        Ok(())
    }

    /// Records the end of an attempt. If an end is already recorded, it is kept. With the write-ahead log, the write is
    /// not synced, so that the next stage does not have to wait for the disk. If the write is lost, the stage is
    /// repeated. The candidate's result becomes durable when the candidate's end is recorded.
    pub fn attempt_finished(&mut self, key: AttemptKey, end: &AttemptEnd) -> Result<(), StoreError> {
        const OPERATION: &str = "record the end of an attempt";
        let candidate = self.candidate_key(key.candidate, OPERATION)?;
        let AttemptEnd { status, blame, detail, ms, report } = end;
        let report = report.clone();
        let (text, artifact) = match report {
            Some(mut report) => {
                clip_report(&mut report);
                let text = self.json(&report, OPERATION)?;
                self.check_length(&text, "its report", MAX_REPORT, OPERATION)?;
                let artifact = match report.body {
                    Body::Build(built) => built.artifact,
                    Body::Verify(_) | Body::Profile(_) | Body::Replay(_) => None,
                };
                (Some(text), artifact)
            }
            None => (None, None),
        };
        let matching_rows = self.ordered(OPERATION, |transaction| {
            let ended = transaction
                .prepare_cached(
                    "UPDATE attempt SET status = ?4, blame = ?5, detail = ?6, ms = ?7, report = ?8,
                         artifact_digest = ?9, artifact_path = ?10
                     WHERE candidate = ?1 AND stage = ?2 AND number = ?3 AND status IS NULL",
                )?
                .execute(params![
                    candidate,
                    key.stage.name(),
                    key.number,
                    status.name(),
                    blame.map(opt_shared::outcome::Blame::name),
                    clip_option(detail.as_deref(), MAX_DETAIL),
                    // A NaN is intentionally stored as NULL, which means unknown.
                    ms,
                    text,
                    artifact.as_ref().map(|artifact| &artifact.digest),
                    artifact.as_ref().map(|artifact| artifact.path.to_string_lossy())
                ])?;
            if ended > 0 {
                return Ok(ended);
            }
            // No row was changed: either the end is already recorded, or the attempt is unknown.
            let rows: u32 = transaction.query_row(
                "SELECT count(*) FROM attempt WHERE candidate = ?1 AND stage = ?2 AND number = ?3",
                params![candidate, key.stage.name(), key.number],
                |row| row.get(0),
            )?;
            Ok(rows as usize)
        })?;
        self.expect_one(matching_rows, OPERATION, || {
            format!("attempt {} of stage {} of {}", key.number, key.stage, key.candidate)
        })
    }

    pub fn candidate_finished(
        &mut self,
        candidate: CandidateId,
        end: &CandidateEnd,
    ) -> Result<(), StoreError> {
        const OPERATION: &str = "record the end of a candidate";
        let key = self.candidate_key(candidate, OPERATION)?;
        self.synced(OPERATION, |transaction| {
            transaction
                .prepare_cached(
                    "UPDATE candidate SET status = ?2, blame = ?3, failed_stage = ?4, detail = ?5, feedback = ?6
                     WHERE key = ?1",
                )?
                .execute(params![
                    key,
                    end.status.name(),
                    end.blame.map(opt_shared::outcome::Blame::name),
                    end.failed_stage.map(crate::record::Stage::name),
                    clip_option(end.detail.as_deref(), MAX_DETAIL),
                    clip_option(end.feedback.as_deref(), MAX_FEEDBACK)
                ])
        })?;
        Ok(())
    }

    /// Reopens a candidate that has no end, or whose end is not kept. Its attempts stay recorded, and their numbers are
    /// not used again. Their reports no longer count, except that of the build with the number `kept_build`.
    pub fn candidate_reopened(
        &mut self,
        candidate: CandidateId,
        kept_build: Option<u32>,
    ) -> Result<(), StoreError> {
        const OPERATION: &str = "reopen a candidate";
        let key = self.candidate_key(candidate, OPERATION)?;
        self.synced(OPERATION, |transaction| {
            transaction.execute(
                "UPDATE candidate SET status = NULL, blame = NULL, failed_stage = NULL, detail = NULL,
                     feedback = NULL, rank = NULL, speedup = NULL, times = NULL, failed_beside = 0 WHERE key = ?1",
                [key],
            )?;
            transaction.execute(
                "UPDATE attempt SET superseded = 1
                 WHERE candidate = ?1 AND NOT (stage = 'build' AND number IS ?2)",
                params![key, kept_build],
            )
        })?;
        Ok(())
    }

    /// Records that a baseline failed while it was timed beside another candidate. The baseline's own verdict does not
    /// change.
    pub fn failed_beside(&mut self, baseline: CandidateId) -> Result<(), StoreError> {
        const OPERATION: &str = "record the failure of a baseline";
        let key = self.candidate_key(baseline, OPERATION)?;
        self.ordered(OPERATION, |transaction| {
            transaction.execute("UPDATE candidate SET failed_beside = 1 WHERE key = ?1", [key])
        })?;
        Ok(())
    }

    /// Writes the ranks, speed-ups and times of several candidates. Either all of them are written, or none.
    pub fn scores(&mut self, scores: &[(CandidateId, ScoreRow)]) -> Result<(), StoreError> {
        const OPERATION: &str = "record scores";
        let mut rows = Vec::with_capacity(scores.len());
        for (candidate, score) in scores {
            rows.push((
                self.candidate_key(*candidate, OPERATION)?,
                score.rank,
                score.speedup.as_ref().map(|speedup| self.json(speedup, OPERATION)).transpose()?,
                self.json(&score.times, OPERATION)?,
            ));
        }
        self.synced(OPERATION, |transaction| {
            let mut statement = transaction
                .prepare_cached("UPDATE candidate SET rank = ?2, speedup = ?3, times = ?4 WHERE key = ?1")?;
            for (key, rank, speedup, times) in &rows {
                statement.execute(params![key, rank, speedup, times])?;
            }
            Ok(())
        })
    }

    pub(super) fn numbers(&self, numbers: &Numbers, operation: &'static str) -> Result<String, StoreError> {
        let text = self.json(numbers, operation)?;
        if text.len() <= MAX_NUMBERS {
            return Ok(text);
        }
        // The decision matters more than its figures. If the figures are too long, only their length is recorded.
        self.json(&serde_json::json!({ "omitted_bytes": text.len() }), operation)
    }

    pub(super) fn json<T: Serialize + ?Sized>(
        &self,
        value: &T,
        operation: &'static str,
    ) -> Result<String, StoreError> {
        serde_json::to_string(value).map_err(|source| StoreError::Json {
            path: self.path.clone(),
            operation,
            source,
        })
    }

    fn check_length(
        &self,
        text: &str,
        what: &'static str,
        limit: usize,
        operation: &'static str,
    ) -> Result<(), StoreError> {
        if text.len() <= limit {
            return Ok(());
        }
        Err(StoreError::TooLong { path: self.path.clone(), operation, what, length: text.len(), limit })
    }

    pub(super) fn expect_one(
        &self,
        rows: usize,
        operation: &'static str,
        what: impl FnOnce() -> String,
    ) -> Result<(), StoreError> {
        if rows == 1 { Ok(()) } else { Err(self.unrecorded(operation, what())) }
    }
}

fn put_meta(transaction: &rusqlite::Transaction<'_>, key: &str, value: &str) -> rusqlite::Result<()> {
    transaction.execute(
        "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        params![key, value],
    )?;
    Ok(())
}

/// Converts a size to SQLite's signed 64-bit integers. Sizes above `i64::MAX`, which occur only as limits, become
/// `i64::MAX`.
pub(super) fn bytes(bytes: Bytes) -> i64 {
    count(bytes.get())
}

fn count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(super) fn clip_option(text: Option<&str>, limit: usize) -> Option<std::borrow::Cow<'_, str>> {
    text.map(|text| clip(text, limit))
}
