//! What is started next: the one place that grants leases.
//!
//! Which worker takes a lease, and which go for it, is `staff`'s and `room`'s; what comes next in a job is `job`'s.

use opt_shared::ids::{CandidateId, LeaseId, WorkerId};
use opt_shared::outcome::{Blame, Status};
use opt_shared::units::Bytes;

use super::event::{Action, Moment, Order, Stage, StopReason};
use super::job::{Next, Progress, next};
use super::ledger::{Demand, Refusal};
use super::spec::{CandidateSpec, StageSpec};
use super::staff::Fit;
use super::worker::{Lease, State};
use super::{Core, Ending};

/// What became of an order.
enum Tried {
    /// It can never be granted, and its candidate is done.
    Refused,
    Granted,
    /// Waiting for something that is on its way.
    UnderWay,
}

impl Core {
    /// Goes as far as it can: closes jobs, grants what fits, starts what is missing, ends what is over.
    pub(super) fn advance(&mut self, now: Moment) {
        match self.ending.clone() {
            Ending::No if self.is_paused() => {
                self.close_jobs();
                if !self.job_done.contains(&false) && !self.stays_open() {
                    self.wind_down(now, StopReason::Finished);
                }
            }
            Ending::No => {
                if !self.advance_jobs(now) && !self.stays_open() {
                    self.wind_down(now, StopReason::Finished);
                }
            }
            Ending::Drain(reason) => self.wind_down(now, reason),
            Ending::Kill(reason) => {
                if self.everybody_is_gone() {
                    self.stop(reason);
                }
            }
            Ending::Stopped => {}
        }
        // Cancelled, or refused for good: nobody waits for its memory any more.
        let candidates = &self.candidates;
        self.waiting = self.waiting.filter(|waiting| {
            let progress = candidates[waiting.candidate.index()].progress;
            matches!(progress, Progress::Waiting { stage, .. } if stage == waiting.stage)
        });
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
                // What was refused for good leaves the next one's turn; beside what was granted another may fit.
                Next::Order { order, attempt } => match self.try_order(now, order, attempt) {
                    Tried::Refused | Tried::Granted => {}
                    Tried::UnderWay => {
                        self.keep_a_spare(now, index);
                        return true;
                    }
                },
                Next::Wait => {
                    self.keep_a_spare(now, index);
                    return true;
                }
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
            let stage = core.spec.candidates[id.index()].first_stage();
            core.candidates[id.index()].progress == Progress::Waiting { stage, attempt: 1 }
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
            let paired = self.spec.jobs[index].baseline.is_some_and(|baseline| baseline != id);
            let mut stages = vec![spec.first_stage()];
            if spec.replay.is_none() {
                stages.extend(self.spec.verify.then_some(Stage::Verify));
                stages.extend((self.spec.verify && self.is_timed(index)).then_some(Stage::Profile));
            }
            let too_large = stages
                .into_iter()
                .filter_map(|stage| Some((stage, spec.least(stage, paired)?.demand(self.spec.idle_worker))))
                .find(|&(_, demand)| self.ledger.never_fits(demand).is_some());
            if let Some((stage, demand)) = too_large {
                self.does_not_fit(id, stage, demand);
            }
        }
    }

    fn does_not_fit(&mut self, candidate: CandidateId, stage: Stage, demand: Demand) {
        let Some((side, least, ceiling)) = self.ledger.never_fits(demand) else { return };
        let stage = stage.name();
        let detail = format!("its {stage} needs a ceiling of {least}, it is {ceiling} ({})", side.key());
        self.policy(
            "does_not_fit",
            detail.clone(),
            vec![
                ("candidate", u64::from(candidate.0)),
                ("reserved_bytes", demand.sum().get()),
                ("needed_bytes", least.get()),
                ("ceiling_bytes", ceiling.get()),
            ],
        );
        self.candidate_done(candidate, Status::DoesNotFit, Some(Blame::Plan), detail);
    }

    fn try_order(&mut self, now: Moment, order: Order, attempt: u32) -> Tried {
        let job = self.spec.candidates[order.candidate().index()].job;
        if order.stage().is_alone() && self.somebody_is_in_the_way(now, job) {
            return Tried::UnderWay;
        }
        // The supervisor has outgrown its share, or the ceiling was lowered: no waiting brings that back.
        let Some((step, demand)) = self.largest_that_fits(order) else {
            let paired = matches!(order, Order::Profile { baseline: Some(_), .. });
            let spec = &self.spec.candidates[order.candidate().index()];
            let least = spec.least(order.stage(), paired).map(|spec| spec.demand(self.spec.idle_worker));
            self.waiting = None;
            self.does_not_fit(order.candidate(), order.stage(), least.unwrap_or_default());
            return Tried::Refused;
        };
        let worker = match self.fit_worker(now, order, job, demand) {
            Fit::Worker(worker) => worker,
            Fit::Coming => return Tried::UnderWay,
        };
        match self.ledger.grant(worker, demand) {
            Ok(()) => {
                let why = self.why_smaller(order, step);
                self.granted(now, worker, order, attempt, (step, why), demand);
            }
            Err(refusal) => {
                // The machine is short of memory, not the plan: a smaller batch may start now.
                let Some((smaller, demand)) = self.smaller_that_is_granted(worker, order, step, refusal)
                else {
                    self.refused(now, worker, order, demand, refusal);
                    return Tried::UnderWay;
                };
                self.granted(now, worker, order, attempt, (smaller, Smaller::Refused(refusal)), demand);
            }
        }
        Tried::Granted
    }

    /// The first step, from the one that its losses for want of memory leave, that would fit on an empty machine.
    fn largest_that_fits(&self, order: Order) -> Option<(usize, Demand)> {
        let candidate = &self.spec.candidates[order.candidate().index()];
        let steps = candidate.steps(order);
        let from = self.candidates[order.candidate().index()].from_step;
        (from.min(steps.len().saturating_sub(1))..steps.len())
            .find_map(|step| Some((step, self.demand(candidate, order, step)?)))
    }

    /// What a step reserves. None if that could never be granted. What was learned asks for all there is at most.
    fn demand(&self, candidate: &CandidateSpec, order: Order, step: usize) -> Option<Demand> {
        let spec = candidate.steps(order).get(step)?;
        let plain = spec.demand(self.spec.idle_worker);
        if self.ledger.never_fits(plain).is_some() {
            return None;
        }
        let learned = self.estimates.reserve(candidate.job, order.stage(), spec, self.spec.idle_worker);
        Some(if self.ledger.never_fits(learned).is_some() { plain } else { learned })
    }

    fn smaller_that_is_granted(
        &mut self,
        worker: WorkerId,
        order: Order,
        from: usize,
        refusal: Refusal,
    ) -> Option<(usize, Demand)> {
        if !matches!(refusal, Refusal::Floor { .. }) {
            return None;
        }
        let candidate = &self.spec.candidates[order.candidate().index()];
        let demands: Vec<(usize, Demand)> = (from + 1..candidate.steps(order).len())
            .filter_map(|step| Some((step, self.demand(candidate, order, step)?)))
            .collect();
        demands.into_iter().find(|&(_, demand)| self.ledger.grant(worker, demand).is_ok())
    }

    fn granted(
        &mut self,
        now: Moment,
        worker: WorkerId,
        order: Order,
        attempt: u32,
        (step, smaller): (usize, Smaller),
        demand: Demand,
    ) {
        self.waiting = None;
        let candidate = order.candidate();
        let steps = self.spec.candidates[candidate.index()].steps(order);
        let (spec, whole) = (steps[step], steps[0]);
        if step != 0 {
            self.say_smaller(candidate, smaller, &spec, &whole);
        }
        let lease = LeaseId(self.next_lease);
        self.next_lease += 1;
        self.candidates[candidate.index()].progress = Progress::Running { stage: order.stage(), attempt };
        let idle_worker = self.spec.idle_worker;
        if let Some(it) = self.workers.get_mut(&worker) {
            it.leases += 1;
            it.seen_idle = false;
            it.state = State::Leased(Lease {
                id: lease,
                order,
                attempt,
                started: now,
                deadline: now.saturating_add(spec.deadline),
                step,
                predicted: spec.predicted + idle_worker,
                reserved: demand.host,
                peak_owed: it.tree_owed(),
                peak_reclaimable: Bytes::ZERO,
                short_of_memory: None,
            });
        }
        self.actions.push(Action::Start {
            worker,
            lease,
            order,
            attempt,
            reserved: demand.host,
            batch: spec.batch,
        });
    }

    /// Of a step that the machine has room for now, and that is not the first.
    fn why_smaller(&self, order: Order, step: usize) -> Smaller {
        if step <= self.candidates[order.candidate().index()].from_step {
            Smaller::ShortBefore
        } else {
            Smaller::Ceiling
        }
    }

    fn say_smaller(&mut self, candidate: CandidateId, why: Smaller, spec: &StageSpec, whole: &StageSpec) {
        let mut numbers = vec![
            ("candidate", u64::from(candidate.0)),
            ("batch_bytes", spec.batch.unwrap_or_default().get()),
            ("reserved_bytes", spec.reserved.get()),
            ("whole_bytes", whole.reserved.get()),
        ];
        let reason = match why {
            Smaller::Ceiling => {
                numbers.push(("ceiling_bytes", self.ledger.ceilings().host.get()));
                "larger batches would never fit under the ceiling".to_owned()
            }
            Smaller::ShortBefore => "the attempt before ended for want of memory".to_owned(),
            Smaller::Refused(refusal) => {
                numbers.extend(refusal.numbers());
                format!("larger batches would have to wait: {refusal}")
            }
        };
        self.policy("shrink_batch", format!("smaller batches are timed: {reason}"), numbers);
    }
}

/// Why a profile is granted smaller batches than it could be cut into.
#[derive(Clone, Copy)]
enum Smaller {
    Ceiling,
    /// A former attempt was ended for want of memory.
    ShortBefore,
    /// The machine is short now.
    Refused(Refusal),
}
