//! Reads the rows that the earlier parts of a resumed run have written.

use std::convert::Infallible;
use std::path::PathBuf;

use opt_shared::ids::{CandidateId, LeaseId, WorkerId};
use opt_shared::message::Report;
use opt_shared::outcome::{Artifact, Blame, Status};
use opt_shared::units::Bytes;
use rusqlite::params;

use super::load::{blame, infallible, json_option, word, word_option};
use super::write::META_PLAN;
use super::{Store, StoreError};
use crate::record::{JobStatus, Stage, UtcTime};

/// The detail of an attempt whose end was never recorded.
const ABANDONED: &str = "the supervisor ended before this attempt did";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredJob {
    pub name: String,
    pub status: JobStatus,
    /// The digest of the signature. If this digest or the next one has changed, no result of the job can be used.
    pub signature_digest: Option<String>,
    pub captures_digest: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCandidate {
    pub source_digest: Option<String>,
    /// The status of the candidate. `None` if the candidate has not ended.
    pub status: Option<Status>,
    pub blame: Option<Blame>,
    pub failed_stage: Option<Stage>,
    /// The artifact of the candidate's last build, if that build passed.
    pub artifact: Option<Artifact>,
    /// Whether the candidate is a baseline that failed while it was timed beside another candidate.
    pub failed_beside: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct StoredAttempt {
    pub stage: Stage,
    pub number: u32,
    pub status: Option<Status>,
    pub blame: Option<Blame>,
    pub report: Option<Report>,
    /// Whether the candidate was reopened after this attempt. The number of the attempt is then not used again, and its
    /// report no longer counts.
    pub superseded: bool,
}

/// The first ids that no earlier part of the run has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    pub worker: WorkerId,
    pub lease: LeaseId,
}

/// How many attempts, workers and phases were in progress when the supervisor ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abandoned {
    pub attempts: usize,
    pub workers: usize,
    pub phases: usize,
}

impl Store {
    /// Returns the resolved plan of the run.
    pub fn stored_plan(&self) -> Result<Option<String>, StoreError> {
        self.meta_value(META_PLAN)
    }

    /// Returns the version of this program that began or last resumed the run.
    pub fn stored_version(&self) -> Result<Option<String>, StoreError> {
        Ok(self.list("SELECT version FROM run", [], |row| row.get(0))?.pop())
    }

    pub fn stored_jobs(&self) -> Result<Vec<StoredJob>, StoreError> {
        self.list(
            "SELECT name, status, signature_digest, captures_digest FROM job ORDER BY place, key",
            [],
            |row| {
                Ok(StoredJob {
                    name: row.get(0)?,
                    status: word(row, 1, JobStatus::from_name)?,
                    signature_digest: row.get(2)?,
                    captures_digest: row.get(3)?,
                })
            },
        )
    }

    /// Returns the candidate of a job, given both names. `None` if it is not recorded.
    pub fn stored_candidate(&self, job: &str, name: &str) -> Result<Option<StoredCandidate>, StoreError> {
        let found = self.list(
            "SELECT candidate.source_digest, candidate.status, candidate.blame, candidate.failed_stage,
                 build.artifact_digest, build.artifact_path, candidate.failed_beside
             FROM candidate JOIN job ON job.key = candidate.job
             LEFT JOIN attempt AS build ON build.candidate = candidate.key AND build.stage = 'build'
                 AND NOT build.superseded AND build.number = (SELECT max(number) FROM attempt
                     WHERE candidate = candidate.key AND stage = 'build' AND status IS NOT NULL)
             WHERE job.name = ?1 AND candidate.name = ?2",
            [job, name],
            |row| {
                let digest: Option<String> = row.get(4)?;
                let path: Option<String> = row.get(5)?;
                Ok(StoredCandidate {
                    source_digest: row.get(0)?,
                    status: word_option(row, 1, Status::from_name)?,
                    blame: word_option(row, 2, blame)?,
                    failed_stage: word_option(row, 3, Stage::from_name)?,
                    artifact: digest.zip(path).map(|(digest, path)| {
                        let path = PathBuf::from(path);
                        // If the artifact is missing, it is built again.
                        let bytes = std::fs::metadata(&path).map_or(Bytes::ZERO, |it| Bytes::new(it.len()));
                        Artifact { digest, path, bytes }
                    }),
                    failed_beside: row.get(6)?,
                })
            },
        )?;
        Ok(found.into_iter().next())
    }

    /// Returns the attempts of a candidate with their reports, oldest first.
    pub fn stored_attempts(&self, candidate: CandidateId) -> Result<Vec<StoredAttempt>, StoreError> {
        let key = self.candidate_key(candidate, "load the attempts of a candidate")?;
        self.list(
            "SELECT stage, number, status, blame, report, superseded FROM attempt WHERE candidate = ?1 ORDER BY key",
            [key],
            |row| {
                Ok(StoredAttempt {
                    stage: word(row, 0, Stage::from_name)?,
                    number: row.get(1)?,
                    status: word_option(row, 2, Status::from_name)?,
                    blame: word_option(row, 3, blame)?,
                    report: json_option(row, 4)?,
                    superseded: row.get(5)?,
                })
            },
        )
    }

    pub fn counters(&self) -> Result<Counters, StoreError> {
        self.connection
            .query_row(
                "SELECT coalesce((SELECT max(id) + 1 FROM worker), 0),
                     max(coalesce((SELECT max(lease) + 1 FROM attempt), 0),
                         coalesce((SELECT max(lease) + 1 FROM replay), 0),
                         coalesce((SELECT max(lease) + 1 FROM policy), 0))",
                [],
                |row| Ok(Counters { worker: WorkerId(row.get(0)?), lease: LeaseId(row.get(1)?) }),
            )
            .map_err(|source| self.failed(source))
    }

    /// Closes the attempts, workers and phases that were open when the supervisor died. An attempt without an end has
    /// no verdict, so it is repeated.
    pub fn close_abandoned(&mut self, now: UtcTime) -> Result<Abandoned, StoreError> {
        self.synced("close the open rows of an earlier run", |transaction| {
            let attempts = transaction.execute(
                "UPDATE attempt SET status = ?1, blame = ?2, detail = ?3 WHERE status IS NULL",
                params![Status::InfraError.name(), Blame::Host.name(), ABANDONED],
            )?;
            let workers = transaction.execute(
                "UPDATE worker SET ended = ?1, end_class = 'abandoned' WHERE ended IS NULL",
                [now.to_string()],
            )?;
            let phases =
                transaction.execute("UPDATE phase SET ended = ?1 WHERE ended IS NULL", [now.to_string()])?;
            Ok(Abandoned { attempts, workers, phases })
        })
    }

    fn list<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        convert: impl Fn(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let mut rows = Vec::new();
        infallible(self.each(sql, params, convert, |row| {
            rows.push(row);
            Ok::<(), Infallible>(())
        })?);
        Ok(rows)
    }
}
