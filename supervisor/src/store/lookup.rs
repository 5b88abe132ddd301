//! Reads single records for requests while a run is in progress: a candidate, a worker, or the latest decisions.

use opt_shared::ids::{CandidateId, WorkerId};
use rusqlite::params;

use super::load::{infallible, json, time, word};
use super::{Store, StoreError};
use crate::record::{CandidateRecord, PolicyRecord, WorkerRecord};

impl Store {
    /// Returns the record of one candidate, in the form that `summary.json` has.
    pub fn record_of(&self, candidate: CandidateId) -> Result<Option<CandidateRecord>, StoreError> {
        let key = self.candidate_key(candidate, "load a candidate")?;
        let mut found = None;
        infallible(self.one_candidate(key, |record| {
            found = Some(record);
            Ok(())
        })?);
        Ok(found)
    }

    pub fn worker_record(&self, worker: WorkerId) -> Result<Option<WorkerRecord>, StoreError> {
        let mut found = None;
        infallible(self.each_worker(|record| {
            if record.id == worker {
                found = Some(record);
            }
            Ok(())
        })?);
        Ok(found)
    }

    /// Returns the latest decisions about this worker, newest first.
    pub fn latest_about_worker(&self, worker: WorkerId, limit: u32) -> Result<Vec<PolicyRecord>, StoreError> {
        self.latest("$.worker", worker.0, limit)
    }

    pub fn latest_about_candidate(
        &self,
        candidate: CandidateId,
        limit: u32,
    ) -> Result<Vec<PolicyRecord>, StoreError> {
        self.latest("$.candidate", candidate.0, limit)
    }

    /// Returns the latest decisions of the run, oldest first.
    pub fn latest_decisions(&self, limit: u32) -> Result<Vec<PolicyRecord>, StoreError> {
        let mut rows = self.decisions(
            "SELECT t, decision, reason, numbers FROM policy ORDER BY key DESC LIMIT ?1",
            params![limit],
        )?;
        rows.reverse();
        Ok(rows)
    }

    fn latest(&self, path: &str, number: u32, limit: u32) -> Result<Vec<PolicyRecord>, StoreError> {
        self.decisions(
            "SELECT t, decision, reason, numbers FROM policy WHERE json_extract(numbers, ?1) = ?2
             ORDER BY key DESC LIMIT ?3",
            params![path, number, limit],
        )
    }

    fn decisions(&self, sql: &str, params: impl rusqlite::Params) -> Result<Vec<PolicyRecord>, StoreError> {
        let mut rows = Vec::new();
        infallible(self.each(
            sql,
            params,
            |row| {
                Ok(PolicyRecord {
                    t: word(row, 0, time)?,
                    decision: row.get(1)?,
                    reason: row.get(2)?,
                    numbers: json(row, 3)?,
                })
            },
            |row| {
                rows.push(row);
                Ok::<(), std::convert::Infallible>(())
            },
        )?);
        Ok(rows)
    }
}
