//! Carries out the core's actions and writes down what they mean.

use opt_shared::batch::{Share, batches, input_bytes};
use opt_shared::causes::chain;
use opt_shared::ids::{CandidateId, LeaseId, WorkerId};
use opt_shared::message::{EntryRef, KillReason, Role, ToWorker, Work};
use opt_shared::units::Bytes;

use super::Run;
use super::attempts::RunningAttempt;
use crate::core::event::{Action, Event, Order, PhaseRow, PolicyRow, Stage, WorkerEndClass};
use crate::core::recycle::RecycleReason;
use crate::driver::RunError;
use crate::driver::answer::notifications;
use crate::record::UtcTime;
use crate::store::{AttemptKey, AttemptRow, ProcessKind, WorkerEnd, WorkerRow};

/// More batches than this are counted, not named.
const NAMED_BATCHES: usize = 8;

impl Run<'_> {
    pub(super) fn carry_out(&mut self, action: Action) -> Result<(), RunError> {
        match action {
            Action::StartWorker { worker, role } => self.start_worker(worker, role),
            Action::Start {
                worker, lease, order: order @ Order::Replay { .. }, attempt, reserved, ..
            } => self.start_replay(worker, lease, order, attempt, reserved),
            Action::Start { worker, lease, order, attempt, reserved, batch } => {
                self.start(worker, lease, order, attempt, reserved, batch)
            }
            Action::Shutdown { worker } => {
                self.machine.pool.send(worker, ToWorker::Shutdown);
                Ok(())
            }
            Action::KillWorker { worker, reason } => {
                self.intend(ProcessKind::Worker, worker, reason)?;
                self.machine.pool.kill_worker(worker);
                Ok(())
            }
            Action::AllowRunner { worker, pid } => {
                if let Err(why) = self.machine.leaves.enclose(worker, pid) {
                    self.machine.lose_the_leaves(why);
                    self.books.store.host(&self.machine.record())?;
                }
                self.machine.pool.send(worker, ToWorker::RunnerWatched { pid });
                Ok(())
            }
            Action::KillRunner { worker, pid, reason } => {
                self.intend(ProcessKind::Runner, worker, reason)?;
                self.machine.pool.kill_runner(worker, pid);
                self.machine.leaves.kill(worker, pid);
                Ok(())
            }
            Action::MayReap { worker, pid, killed, peak_owed } => {
                self.machine.pool.forget_runner(worker, pid);
                let killed = match killed {
                    None => self.group_evidence(worker, pid, peak_owed)?,
                    ordered => ordered,
                };
                self.machine.leaves.forget(worker, pid);
                self.machine.pool.send(worker, ToWorker::MayReap { pid, killed, peak_owed });
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
            Action::JobDone { .. } if self.agenda.replays.has_begun() => Ok(()),
            Action::JobDone { job, baseline_failed } => self.job_done(job, baseline_failed),
            Action::WorkerEnded { worker, class, recycled, leases, peak_owed } => {
                self.worker_ended(worker, class, recycled, leases, peak_owed)
            }
            Action::Policy(row) => self.policy(&row),
            Action::PhaseEnded(row) => self.phase_ended(&row),
            Action::Answered(answer) => {
                self.decisions.answer = Some(answer);
                Ok(())
            }
            Action::Stop { reason } => {
                self.decisions.stop = Some(reason);
                Ok(())
            }
        }
    }

    fn intend(&mut self, process: ProcessKind, worker: WorkerId, reason: KillReason) -> Result<(), RunError> {
        let lease = self.decisions.core.lease_of(worker);
        self.books.store.kill_intended(UtcTime::now(), process, worker, lease, reason)?;
        Ok(())
    }

    /// A death that nobody ordered: what its control group says of it.
    fn group_evidence(
        &mut self,
        worker: WorkerId,
        pid: u32,
        peak_owed: Bytes,
    ) -> Result<Option<KillReason>, RunError> {
        let Some((limit, events)) = self.machine.leaves.evidence(worker, pid) else { return Ok(None) };
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
        let started = self.machine.start_worker(worker, role);
        let pid = started.as_ref().copied().unwrap_or(0);
        self.books.store.worker_started(&WorkerRow { id: worker, role, pid, started: UtcTime::now() })?;
        match started {
            Ok(pid) => self.desk.tell(|| notifications::worker_started(worker, role, pid)),
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
        peak_owed: Bytes,
    ) -> Result<(), RunError> {
        self.machine.worker_ended(worker);
        self.desk.metrics.worker_ended(class.name(), recycled.map(RecycleReason::name));
        self.desk.tell(|| notifications::worker_ended(worker, class, recycled));
        self.books.store.worker_ended(
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
        let before = self.agenda.known[candidate.index()].numbered.get(&order.stage()).copied().unwrap_or(0);
        let number = before + attempt;
        let key = AttemptKey { candidate, stage: order.stage(), number };
        self.books.store.attempt_started(&AttemptRow {
            key,
            worker: Some(worker),
            lease: Some(lease),
            predicted: Some(reserved),
            started: UtcTime::now(),
        })?;
        self.desk.metrics.granted(order.stage().name());
        self.attempts.running.insert(lease, RunningAttempt::new(number));
        let Some(task) = self.agenda.task(lease, order, batch) else {
            return Err(RunError::Law { law: format!("{order:?} was granted before its parts were there") });
        };
        self.say_batches(candidate, &task.work)?;
        let name = self.agenda.full_name(candidate);
        tracing::debug!(%worker, %lease, candidate = name, stage = order.stage().name(), "attempt");
        let (total, shows_bytes) = match &task.work {
            Work::Build(_) => (0, false),
            Work::Verify(verify) => (verify.entries.len(), true),
            Work::Profile(profile) => (profile.entries.len(), false),
            Work::Replay(replay) => (replay.steps.len(), false),
        };
        self.desk.tell(|| notifications::attempt_started(&name, order.stage(), number, worker));
        self.desk.progress.started(lease, order.stage().name(), name, total as u64, shows_bytes);
        self.machine.pool.send(worker, ToWorker::Start(Box::new(task)));
        self.books.evidence.phase_started(worker, self.attempts.running.len() == 1);
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

    /// Into the record, and to those who listen.
    pub(crate) fn policy(&mut self, row: &PolicyRow) -> Result<(), RunError> {
        let t = UtcTime::now();
        let numbers = self.books.policy(t, row)?;
        let agenda = &self.agenda;
        self.desk.tell(|| {
            let names = agenda.names_in(&numbers);
            notifications::policy(t, row, numbers, names)
        });
        Ok(())
    }

    fn phase_ended(&mut self, row: &PhaseRow) -> Result<(), RunError> {
        self.machine.sampler.predicted(row.predicted);
        match row.order.stage() {
            Stage::Replay => self.replay_phase_ended(row),
            Stage::Build | Stage::Verify | Stage::Profile => self.books.phase(row),
        }
    }
}
