//! Starts and ends the attempts of a run, and keeps those in progress, one for each lease. The steps that differ
//! between candidates and replays are left to their sources.

use std::collections::BTreeMap;
use std::time::Instant;

use opt_shared::ids::LeaseId;
use opt_shared::message::{ToWorker, Work};
use opt_shared::outcome::{Blame, Status};
use opt_shared::units::Bytes;

use super::Run;
use super::candidates::EndingReport;
use super::supply::{EndedAttempt, Grant};
use crate::core::event::{AttemptEnd, Order};
use crate::driver::RunError;
use crate::driver::answer::notifications;
use crate::store::AttemptEnd as StoredEnd;

/// The attempts in progress, by lease.
#[derive(Default)]
pub(crate) struct Attempts {
    pub(crate) running: BTreeMap<LeaseId, RunningAttempt>,
    /// The report that may have ended its candidate. It is dropped when the next decision is carried out.
    pub(super) ending_report: Option<EndingReport>,
}

pub(crate) struct RunningAttempt {
    pub(crate) number: u32,
    pub(crate) started: Instant,
    /// The number of entries that the worker has reported as done.
    pub(crate) done: u32,
    pub(crate) total: u32,
    /// The bytes of captures that have been processed.
    pub(crate) bytes: Bytes,
}

impl RunningAttempt {
    pub(crate) fn new(number: u32) -> Self {
        Self { number, started: Instant::now(), done: 0, total: 0, bytes: Bytes::ZERO }
    }
}

impl Run<'_> {
    /// Starts a granted attempt in its worker.
    pub(super) fn start(&mut self, grant: &Grant) -> Result<(), RunError> {
        let Grant { worker, lease, order, .. } = *grant;
        let (source, index) = self.source_of(order.unit)?;
        let (number, task) = source.begin(self, index, grant)?;
        let Some(task) = task else {
            return Err(RunError::Law {
                law: format!("{order:?} was granted before the builds that it needs were done"),
            });
        };
        let (stage, name) = (order.stage, source.name(&self.agenda, index));
        tracing::debug!(%worker, %lease, unit = name, stage = stage.name(), "attempt");
        self.endpoints.metrics.granted(stage.name());
        self.attempts.running.insert(lease, RunningAttempt::new(number));
        let (total, shows_bytes) = match &task.work {
            Work::Build(_) => (0, false),
            Work::Verify(verify) => (verify.entries.len(), true),
            Work::Profile(profile) => (profile.entries.len(), false),
            Work::Replay(replay) => (replay.steps.len(), false),
        };
        self.endpoints.notify(|| notifications::attempt_started(&name, stage, number, worker));
        self.endpoints.progress.started(lease, stage.name(), name, total as u64, shows_bytes);
        self.machine.pool.send(worker, ToWorker::Start(Box::new(task)));
        self.records.evidence.phase_started(worker, self.attempts.running.len() == 1);
        Ok(())
    }

    pub(super) fn attempt_ended(
        &mut self,
        lease: LeaseId,
        order: Order,
        ended: AttemptEnd,
    ) -> Result<(), RunError> {
        self.endpoints.progress.ended(lease);
        let Some(attempt) = self.attempts.running.remove(&lease) else { return Ok(()) };
        let (source, index) = self.source_of(order.unit)?;
        let (stage, name) = (order.stage, source.name(&self.agenda, index));
        let took = attempt.started.elapsed();
        let ms = Some(took.as_secs_f64() * 1e3);
        let number = attempt.number;
        let end = match ended {
            AttemptEnd::Accepted(report) => {
                let (status, detail) = (report.head.status, Some(report.head.detail.clone()));
                StoredEnd { status, blame: report.head.blame(), detail, ms, report: Some(*report) }
            }
            AttemptEnd::Retried { why, blame } | AttemptEnd::GivenUp { why, blame } => {
                let stage = stage.name();
                tracing::warn!("{name}: attempt {number} of stage `{stage}` ended without a result: {why}");
                without_report(blame, why, ms)
            }
            // If the supervisor is killed, the resumed run gives the same status and blame to the attempts that were
            // left open.
            AttemptEnd::Abandoned { why } => without_report(Blame::Host, why, ms),
        };
        let (status, detail) = (end.status, end.detail.clone());
        self.endpoints.metrics.attempt_ended(stage.name(), status.name(), took);
        source.attempt_ended(self, index, &EndedAttempt { order, number, took }, end)?;
        self.endpoints.notify(|| notifications::attempt_ended(&name, stage, number, status, detail, ms));
        Ok(())
    }
}

fn without_report(blame: Blame, why: String, ms: Option<f64>) -> StoredEnd {
    StoredEnd { status: Status::InfraError, blame: Some(blame), detail: Some(why), ms, report: None }
}
