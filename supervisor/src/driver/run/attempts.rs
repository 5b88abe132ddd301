//! Attempts: what is under way for each lease, and what their ends mean for the record.

use std::collections::BTreeMap;
use std::time::Instant;

use opt_shared::ids::{CandidateId, LeaseId};
use opt_shared::outcome::{Blame, Status};
use opt_shared::units::Bytes;

use super::Run;
use crate::core::event::{AttemptEnd, Order, Stage};
use crate::driver::RunError;
use crate::driver::answer::notifications;
use crate::driver::folder::reads;
use crate::report::feedback::{feedback, feedback_without_report};
use crate::store::{AttemptEnd as StoredEnd, AttemptKey, CandidateEnd};

#[derive(Default)]
pub(crate) struct Attempts {
    pub(crate) running: BTreeMap<LeaseId, RunningAttempt>,
    /// Of the decision that is being carried out: the attempt that stands, for the candidate that it may have ended.
    pub(super) stood: Option<Stood>,
}

/// A running attempt, for the record.
pub(crate) struct RunningAttempt {
    pub(crate) number: u32,
    pub(crate) started: Instant,
    /// Entries, as far as its worker has said.
    pub(crate) done: u32,
    pub(crate) total: u32,
    /// Of captures, gone through so far.
    pub(crate) bytes: Bytes,
}

impl RunningAttempt {
    pub(crate) fn new(number: u32) -> Self {
        Self { number, started: Instant::now(), done: 0, total: 0, bytes: Bytes::ZERO }
    }
}

/// What is kept of an attempt's report for its candidate's end.
pub(super) struct Stood {
    candidate: CandidateId,
    stage: Stage,
    feedback: String,
}

impl Run<'_> {
    pub(super) fn attempt_ended(
        &mut self,
        lease: LeaseId,
        order: Order,
        ended: AttemptEnd,
    ) -> Result<(), RunError> {
        self.desk.progress.ended(lease);
        let Some(attempt) = self.attempts.running.remove(&lease) else { return Ok(()) };
        let (candidate, stage) = (order.candidate(), order.stage());
        let took = attempt.started.elapsed();
        let ms = Some(took.as_secs_f64() * 1e3);
        let end = match ended {
            AttemptEnd::Stands(report) => {
                self.agenda.known[candidate.index()].learn(&report);
                if let Some(row) = reads::policy_row(candidate, &report) {
                    self.policy(&row)?;
                }
                let (status, detail) = (report.head.status, report.head.detail.clone());
                self.attempts.stood = Some(Stood { candidate, stage, feedback: feedback(stage, &report) });
                if let Some(job) = self.agenda.plan.candidate(candidate).map(|it| it.job) {
                    // One that is tried again says nothing of how long others take.
                    self.desk.forecast.attempt_ended(job, stage, status == Status::Passed, took);
                }
                StoredEnd { status, blame: status.blame(), detail: Some(detail), ms, report: Some(*report) }
            }
            AttemptEnd::Retried { why, blame } | AttemptEnd::GivenUp { why, blame } => {
                let (stage, name) = (stage.name(), self.agenda.full_name(candidate));
                tracing::warn!(
                    "the {stage} of {name} (attempt {}) ended without a result: {why}",
                    attempt.number
                );
                without_report(blame, why, ms)
            }
            // What a killed supervisor leaves is closed with the same words on resuming.
            AttemptEnd::Abandoned { why } => without_report(Blame::Host, why, ms),
        };
        let (status, detail) = (end.status, end.detail.clone());
        self.desk.metrics.attempt_ended(stage.name(), status.name(), took);
        let key = AttemptKey { candidate, stage, number: attempt.number };
        self.books.store.attempt_finished(key, end)?;
        let name = || self.agenda.full_name(candidate);
        self.desk.tell(|| notifications::attempt_ended(&name(), stage, attempt.number, status, detail, ms));
        Ok(())
    }

    pub(super) fn candidate_done(
        &mut self,
        candidate: CandidateId,
        status: Status,
        blame: Option<Blame>,
        detail: String,
    ) -> Result<(), RunError> {
        self.agenda.known[candidate.index()].status = Some(status);
        // One that was cancelled, or never fitted, ends without an attempt of its own.
        let stood = self.attempts.stood.take().filter(|stood| stood.candidate == candidate);
        let stage = stood.as_ref().map(|stood| stood.stage);
        let feedback = stood
            .map_or_else(|| feedback_without_report(Stage::Build, status, &detail), |stood| stood.feedback);
        self.books.store.candidate_finished(
            candidate,
            &CandidateEnd {
                status,
                blame,
                failed_stage: stage.filter(|_| status != Status::Passed),
                detail: Some(detail).filter(|detail| !detail.is_empty()),
                feedback: Some(feedback),
            },
        )?;
        let name = self.agenda.full_name(candidate);
        tracing::info!(candidate = name, status = status.name(), "candidate");
        self.desk.metrics.candidate_ended(status.name());
        self.desk.forecast.candidate_ended();
        self.tell_of_end(candidate)?;
        self.desk.progress.said(&format!("{:<20} {name}", status.name()));
        self.books.write_summary_if_due(self.machine.sampler.totals)
    }
}

fn without_report(blame: Blame, why: String, ms: Option<f64>) -> StoredEnd {
    StoredEnd { status: Status::InfraError, blame: Some(blame), detail: Some(why), ms, report: None }
}
