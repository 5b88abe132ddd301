//! Carries out the core's actions and records them.

use opt_shared::causes::chain;
use opt_shared::ids::WorkerId;
use opt_shared::message::{KillReason, Role, ToWorker};
use opt_shared::units::Bytes;

use super::Run;
use super::leaves::MayBegin;
use super::supply::{Grant, Subject, UnitEnd};
use crate::core::event::{Action, Event, PhaseRow, PolicyRow, WorkerEndClass};
use crate::core::recycle::RecycleReason;
use crate::driver::RunError;
use crate::driver::answer::notifications;
use crate::driver::folder::writer::FollowUp;
use crate::record::UtcTime;
use crate::store::{ProcessKind, WorkerEnd, WorkerRow};

impl Run<'_> {
    pub(super) fn carry_out(&mut self, action: Action) -> Result<(), RunError> {
        match action {
            Action::StartWorker { worker, role } => self.start_worker(worker, role),
            Action::Wanted { job, capacity } => self.wanted(job, capacity),
            Action::Start { worker, lease, order, attempt, reserved, batch, device_cap, share } => {
                self.start(&Grant { worker, lease, order, attempt, reserved, batch, device_cap, share })
            }
            Action::Shutdown { worker } => {
                self.machine.pool.send(worker, ToWorker::Shutdown);
                Ok(())
            }
            Action::KillWorker { worker, reason } => {
                self.machine.pool.halt_worker(worker);
                self.record_intended_kill(ProcessKind::Worker, worker, reason, FollowUp::KillWorker(worker));
                Ok(())
            }
            Action::AllowRunner { worker, pid } => {
                if self.machine.leaves.enclose(worker, pid) == MayBegin::Now {
                    self.machine.pool.send(worker, ToWorker::RunnerWatched { pid });
                }
                Ok(())
            }
            Action::KillRunner { worker, pid, reason } => {
                self.machine.halt_runner(worker, pid);
                let follow_up = FollowUp::KillRunner(worker, pid);
                self.record_intended_kill(ProcessKind::Runner, worker, reason, follow_up);
                Ok(())
            }
            Action::MayReap { worker, pid, killed, peak_owed } => {
                self.machine.pool.forget_runner(worker, pid);
                let killed = match killed {
                    None => self.group_evidence(worker, pid, peak_owed)?,
                    ordered => ordered,
                };
                let tasks_refused = self.machine.leaves.were_tasks_refused(worker, pid);
                self.machine.leaves.forget(worker, pid);
                self.machine.pool.send(worker, ToWorker::MayReap { pid, killed, tasks_refused, peak_owed });
                Ok(())
            }
            Action::AttemptEnded { lease, order, attempt: _, ended } => {
                self.attempt_ended(lease, order, ended)
            }
            Action::UnitDone { unit, status, blame, detail } => {
                let (source, index) = self.source_of(unit)?;
                source.done(self, index, UnitEnd { status, blame, detail })
            }
            Action::BaselineLost { baseline } => {
                if let Some(Subject::Candidate(id)) = self.agenda.units.subject(baseline) {
                    self.records.writer.write(move |store| store.failed_beside(id));
                }
                Ok(())
            }
            Action::JobDone { job, baseline_failed } => self.job_done(job, baseline_failed),
            Action::WorkerEnded { worker, class, recycled, leases, peak_owed, peak_device } => {
                self.worker_ended(worker, class, recycled, leases, (peak_owed, peak_device))
            }
            Action::Policy(row) => {
                // The user must be told, because the whole run may be waiting.
                if matches!(row.decision, "room_short" | "room_back" | "idle_wait") {
                    tracing::warn!("{}", row.reason);
                }
                self.policy(&row);
                Ok(())
            }
            Action::PhaseEnded(row) => self.phase_ended(&row),
            Action::Answered(answer) => {
                self.decisions.answer = Some(answer);
                Ok(())
            }
            Action::Replied(reply) => {
                self.decisions.offer_answer = Some(reply);
                Ok(())
            }
            Action::Stop { reason } => {
                self.decisions.stop = Some(reason);
                Ok(())
            }
        }
    }

    /// Records why a process will be killed. The signal is sent once the row is on disk. Until then the process is
    /// stopped, so that it takes no more memory even if the disk is slow.
    fn record_intended_kill(
        &mut self,
        process: ProcessKind,
        worker: WorkerId,
        reason: KillReason,
        then: FollowUp,
    ) {
        let (t, lease) = (UtcTime::now(), self.decisions.core.lease_of(worker));
        let mut then = Some(then);
        self.records.writer.write_then(move |store| {
            store.kill_intended(t, process, worker, lease, reason)?;
            Ok(then.take().unwrap_or(FollowUp::Nothing))
        });
    }

    pub(crate) fn write_host(&mut self) {
        let host = self.machine.record();
        self.records.writer.write(move |store| store.host(&host));
    }

    /// Lets runners begin once their moves into control groups have ended, whether these succeeded or not. If a move
    /// failed, no further control groups are used.
    pub(super) fn let_moved_runners_begin(&mut self) {
        for ((worker, pid), moved) in self.machine.leaves.moved() {
            if let Err(why) = moved {
                self.machine.give_up_leaves(why);
                self.write_host();
            }
            self.machine.pool.send(worker, ToWorker::RunnerWatched { pid });
        }
    }

    /// Checks the control group of a dead runner. If Linux killed the runner at the group's limit, records that
    /// and returns the reason.
    fn group_evidence(
        &mut self,
        worker: WorkerId,
        pid: u32,
        peak_owed: Bytes,
    ) -> Result<Option<KillReason>, RunError> {
        let Some((limit, events)) = self.machine.leaves.evidence(worker, pid) else { return Ok(None) };
        self.policy(&PolicyRow {
            decision: "group_memory",
            reason: "Linux killed a runner at the limit of its control group".to_owned(),
            numbers: vec![
                ("worker", u64::from(worker.0)),
                ("limit_bytes", limit.get()),
                ("sampled_peak_bytes", peak_owed.get()),
                ("oom_kill", events.oom_kill),
                ("at_limit", events.at_limit),
            ],
        });
        Ok(Some(KillReason::GroupMemory { limit }))
    }

    fn start_worker(&mut self, worker: WorkerId, role: Role) -> Result<(), RunError> {
        // The time is read before the process is started, so that it includes the start, as `ready_ms` does.
        let at = UtcTime::now();
        let started = self.machine.start_worker(worker, role);
        let pid = started.as_ref().copied().unwrap_or(0);
        let row = WorkerRow { id: worker, role, pid, started: at };
        self.records.writer.write(move |store| store.worker_started(&row));
        match started {
            Ok(pid) => self.endpoints.notify(|| notifications::worker_started(worker, role, pid)),
            Err(error) => {
                let why = chain(&error);
                self.decisions.raise(Event::WorkerNotReady { worker, why, alive: false });
            }
        }
        Ok(())
    }

    fn worker_ended(
        &mut self,
        worker: WorkerId,
        class: WorkerEndClass,
        recycled: Option<RecycleReason>,
        leases: u32,
        (peak_owed, peak_device): (Bytes, Option<Bytes>),
    ) -> Result<(), RunError> {
        self.machine.worker_ended(worker);
        self.endpoints.metrics.worker_ended(class.name(), recycled.map(RecycleReason::name));
        self.endpoints.notify(|| notifications::worker_ended(worker, class, recycled));
        let end = WorkerEnd {
            ended: UtcTime::now(),
            class: class.name().to_owned(),
            recycled_because: recycled.map(|reason| reason.name().to_owned()),
            leases,
            peak_owed: Some(peak_owed),
            peak_device,
        };
        self.records.writer.write(move |store| store.worker_ended(worker, &end));
        Ok(())
    }

    /// Records a decision and sends it to subscribers.
    pub(crate) fn policy(&mut self, row: &PolicyRow) {
        let t = UtcTime::now();
        let row = self.agenda.units.with_plan_numbers(row);
        let numbers = self.records.policy(t, &row);
        let agenda = &self.agenda;
        self.endpoints.notify(|| {
            let names = agenda.names_in(&numbers);
            notifications::policy(t, &row, numbers, names)
        });
    }

    fn phase_ended(&mut self, row: &PhaseRow) -> Result<(), RunError> {
        // The supervisor's own memory is added, because the peak is that of the whole process tree.
        let supervisor = self.decisions.core.reserved_for_supervisor();
        self.machine.sampler.raise_predicted_peak(row.predicted + supervisor);
        let (source, index) = self.source_of(row.order.unit)?;
        source.phase_ended(self, index, row)
    }
}
