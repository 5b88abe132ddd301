//! What is started next: the one place that grants leases, starts workers and recycles them.

use opt_shared::ids::{CandidateId, JobId, LeaseId, WorkerId};
use opt_shared::message::{KillReason, Role};
use opt_shared::outcome::{Blame, Status};
use opt_shared::units::Bytes;

use super::event::{Action, Moment, Order, Stage, StopReason};
use super::job::{Next, Progress, next};
use super::ledger::Refusal;
use super::recycle::{self, RecycleReason};
use super::worker::{Lease, State, Told, Worker};
use super::{Core, DRAIN_DEADLINE, Ending, Waiting, role_of};

/// What became of an order.
enum Tried {
    /// It can never be granted, and its candidate is done.
    Refused,
    /// Granted, or waiting for something that is on its way.
    UnderWay,
}

impl Core {
    /// Goes as far as it can: closes jobs, grants what fits, starts what is missing, ends what is over.
    pub(super) fn advance(&mut self, now: Moment) {
        match self.ending.clone() {
            Ending::No if self.is_paused() => self.close_jobs(),
            Ending::No => {
                if !self.advance_jobs(now) && !self.stays_open() {
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
        // What is refused for good may have ended a turn.
        while self.job_done.contains(&false) {
            if self.advance_turn(now) {
                return true;
            }
        }
        false
    }

    fn advance_turn(&mut self, now: Moment) -> bool {
        let turn = self.turn_served();
        let mut index = 0;
        while index < self.spec.jobs.len() {
            if self.job_done[index] {
                index += 1;
                continue;
            }
            self.refuse_what_never_fits(index);
            match next(&self.spec.jobs[index], &self.candidates, |id| self.is_turn(turn, id)) {
                // What was refused for good leaves the next one's turn.
                Next::Order { order, attempt } => match self.try_order(now, order, attempt) {
                    Tried::Refused => {}
                    Tried::UnderWay => return true,
                },
                Next::Wait => return true,
                Next::Later => index += 1,
                Next::Done => self.close_job(index),
            }
        }
        false
    }

    /// What has ended without a grant: a user may cancel what is left of a job in a pause.
    fn close_jobs(&mut self) {
        for index in 0..self.spec.jobs.len() {
            if !self.job_done[index] && next(&self.spec.jobs[index], &self.candidates, |_| true) == Next::Done
            {
                self.close_job(index);
            }
        }
    }

    fn close_job(&mut self, index: usize) {
        self.job_done[index] = true;
        let job = &self.spec.jobs[index];
        let baseline_failed = job.baseline.is_some_and(|id| {
            let baseline = &self.candidates[id.index()];
            !baseline.passed() || baseline.failed_beside
        });
        let id = job.id;
        self.actions.push(Action::JobDone { job: id, baseline_failed });
    }

    /// Before anything of a job starts: what is broken or could not be granted on an empty machine.
    fn refuse_what_never_fits(&mut self, index: usize) {
        let job = &self.spec.jobs[index];
        let untouched = |core: &Self, id: CandidateId| {
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
            stages.extend((self.spec.verify && self.is_timed(id)).then_some(Stage::Profile));
            let too_large = stages
                .into_iter()
                .map(|stage| (stage, spec.stage(stage).reserved + self.spec.idle_worker))
                .find(|&(_, reserved)| self.ledger.ceiling() < self.ledger.least_ceiling(reserved));
            if let Some((stage, reserved)) = too_large {
                self.does_not_fit(id, stage, reserved);
            }
        }
    }

    fn does_not_fit(&mut self, candidate: CandidateId, stage: Stage, reserved: Bytes) {
        let (least, ceiling) = (self.ledger.least_ceiling(reserved), self.ledger.ceiling());
        let detail = format!(
            "its {} needs a ceiling of {least}, it is {ceiling} ([memory] host_ceiling)",
            stage.name()
        );
        self.policy(
            "does_not_fit",
            detail.clone(),
            vec![
                ("candidate", u64::from(candidate.0)),
                ("reserved_bytes", reserved.get()),
                ("needed_bytes", least.get()),
                ("ceiling_bytes", ceiling.get()),
            ],
        );
        self.candidate_done(candidate, Status::DoesNotFit, Some(Blame::Plan), detail);
    }

    fn try_order(&mut self, now: Moment, order: Order, attempt: u32) -> Tried {
        let role = role_of(order.stage());
        let job = self.spec.candidates[order.candidate().index()].job;
        if order.stage() == Stage::Profile && self.verifiers_in_the_way(now, job) {
            return Tried::UnderWay;
        }
        let Some(worker) = self.fit_worker(now, role, job) else { return Tried::UnderWay };
        let stage = *self.spec.candidates[order.candidate().index()].stage(order.stage());
        let reserved = stage.reserved + self.spec.idle_worker;
        if let Err(refusal) = self.ledger.grant(worker, reserved) {
            return self.refused(now, worker, order, reserved, refusal);
        }
        self.waiting = None;
        let lease = LeaseId(self.next_lease);
        self.next_lease += 1;
        self.candidates[order.candidate().index()].progress =
            Progress::Running { stage: order.stage(), attempt };
        if let Some(it) = self.workers.get_mut(&worker) {
            it.leases += 1;
            it.seen_idle = false;
            let owed = it.tree_owed();
            it.state = State::Leased(Lease {
                id: lease,
                order,
                attempt,
                started: now,
                deadline: now.saturating_add(stage.deadline),
                peak_owed: owed,
                peak_reclaimable: Bytes::ZERO,
            });
        }
        self.actions.push(Action::Start { worker, lease, order, attempt, reserved });
        Tried::UnderWay
    }

    /// An idle worker that may be given a lease. None while one is on its way: the worn out are replaced first.
    fn fit_worker(&mut self, now: Moment, role: Role, job: JobId) -> Option<WorkerId> {
        let settings = self.spec.jobs[job.index()].recycle.clone();
        let idle: Vec<WorkerId> = self.idle(|it| it.role == role);
        let mut fit = None;
        let mut coming = self
            .workers
            .values()
            .any(|it| it.role == role && matches!(it.state, State::Starting { .. } | State::Leased(_)));
        for worker in idle {
            let Some(it) = self.workers.get(&worker) else { continue };
            match recycle::from_wear(&settings, &it.wear(now)) {
                // Seen in the middle of its last lease: what it has kept is known at the next sample.
                Some(RecycleReason::Growth) if !it.seen_idle => coming = true,
                Some(reason) => self.recycle(now, worker, reason),
                None => fit = fit.or(Some(worker)),
            }
        }
        if fit.is_none() && !coming {
            self.start_worker(now, role);
        }
        fit
    }

    fn idle(&self, which: impl Fn(&Worker) -> bool) -> Vec<WorkerId> {
        self.workers.iter().filter(|(_, it)| it.is_idle() && which(it)).map(|(&id, _)| id).collect()
    }

    /// Law 4. True while a verifier that validated much, or kept memory, has yet to be gone, or to be looked at.
    fn verifiers_in_the_way(&mut self, now: Moment, job: JobId) -> bool {
        let settings = self.spec.jobs[job.index()].recycle.clone();
        let mut waiting = false;
        let verifiers: Vec<WorkerId> =
            self.workers.iter().filter(|(_, it)| it.role == Role::Verifier).map(|(&id, _)| id).collect();
        for worker in verifiers {
            let Some(it) = self.workers.get(&worker) else { continue };
            match &it.state {
                State::Idle => {
                    let wear = it.wear(now);
                    let reason = recycle::before_profile(&settings, &wear).or_else(|| {
                        (it.seen_idle && recycle::has_grown(&settings, &wear))
                            .then_some(RecycleReason::Growth)
                    });
                    if let Some(reason) = reason {
                        self.recycle(now, worker, reason);
                        waiting = true;
                    } else if 0 < wear.leases && !it.seen_idle {
                        waiting = true;
                    }
                }
                State::Draining { .. } | State::Terminating => waiting = true,
                State::Starting { .. } | State::Leased(_) => {}
            }
        }
        waiting
    }

    /// The worker is idle: it is told to end by itself.
    fn tell_to_end(&mut self, now: Moment, worker: WorkerId, reason: Option<RecycleReason>) {
        let owed = self.ledger.owed();
        if let Some(it) = self.workers.get_mut(&worker) {
            it.told = Some(Told { at: now, reason, owed });
            it.state = State::Draining { deadline: now + DRAIN_DEADLINE };
            self.actions.push(Action::Shutdown { worker });
        }
    }

    pub(super) fn recycle(&mut self, now: Moment, worker: WorkerId, reason: RecycleReason) {
        let Some(it) = self.workers.get(&worker) else { return };
        let numbers = vec![
            ("worker", u64::from(worker.0)),
            ("leases", u64::from(it.leases)),
            ("owed_bytes", it.tree_owed().get()),
            ("validated_bytes", it.validated.get()),
        ];
        let text = format!("{} {worker}: {}", it.role.name(), reason.name());
        self.policy("recycle", text, numbers);
        self.tell_to_end(now, worker, Some(reason));
    }

    /// A lease that does not fit now: idle workers go if that makes it fit, else it waits.
    fn refused(
        &mut self,
        now: Moment,
        worker: WorkerId,
        order: Order,
        reserved: Bytes,
        refusal: Refusal,
    ) -> Tried {
        let is_news = self.waiting.is_none();
        self.waiting = Some(Waiting { since: self.waiting.map_or(now, |waiting| waiting.since), refusal });
        if is_news {
            let reason = match refusal {
                Refusal::Ceiling { .. } => "the lease does not fit under the ceiling now",
                Refusal::Floor { .. } => "the machine would fall below its floor",
            };
            self.policy("wait", reason.to_owned(), refusal.numbers());
        }
        let others = self.idle(|_| true).into_iter().filter(|&other| other != worker);
        let mut in_the_way: Vec<WorkerId> = others.collect();
        match refusal {
            Refusal::Ceiling { .. } => {
                // The supervisor has outgrown its law: no waiting brings that back.
                if self.ledger.ceiling() < self.ledger.least_ceiling(reserved) {
                    self.waiting = None;
                    self.does_not_fit(order.candidate(), order.stage(), reserved);
                    return Tried::Refused;
                }
                let fat = |it: &Worker| 0 < it.leases && reserved < it.tree_owed();
                if self.workers.get(&worker).is_some_and(fat) {
                    in_the_way.push(worker);
                }
            }
            Refusal::Floor { available, wanted, floor } => {
                let held: Bytes = in_the_way.iter().map(|&other| self.ledger.measured(other)).sum();
                if available + held < floor + wanted {
                    in_the_way.clear();
                }
            }
        }
        for other in in_the_way {
            self.recycle(now, other, RecycleReason::MakeRoom);
        }
        Tried::UnderWay
    }

    /// No grants any more: idle workers are told to end, those that hold nothing yet are not waited for, then the
    /// run stops.
    fn wind_down(&mut self, now: Moment, reason: StopReason) {
        if self.workers.is_empty() {
            self.stop(reason);
            return;
        }
        for worker in self.idle(|_| true) {
            self.tell_to_end(now, worker, None);
        }
        let starting: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(_, it)| matches!(it.state, State::Starting { .. }))
            .map(|(&worker, _)| worker)
            .collect();
        for worker in starting {
            self.kill_worker(worker, KillReason::Interrupted);
        }
    }

    fn stop(&mut self, reason: StopReason) {
        self.ending = Ending::Stopped;
        self.actions.push(Action::Stop { reason });
    }
}
