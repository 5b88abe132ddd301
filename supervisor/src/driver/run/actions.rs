//! Carries out the core's actions, in order, and writes down what they mean.

use std::time::{Duration, Instant};

use opt_shared::batch::{Share, batches, input_bytes};
use opt_shared::ids::{CandidateId, LeaseId, WorkerId};
use opt_shared::message::{EntryRef, KillReason, Role, ToWorker, Work};
use opt_shared::outcome::{Blame, Body, Report, Status};
use opt_shared::units::Bytes;

use crate::core::event::{Action, AttemptEnd, Event, Order, PhaseRow, PolicyRow, Stage};
use crate::core::recycle::RecycleReason;
use crate::driver::answer::notifications;
use crate::driver::folder::ranking::Standing;
use crate::driver::folder::reads;
use crate::driver::{Run, RunError};
use crate::record::{Numbers, UtcTime};
use crate::store::{
    AttemptEnd as StoredEnd, AttemptKey, AttemptRow, CandidateEnd, PhaseRow as StoredPhase, ProcessKind,
    WorkerEnd, WorkerRow,
};

/// The summary is rewritten at most this often while the run goes on, and takes at most one part in so many of the time:
/// that of thousands of candidates is tens of MB.
const SUMMARY_EVERY: Duration = Duration::from_secs(1);
const SUMMARY_SHARE: u32 = 20;
/// More batches than this are counted, not named.
const NAMED_BATCHES: usize = 8;

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

