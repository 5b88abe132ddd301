//! What is started next: the one place that grants leases, starts workers and recycles them.

use opt_shared::ids::{JobId, LeaseId, WorkerId};
use opt_shared::message::Role;
use opt_shared::outcome::{Blame, Status};

use super::event::{Action, Moment, Order, Stage, StopReason};
use super::job::{Next, Progress, next};
use super::ledger::Refusal;
use super::recycle::{self, RecycleReason};
use super::worker::{Lease, Recycled, State};
use super::{Core, DRAIN_DEADLINE, Ending};

impl Core {
    /// Goes as far as it can: closes jobs, grants what fits, starts what is missing, ends what is over.
    pub(super) fn advance(&mut self, now: Moment) {
        match self.ending.clone() {
            Ending::No => {
                if !self.advance_jobs(now) {
                    self.wind_down(now, StopReason::Finished);
                }
            }
            Ending::Drain(reason) => self.wind_down(now, reason),
            Ending::Kill(reason) => {
                if self.workers.is_empty() {
                    self.stop(reason);
                }
            }
            Ending::Stopped => {}
        }
    }

    /// False when no job wants anything any more.
    fn advance_jobs(&mut self, now: Moment) -> bool {
        for index in 0..self.spec.jobs.len() {
            if self.job_done[index] {
                continue;
            }
            self.refuse_what_never_fits(index);
            match next(&self.spec.jobs[index], &self.candidates) {
                Next::Order { order, attempt } => {
                    self.try_order(now, order, attempt);
                    return true;
                }
                Next::Wait => return true,
                Next::Done => {
                    self.job_done[index] = true;
                    let job = &self.spec.jobs[index];
                    let baseline_failed =
                        job.baseline.is_some_and(|id| !self.candidates[id.index()].may_profile);
                    let id = job.id;
                    self.actions.push(Action::JobDone { job: id, baseline_failed });
                }
            }
        }
        false
    }

    /// Before anything of a job starts: what is broken or could not be granted on an empty machine.
    fn refuse_what_never_fits(&mut self, index: usize) {
        let job = &self.spec.jobs[index];
        let untouched = |core: &Self, id: opt_shared::ids::CandidateId| {
            core.candidates[id.index()].progress == Progress::Waiting { stage: Stage::Build, attempt: 1 }
        };
        if let Some(broken) = job.broken.clone() {
            for id in job.candidates.clone() {
                if untouched(self, id) {
                    self.candidate_done(id, Status::CaptureError, Some(Blame::Capture), broken.clone());
                }
            }
            return;
        }
        for id in job.candidates.clone() {
            if !untouched(self, id) {
                continue;
            }
            let spec = &self.spec.candidates[id.index()];
            let mut stages = vec![Stage::Build];
            stages.extend(self.spec.verify.then_some(Stage::Verify));
            stages.extend(self.spec.profile.then_some(Stage::Profile));
            let too_large = stages
                .into_iter()
                .map(|stage| (stage, spec.stage(stage).reserved + self.spec.idle_worker))
                .find(|&(_, reserved)| !self.ledger.could_ever_fit(reserved));
            if let Some((stage, reserved)) = too_large {
                let detail = format!(
                    "its {} needs {reserved}, the ceiling is {} ([memory] host_ceiling)",
                    stage.name(),
                    self.ledger.ceiling()
                );
                self.policy(
                    "does_not_fit",
                    detail.clone(),
                    vec![("reserved_bytes", reserved.get()), ("ceiling_bytes", self.ledger.ceiling().get())],
                );
                self.candidate_done(id, Status::DoesNotFit, Some(Blame::Plan), detail);
            }
        }
    }

