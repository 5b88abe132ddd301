//! Reads the document of a run piece by piece, for reports that keep only one candidate in memory at a time.
//!
//! A `visit` function can stop the reading by returning an error, which becomes the inner result.

use super::load::Document;
use super::{Order, StoreError};
use crate::record::{
    CandidateRecord, HostRecord, JobRecord, MemoryTotals, PhaseRecord, PolicyRecord, ReplayRecord, RunInfo,
    WorkerRecord,
};

/// Identifies a job when its candidates are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobKey(i64);

impl Document<'_> {
    pub fn run(&self) -> Result<RunInfo, StoreError> {
        self.store.run_info()
    }

    pub fn host(&self) -> Result<HostRecord, StoreError> {
        self.store.host_record()
    }

    pub fn memory_totals(&self) -> Result<MemoryTotals, StoreError> {
        self.store.memory_totals()
    }

    /// Returns the jobs in the plan's order.
    pub fn jobs(&self) -> Result<Vec<(JobKey, JobRecord<()>)>, StoreError> {
        Ok(self.store.job_heads()?.into_iter().map(|(key, job)| (JobKey(key), job)).collect())
    }

    pub fn each_candidate<E>(
        &self,
        job: JobKey,
        order: Order,
        visit: impl FnMut(CandidateRecord) -> Result<(), E>,
    ) -> Result<Result<(), E>, StoreError> {
        self.store.each_candidate(job.0, order, visit)
    }

    pub fn each_worker<E>(
        &self,
        visit: impl FnMut(WorkerRecord) -> Result<(), E>,
    ) -> Result<Result<(), E>, StoreError> {
        self.store.each_worker(visit)
    }

    pub fn each_phase<E>(
        &self,
        visit: impl FnMut(PhaseRecord) -> Result<(), E>,
    ) -> Result<Result<(), E>, StoreError> {
        self.store.each_phase(visit)
    }

    /// Returns the replays in the plan's order.
    pub fn replays(&self) -> Result<Vec<ReplayRecord>, StoreError> {
        self.store.replays()
    }

    pub fn each_policy<E>(
        &self,
        visit: impl FnMut(PolicyRecord) -> Result<(), E>,
    ) -> Result<Result<(), E>, StoreError> {
        self.store.each_policy(visit)
    }
}