impl Run<'_> {
    pub(crate) fn carry_out(&mut self, action: Action) -> Result<(), RunError> {
        match action {
            Action::StartWorker { worker, role } => self.start_worker(worker, role),
            Action::Start {
                worker, lease, order: order @ Order::Replay { .. }, attempt, reserved, ..
            } => self.start_replay(worker, lease, order, attempt, reserved),
            Action::Start { worker, lease, order, attempt, reserved, batch } => {
                self.start(worker, lease, order, attempt, reserved, batch)
            }
            Action::Shutdown { worker } => {
                self.pool.send(worker, ToWorker::Shutdown);
                Ok(())
            }
            Action::KillWorker { worker, reason } => {
                self.intend(ProcessKind::Worker, worker, reason)?;
                self.pool.kill_worker(worker);
                Ok(())
            }
            Action::AllowRunner { worker, pid } => {
                if let Err(why) = self.leaves.enclose(worker, pid) {
                    self.lose_the_leaves(why)?;
                }
                self.pool.send(worker, ToWorker::RunnerWatched { pid });
                Ok(())
            }
            Action::KillRunner { worker, pid, reason } => {
                self.intend(ProcessKind::Runner, worker, reason)?;
                self.pool.kill_runner(worker, pid);
                self.leaves.kill(worker, pid);
                Ok(())
            }
            Action::MayReap { worker, pid, killed, peak_owed } => {
                self.pool.forget_runner(worker, pid);
                let killed = match killed {
                    None => self.group_evidence(worker, pid, peak_owed)?,
                    ordered => ordered,
                };
                self.leaves.forget(worker, pid);
                self.pool.send(worker, ToWorker::MayReap { pid, killed, peak_owed });
                Ok(())
            }
            Action::AttemptEnded { lease, order: order @ Order::Replay { .. }, ended, .. } => {
                self.replay_attempt_ended(lease, order, ended)
            }
            Action::AttemptEnded { lease, order, attempt: _, ended } => {
                self.attempt_ended(lease, order, ended)
            }
            Action::CandidateDone { candidate, status, blame, detail } => {
                if self.replay_candidate_done(candidate, status, blame, &detail)? {
                    return Ok(());
                }
                self.candidate_done(candidate, status, blame, detail)
            }
            // Those of the plan were done before the replays began.
            Action::JobDone { .. } if self.replaying.has_begun() => Ok(()),
            Action::JobDone { job, baseline_failed } => self.job_done(job, baseline_failed),
            Action::WorkerEnded { worker, class, recycled, leases, peak_owed } => {
                self.worker_started.remove(&worker);
                self.metrics.worker_ended(class.name(), recycled.map(RecycleReason::name));
                self.tell(|| notifications::worker_ended(worker, class, recycled));
                self.store.worker_ended(
                    worker,
                    &WorkerEnd {
                        ended: UtcTime::now(),
                        class: class.name().to_owned(),
                        recycled_because: recycled.map(|reason| reason.name().to_owned()),
                        leases,
                        peak_owed: Some(peak_owed),
                    },
                )?;
                Ok(())
            }
            Action::Policy(row) => self.policy(&row),
            Action::PhaseEnded(row) if row.order.stage() == Stage::Replay => self.replay_phase_ended(&row),
            Action::PhaseEnded(row) => self.phase_ended(&row),
            Action::Answered(answer) => {
                self.answered = Some(answer);
                Ok(())
            }
            Action::Stop { reason } => {
                self.stop = Some(reason);
                Ok(())
            }
        }
    }

    fn intend(&mut self, process: ProcessKind, worker: WorkerId, reason: KillReason) -> Result<(), RunError> {
        let lease = self.core.lease_of(worker);
        self.store.kill_intended(UtcTime::now(), process, worker, lease, reason)?;
        Ok(())
    }

    /// A death that nobody ordered: what its control group says of it.
    fn group_evidence(
        &mut self,
        worker: WorkerId,
        pid: u32,
        peak_owed: Bytes,
    ) -> Result<Option<KillReason>, RunError> {
        let Some((limit, events)) = self.leaves.evidence(worker, pid) else { return Ok(None) };
        self.policy(&PolicyRow {
            decision: "group_memory",
            reason: "the kernel ended a runner at the limit of its control group".to_owned(),
            numbers: vec![
                ("worker", u64::from(worker.0)),
                ("limit_bytes", limit.get()),
                ("sampled_peak_bytes", peak_owed.get()),
                ("oom_kill", events.oom_kill),
                ("max", events.max),
            ],
        })?;
        Ok(Some(KillReason::GroupMemory { limit }))
    }

    fn start_worker(&mut self, worker: WorkerId, role: Role) -> Result<(), RunError> {
        self.worker_started.insert(worker, Instant::now());
        match self.pool.start(worker, role) {
            Ok(pid) => {
                self.store.worker_started(&WorkerRow { id: worker, role, pid, started: UtcTime::now() })?;
                self.tell(|| notifications::worker_started(worker, role, pid));
                Ok(())
            }
            Err(error) => {
                let why = opt_shared::causes::chain(&error);
                self.store.worker_started(&WorkerRow {
                    id: worker,
                    role,
                    pid: 0,
                    started: UtcTime::now(),
                })?;
                self.feed(Event::WorkerNotReady { worker, why, alive: false })
            }
        }
    }

    fn start(
        &mut self,
        worker: WorkerId,
        lease: LeaseId,
        order: Order,
        attempt: u32,
        reserved: Bytes,
        batch: Option<Bytes>,
    ) -> Result<(), RunError> {
        let candidate = order.candidate();
        let before = self.known[candidate.index()].numbered.get(&order.stage()).copied().unwrap_or(0);
        let number = before + attempt;
        let key = AttemptKey { candidate, stage: order.stage(), number };
        self.store.attempt_started(&AttemptRow {
            key,
            worker: Some(worker),
            lease: Some(lease),
            predicted: Some(reserved),
            started: UtcTime::now(),
        })?;
        self.metrics.granted(order.stage().name());
        self.attempts.insert(lease, RunningAttempt::new(number));
        let Some(task) = self.tasks().task(lease, order, batch) else {
            return Err(RunError::Law { law: format!("{order:?} was granted before its parts were there") });
        };
        self.say_batches(candidate, &task.work)?;
        let name = self.full_name(candidate);
        tracing::debug!(%worker, %lease, candidate = name, stage = order.stage().name(), "attempt");
        let (total, shows_bytes) = match &task.work {
            Work::Build(_) => (0, false),
            Work::Verify(verify) => (verify.entries.len(), true),
            Work::Profile(profile) => (profile.entries.len(), false),
            Work::Replay(replay) => (replay.steps.len(), false),
        };
        self.tell(|| notifications::attempt_started(&name, order.stage(), number, worker));
        self.progress.started(lease, order.stage().name(), name, total as u64, shows_bytes);
        self.pool.send(worker, ToWorker::Start(Box::new(task)));
        self.evidence.phase_started(worker, self.attempts.len() == 1);
        Ok(())
    }

    /// Which entries are timed together: the core knows sizes, not names.
    fn say_batches(&mut self, candidate: CandidateId, work: &Work) -> Result<(), RunError> {
        let Work::Profile(task) = work else { return Ok(()) };
        let shares: Vec<Share<'_>> = task.entries.iter().map(EntryRef::share).collect();
        let batches = batches(&shares, task.profile.batch_bytes);
        let largest = batches.iter().map(|range| input_bytes(&shares[range.clone()])).max();
        let named: Vec<String> = batches
            .iter()
            .take(NAMED_BATCHES)
            .map(|range| match &task.entries[range.clone()] {
                [one] => one.name.clone(),
                [first, .., last] => format!("{} … {} ({})", first.name, last.name, range.len()),
                [] => String::new(),
            })
            .collect();
        let more = batches.len().saturating_sub(NAMED_BATCHES);
        let more = if more == 0 { String::new() } else { format!("; and {more} more") };
        self.policy(&PolicyRow {
            decision: "batches",
            reason: format!("timed together: {}{more}", named.join("; ")),
            numbers: vec![
                ("candidate", u64::from(candidate.0)),
                ("batches", batches.len() as u64),
                ("largest_bytes", largest.unwrap_or_default().get()),
                ("batch_bytes", task.profile.batch_bytes.get()),
            ],
        })
    }

    /// JOB/CANDIDATE, as `--only` takes it.
    pub(crate) fn full_name(&self, candidate: CandidateId) -> String {
        let plan = &self.plan;
        let Some(candidate) = plan.candidate(candidate) else {
            return self.replay_name(candidate).unwrap_or_else(|| candidate.to_string());
        };
        let job = plan.job(candidate.job).map_or("", |job| job.name.as_str());
        format!("{job}/{}", candidate.name)
    }

    fn attempt_ended(&mut self, lease: LeaseId, order: Order, ended: AttemptEnd) -> Result<(), RunError> {
        self.progress.ended(lease);
        let Some(attempt) = self.attempts.remove(&lease) else { return Ok(()) };
        let candidate = order.candidate();
        let key = AttemptKey { candidate, stage: order.stage(), number: attempt.number };
        let ms = Some(attempt.started.elapsed().as_secs_f64() * 1e3);
        let end = match ended {
            AttemptEnd::Stands(report) => {
                self.learn(candidate, &report);
                if let Some(row) = reads::policy_row(candidate, &report) {
                    self.policy(&row)?;
                }
                let (status, detail) = (report.head.status, report.head.detail.clone());
                self.last_report = Some((candidate, order.stage(), (*report).clone()));
                self.foresee(candidate, order.stage(), status, attempt.started.elapsed());
                StoredEnd { status, blame: status.blame(), detail: Some(detail), ms, report: Some(*report) }
            }
            AttemptEnd::Retried { why, blame } | AttemptEnd::GivenUp { why, blame } => {
                self.last_report = None;
                let (stage, name) = (order.stage().name(), self.full_name(candidate));
                tracing::warn!(
                    "the {stage} of {name} (attempt {}) ended without a result: {why}",
                    attempt.number
                );
                StoredEnd {
                    status: Status::InfraError,
                    blame: Some(blame),
                    detail: Some(why),
                    ms,
                    report: None,
                }
            }
            // What a killed supervisor leaves is closed with the same words on resuming.
            AttemptEnd::Abandoned { why } => {
                self.last_report = None;
                StoredEnd {
                    status: Status::InfraError,
                    blame: Some(Blame::Host),
                    detail: Some(why),
                    ms,
                    report: None,
                }
            }
        };
        let told = (self.full_name(candidate), order.stage(), attempt.number, end.status, end.detail.clone());
        self.metrics.attempt_ended(order.stage().name(), end.status.name(), attempt.started.elapsed());
        self.store.attempt_finished(key, end)?;
        self.tell(|| notifications::attempt_ended(told, ms));
        Ok(())
    }

    fn learn(&mut self, candidate: CandidateId, report: &Report) {
        let known = &mut self.known[candidate.index()];
        match &report.body {
            Body::Build(built) => known.artifact.clone_from(&built.artifact),
            Body::Verify(verified) => known.unsupported.clone_from(&verified.unsupported),
            Body::Profile(profiled) if report.head.status == Status::Passed => {
                known.profile = Some(Standing::of(&profiled.entries));
            }
            Body::Profile(_) | Body::Replay(_) => {}
        }
    }

    fn candidate_done(
        &mut self,
        candidate: CandidateId,
        status: Status,
        blame: Option<Blame>,
        detail: String,
    ) -> Result<(), RunError> {
        self.known[candidate.index()].status = Some(status);
        // One that was cancelled, or never fitted, ends without an attempt of its own.
        let last = self.last_report.take().filter(|(whose, _, _)| *whose == candidate);
        let stage = last.as_ref().map(|(_, stage, _)| *stage);
        let feedback = match (&last, stage) {
            (Some((_, _, report)), Some(stage)) => Some(crate::report::feedback::feedback(stage, report)),
            _ => stage
                .or(Some(Stage::Build))
                .map(|stage| crate::report::feedback::feedback_without_report(stage, status, &detail)),
        };
        self.store.candidate_finished(
            candidate,
            &CandidateEnd {
                status,
                blame,
                failed_stage: stage.filter(|_| status != Status::Passed),
                detail: Some(detail).filter(|detail| !detail.is_empty()),
                feedback,
            },
        )?;
        tracing::info!(candidate = self.full_name(candidate), status = status.name(), "candidate");
        self.metrics.candidate_ended(status.name());
        self.forecast.candidate_ended();
        self.told_of_end(candidate)?;
        self.progress.said(&format!("{:<20} {}", status.name(), self.full_name(candidate)));
        if self.summary_due.is_none_or(|due| due <= Instant::now()) {
            self.write_summary()?;
        }
        Ok(())
    }

    pub(crate) fn write_summary(&mut self) -> Result<(), RunError> {
        let begun = Instant::now();
        self.store.memory(self.sampler.totals)?;
        let document = self.store.document()?;
        crate::report::summary::write_summary(self.folder.path(), &document)?;
        self.summary_due = Some(Instant::now() + SUMMARY_EVERY.max(begun.elapsed() * SUMMARY_SHARE));
        Ok(())
    }

    pub(crate) fn policy(&mut self, row: &PolicyRow) -> Result<(), RunError> {
        let numbers: Numbers =
            row.numbers.iter().map(|&(name, number)| (name.to_owned(), number.into())).collect();
        tracing::debug!(decision = row.decision, reason = row.reason, "policy");
        let t = UtcTime::now();
        self.store.policy(t, row.decision, &row.reason, &numbers)?;
        let names = self.names_in(&numbers);
        self.tell(|| notifications::policy(t, row, numbers, names));
        Ok(())
    }

    fn phase_ended(&mut self, row: &PhaseRow) -> Result<(), RunError> {
        self.sampler.predicted(row.predicted);
        let (started, ended) = span_of(row);
        self.store.phase(&StoredPhase {
            candidate: row.order.candidate(),
            stage: row.order.stage(),
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
}

/// When a phase that has ended just now began and ended, by the clock on the wall.
pub(crate) fn span_of(row: &PhaseRow) -> (UtcTime, UtcTime) {
    let ended = UtcTime::now();
    let took = i64::try_from(row.ended.saturating_sub(row.started).as_millis()).unwrap_or(0);
    (UtcTime::from_millisecond(ended.as_millisecond() - took).unwrap_or(ended), ended)
}
