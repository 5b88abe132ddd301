//! Writes a run's records: the rows of its database, its memory samples and its summary.

use opt_shared::ids::CandidateId;
use opt_shared::units::Bytes;

use super::RunFolder;
use super::evidence::{Evidence, RunSample};
use super::summaries::Summaries;
use super::writer::{FollowUp, Writer};
use crate::core::event::{PhaseRow, PolicyRow};
use crate::driver::RunError;
use crate::record::{MemoryTotals, Numbers, UtcTime};
use crate::store::{DevicePhase, PhaseRow as StoredPhase, ReplayPhaseRow, Store};

pub(crate) struct RunRecords {
    pub(crate) writer: Writer,
    pub(crate) evidence: Evidence,
    pub(crate) summaries: Summaries,
    /// The number of sample blocks that were dropped because the database was too slow. It is reset when the database
    /// recovers.
    pub(crate) samples_dropped: u64,
}

impl RunRecords {
    pub(crate) fn open(store: Store, folder: &RunFolder) -> Result<Self, RunError> {
        let evidence = Evidence::new(store.samples_width()?);
        let summaries = Summaries::open(folder.path()).map_err(RunError::Thread)?;
        Ok(Self { writer: Writer::open(store)?, evidence, summaries, samples_dropped: 0 })
    }

    /// Records a decision, and returns its numbers in the form in which they are recorded.
    pub(crate) fn policy(&mut self, t: UtcTime, row: &PolicyRow) -> Numbers {
        tracing::debug!(decision = row.decision, reason = row.reason, "policy");
        let numbers: Numbers =
            row.numbers.iter().map(|&(name, number)| (name.to_owned(), number.into())).collect();
        let (decision, reason, kept) = (row.decision, row.reason.clone(), numbers.clone());
        self.writer.write(move |store| store.policy(t, decision, &reason, &kept));
        numbers
    }

    pub(crate) fn phase(&mut self, candidate: CandidateId, row: &PhaseRow) {
        let (started, ended) = span_of(row);
        let phase = StoredPhase {
            candidate,
            stage: row.order.stage,
            worker: row.worker,
            predicted: Some(row.predicted),
            peak_owed: Some(row.peak_owed),
            peak_reclaimable: Some(row.peak_reclaimable),
            device: on_device(row),
            swap_delta: self.evidence.phase_swap(row.worker),
            switch_us: self.evidence.phase_switch(row.worker),
            started,
            ended: Some(ended),
        };
        self.writer.write(move |store| store.phase(&phase));
    }

    pub(crate) fn replay_phase(&mut self, name: String, row: &PhaseRow) {
        let (started, ended) = span_of(row);
        let phase = ReplayPhaseRow {
            name,
            worker: row.worker,
            predicted: row.predicted,
            peak_owed: row.peak_owed,
            peak_reclaimable: row.peak_reclaimable,
            device: on_device(row),
            swap_delta: self.evidence.phase_swap(row.worker),
            switch_us: self.evidence.phase_switch(row.worker),
            started,
            ended,
        };
        self.writer.write(move |store| store.replay_phase(&phase));
    }

    /// Adds a sample of memory. It is written later, together with other samples.
    pub(crate) fn memory_sample(&mut self, sample: &RunSample) {
        if let Some(block) = self.evidence.add(sample)
            && !self.writer.write_samples(move |store| store.samples(&block))
        {
            self.samples_dropped += 1;
        }
    }

    /// Writes the summary, or postpones it if the last one was written too recently.
    pub(crate) fn write_summary_if_due(&mut self, totals: MemoryTotals) {
        if self.summaries.is_due() {
            self.write_summary(totals);
        } else {
            self.summaries.postpone();
        }
    }

    /// Writes a summary that was postponed, if it is due now.
    pub(crate) fn write_postponed_summary(&mut self, totals: MemoryTotals) {
        if self.summaries.is_overdue() {
            self.write_summary(totals);
        }
    }

    /// Requests the summary. It is written once all rows that were submitted earlier are on disk.
    pub(crate) fn write_summary(&mut self, totals: MemoryTotals) {
        self.writer.write_then(move |store| store.memory(totals).map(|()| FollowUp::WriteSummary));
    }
}

fn on_device(row: &PhaseRow) -> DevicePhase {
    let predicted = Some(row.predicted_device).filter(|&bytes| bytes != Bytes::ZERO);
    DevicePhase { predicted, peak: row.peak_device }
}

/// Returns the wall-clock start and end of a phase that has just ended.
fn span_of(row: &PhaseRow) -> (UtcTime, UtcTime) {
    let ended = UtcTime::now();
    let took = i64::try_from(row.ended.saturating_sub(row.started).as_millis()).unwrap_or(0);
    (UtcTime::from_millisecond(ended.as_millisecond() - took).unwrap_or(ended), ended)
}
