//! What a run writes down: its database, the evidence on its way there, and the summary that is printed from it.

use std::time::{Duration, Instant};

use opt_shared::ids::CandidateId;

use super::RunFolder;
use super::evidence::Evidence;
use crate::core::event::{PhaseRow, PolicyRow};
use crate::driver::RunError;
use crate::record::{MemoryTotals, Numbers, UtcTime};
use crate::store::{PhaseRow as StoredPhase, ReplayPhaseRow, Store};

/// The summary is rewritten at most this often while the run goes on, and takes at most one part in so many of the time:
/// that of thousands of candidates is tens of MB.
const SUMMARY_EVERY: Duration = Duration::from_secs(1);
const SUMMARY_SHARE: u32 = 20;

pub(crate) struct Books<'a> {
    pub(crate) store: Store,
    pub(crate) evidence: Evidence,
    folder: &'a RunFolder,
    summary_due: Option<Instant>,
}

impl<'a> Books<'a> {
    pub(crate) fn open(store: Store, folder: &'a RunFolder) -> Result<Self, RunError> {
        let evidence = Evidence::new(store.samples_width()?);
        Ok(Self { store, evidence, folder, summary_due: None })
    }

    /// A decision and its numbers, as they are recorded.
    pub(crate) fn policy(&mut self, t: UtcTime, row: &PolicyRow) -> Result<Numbers, RunError> {
        tracing::debug!(decision = row.decision, reason = row.reason, "policy");
        let numbers: Numbers =
            row.numbers.iter().map(|&(name, number)| (name.to_owned(), number.into())).collect();
        self.store.policy(t, row.decision, &row.reason, &numbers)?;
        Ok(numbers)
    }

    pub(crate) fn phase(&mut self, candidate: CandidateId, row: &PhaseRow) -> Result<(), RunError> {
        let (started, ended) = span_of(row);
        self.store.phase(&StoredPhase {
            candidate,
            stage: row.order.stage,
            worker: row.worker,
            predicted: Some(row.predicted),
            peak_owed: Some(row.peak_owed),
            peak_reclaimable: Some(row.peak_reclaimable),
            swap_delta: self.evidence.phase_swap(row.worker),
            switch_us: self.evidence.phase_switch(row.worker),
            started,
            ended: Some(ended),
        })?;
        Ok(())
    }

    pub(crate) fn replay_phase(&mut self, name: String, row: &PhaseRow) -> Result<(), RunError> {
        let (started, ended) = span_of(row);
        self.store.replay_phase(&ReplayPhaseRow {
            name,
            worker: row.worker,
            predicted: row.predicted,
            peak_owed: row.peak_owed,
            peak_reclaimable: row.peak_reclaimable,
            swap_delta: self.evidence.phase_swap(row.worker),
            switch_us: self.evidence.phase_switch(row.worker),
            started,
            ended,
        })?;
        Ok(())
    }

    /// Not more often than is good for the run.
    pub(crate) fn write_summary_if_due(&mut self, totals: MemoryTotals) -> Result<(), RunError> {
        if self.summary_due.is_none_or(|due| due <= Instant::now()) {
            self.write_summary(totals)
        } else {
            Ok(())
        }
    }

    pub(crate) fn write_summary(&mut self, totals: MemoryTotals) -> Result<(), RunError> {
        let begun = Instant::now();
        self.store.memory(totals)?;
        let document = self.store.document()?;
        crate::report::summary::write_summary(self.folder.path(), &document)?;
        self.summary_due = Some(Instant::now() + SUMMARY_EVERY.max(begun.elapsed() * SUMMARY_SHARE));
        Ok(())
    }
}

/// When a phase that has ended just now began and ended, by the clock on the wall.
fn span_of(row: &PhaseRow) -> (UtcTime, UtcTime) {
    let ended = UtcTime::now();
    let took = i64::try_from(row.ended.saturating_sub(row.started).as_millis()).unwrap_or(0);
    (UtcTime::from_millisecond(ended.as_millisecond() - took).unwrap_or(ended), ended)
}