    fn try_order(&mut self, now: Moment, order: Order, attempt: u32) {
        let role = match order.stage() {
            Stage::Build | Stage::Verify => Role::Verifier,
            Stage::Profile => Role::Profiler,
        };
        if order.stage() == Stage::Profile && self.recycle_before_profile(now, order) {
            return;
        }
        let idle: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(_, it)| it.role == role && it.is_idle())
            .map(|(&id, _)| id)
            .collect();
        let Some(&worker) = idle.first() else {
            let coming = self
                .workers
                .values()
                .any(|it| it.role == role && matches!(it.state, State::Starting { .. } | State::Leased(_)));
            if !coming {
                self.start_worker(now, role);
            }
            return;
        };
        let job = self.spec.candidates[order.candidate().index()].job;
        if let Some(reason) = self.worn_out(now, worker, job) {
            self.recycle(now, worker, reason);
            return;
        }
        let stage = *self.spec.candidates[order.candidate().index()].stage(order.stage());
        let reserved = stage.reserved + self.spec.idle_worker;
        match self.ledger.grant(worker, reserved) {
            Ok(()) => {}
            Err(refusal) => {
                self.refused(now, worker, refusal);
                return;
            }
        }
        let lease = LeaseId(self.next_lease);
        self.next_lease += 1;
        self.candidates[order.candidate().index()].progress =
            Progress::Running { stage: order.stage(), attempt };
        if let Some(it) = self.workers.get_mut(&worker) {
            it.leases += 1;
            let owed = it.tree_owed();
            it.state = State::Leased(Lease {
                id: lease,
                order,
                attempt,
                started: now,
                deadline: now + stage.deadline,
                peak_owed: owed,
                peak_reclaimable: opt_shared::units::Bytes::ZERO,
            });
        }
        self.actions.push(Action::Start { worker, lease, order, attempt, reserved });
    }

    fn worn_out(&self, now: Moment, worker: WorkerId, job: JobId) -> Option<RecycleReason> {
        let settings = &self.spec.jobs[job.index()].recycle;
        let it = self.workers.get(&worker)?;
        recycle::from_wear(settings, &it.wear(now))
    }

    /// Law 4. True while a verifier that validated much has yet to be gone.
    fn recycle_before_profile(&mut self, now: Moment, order: Order) -> bool {
        let job = self.spec.candidates[order.candidate().index()].job;
        let settings = self.spec.jobs[job.index()].recycle.clone();
        let mut waiting = false;
        let verifiers: Vec<WorkerId> =
            self.workers.iter().filter(|(_, it)| it.role == Role::Verifier).map(|(&id, _)| id).collect();
        for worker in verifiers {
            let Some(it) = self.workers.get(&worker) else { continue };
            match &it.state {
                State::Idle => {
                    if let Some(reason) = recycle::before_profile(&settings, &it.wear(now)) {
                        self.recycle(now, worker, reason);
                        waiting = true;
                    }
                }
                State::Draining { .. } | State::Terminating => waiting = true,
                State::Starting { .. } | State::Leased(_) => {}
            }
        }
        waiting
    }

    fn recycle(&mut self, now: Moment, worker: WorkerId, reason: RecycleReason) {
        let owed_before = self.ledger.owed();
        let Some(it) = self.workers.get_mut(&worker) else { return };
        it.recycled = Some(Recycled { reason, since: now, owed_before });
        it.state = State::Draining { deadline: now + DRAIN_DEADLINE };
        let numbers = vec![
            ("worker", u64::from(worker.0)),
            ("leases", u64::from(it.leases)),
            ("owed_bytes", it.tree_owed().get()),
            ("validated_bytes", it.validated.get()),
        ];
        let text = format!("{} {worker}: {}", it.role.name(), reason.name());
        self.policy("recycle", text, numbers);
        self.actions.push(Action::Shutdown { worker });
    }

    /// A lease that does not fit now. An idle worker of the other role may be what stands in the way.
    fn refused(&mut self, now: Moment, worker: WorkerId, refusal: Refusal) {
        let next = LeaseId(self.next_lease);
        if self.refused != Some(next) {
            self.refused = Some(next);
            let (reason, numbers) = match refusal {
                Refusal::Ceiling { charged, wanted, ceiling } => (
                    "the lease does not fit under the ceiling now",
                    vec![
                        ("charged_bytes", charged.get()),
                        ("wanted_bytes", wanted.get()),
                        ("ceiling_bytes", ceiling.get()),
                    ],
                ),
                Refusal::Floor { available, wanted, floor } => (
                    "the machine would fall below its floor",
                    vec![
                        ("available_bytes", available.get()),
                        ("wanted_bytes", wanted.get()),
                        ("floor_bytes", floor.get()),
                    ],
                ),
            };
            self.policy("wait", reason.to_owned(), numbers);
        }
        let others: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|&(&id, it)| id != worker && it.is_idle())
            .map(|(&id, _)| id)
            .collect();
        if let Some(&other) = others.first() {
            self.recycle(now, other, RecycleReason::Growth);
        }
    }

    /// No grants any more: idle workers are told to end, then the run stops.
    fn wind_down(&mut self, now: Moment, reason: StopReason) {
        if self.workers.is_empty() {
            self.stop(reason);
            return;
        }
        let idle: Vec<WorkerId> =
            self.workers.iter().filter(|(_, it)| it.is_idle()).map(|(&id, _)| id).collect();
        for worker in idle {
            if let Some(it) = self.workers.get_mut(&worker) {
                it.state = State::Draining { deadline: now + DRAIN_DEADLINE };
            }
            self.actions.push(Action::Shutdown { worker });
        }
    }

    fn stop(&mut self, reason: StopReason) {
        self.ending = Ending::Stopped;
        self.actions.push(Action::Stop { reason });
    }
}
