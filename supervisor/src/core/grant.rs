//! Decides which step is started next, and grants its lease. No other file grants leases.

use std::collections::BTreeSet;
use std::time::Duration;

use opt_shared::ids::{JobId, LeaseId, UnitId, WorkerId};
use opt_shared::outcome::{Blame, Status};
use opt_shared::units::Bytes;

use super::assign::{Fit, PolicySubject};
use super::contest::Contest;
use super::device::DeviceState;
use super::event::{Action, Moment, Order, Stage, StopReason};
use super::job::{Next, next};
use super::ledger::{Demand, Refusal};
use super::spec::StageSpec;
use super::unit::{Progress, Unit};
use super::worker::{Lease, State};
use super::{Core, Ending};

enum OrderResult {
    /// The order is dropped, because its unit has ended, was put off, or continues with its next step.
    Refused,
    Granted,
    MustWait,
}

impl Core {
    pub(super) fn advance(&mut self, now: Moment) {
        match self.ending.clone() {
            Ending::No if self.is_paused() || self.is_stalled() || self.tasks_pause.is_some() => {
                self.note_held_builds(now, false);
                self.close_jobs();
                if self.every_job_is_done() && !self.stays_open() {
                    self.wind_down(now, StopReason::Finished);
                }
            }
            Ending::No => {
                self.advance_jobs(now);
                self.note_held_builds(now, true);
                if self.every_job_is_done() && !self.stays_open() {
                    self.wind_down(now, StopReason::Finished);
                }
            }
            Ending::Drain(reason) => self.wind_down(now, reason),
            Ending::Kill(reason) => {
                if self.all_have_ended() {
                    self.stop(reason);
                }
            }
            Ending::Stopped => {}
        }
        // Units that were cancelled, or that never fit, no longer wait for memory.
        let units = &self.units;
        self.waiting = self
            .waiting
            .filter(|waiting| matches!(units[waiting.unit.index()].progress, Progress::Waiting { .. }));
    }

    pub(super) fn every_job_is_done(&self) -> bool {
        self.jobs.iter().all(|job| job.done)
    }

    fn advance_jobs(&mut self, now: Moment) {
        loop {
            self.ask_sources(now);
            let before = self.turn_and_jobs_done();
            if self.advance_turn(now) {
                return;
            }
            // Repeat if the turn or the set of finished jobs has changed. If the last unit of a turn ended because it
            // never fits, the next turn begins. If a job was closed, the jobs after it may begin.
            if self.turn_and_jobs_done() == before && !self.begin_the_second_pass() {
                return;
            }
        }
    }

    /// Begins the second pass of the units that were put off. Does nothing and returns false if there are none, or if a
    /// step is running or a build waits for room.
    fn begin_the_second_pass(&mut self) -> bool {
        if self.jobs.iter().any(|job| job.roster.has_running()) || self.held_builds().is_some() {
            return false;
        }
        let put_off: Vec<UnitId> = self.jobs.iter().flat_map(|job| job.roster.put_off(None)).collect();
        if put_off.is_empty() {
            return false;
        }
        let why =
            "units that were put off are tried once more, because nothing else is left to do".to_owned();
        self.policy("second_pass", why, vec![("units", put_off.len() as u64)]);
        for id in put_off {
            self.change(id, Unit::begin_second_pass);
        }
        true
    }

    fn turn_and_jobs_done(&self) -> (Option<u32>, usize) {
        (self.turn_served(), self.jobs.iter().filter(|job| job.done).count())
    }

    /// Grants leases for steps of the current turn. Returns true if the next step has to wait, for example for a
    /// worker, for memory or for a running step. Returns false if this turn has no further steps to grant.
    fn advance_turn(&mut self, now: Moment) -> bool {
        let turn = self.turn_served();
        let mut index = 0;
        while index < self.jobs.len() {
            if self.jobs[index].done {
                index += 1;
                continue;
            }
            self.refuse_units_that_never_fit(index);
            match next(&self.jobs[index], &self.units, turn, self.lacks_room()) {
                Next::Order { order, .. } if needs_baseline(order.stage) && order.beside.is_none() => {
                    self.skip_step(order.unit);
                }
                // After a grant, another order may still fit.
                Next::Order { order, attempt } => match self.try_order(now, order, attempt) {
                    OrderResult::Refused | OrderResult::Granted => {}
                    OrderResult::MustWait => {
                        self.keep_a_spare(now, index);
                        return true;
                    }
                },
                Next::Wait => {
                    self.keep_a_spare(now, index);
                    return true;
                }
                Next::Settle => self.settle(index, turn),
                Next::Later => index += 1,
                Next::Done => self.close_job(index),
            }
        }
        false
    }

    /// Closes jobs that ended without a further grant, for example because a user cancelled their remaining units
    /// during a pause.
    fn close_jobs(&mut self) {
        for index in 0..self.jobs.len() {
            if !self.jobs[index].done
                && next(&self.jobs[index], &self.units, None, self.lacks_room()) == Next::Done
            {
                self.close_job(index);
            }
        }
    }

    /// Skips a step that needs the baseline, because the baseline has failed.
    fn skip_step(&mut self, unit: UnitId) {
        if !self.change(unit, Unit::advance) {
            self.unit_done(unit, Status::Passed, None, "not confirmed: the baseline failed".to_owned());
        }
    }

    /// Ends the units that need no more timing. They keep the times that they have.
    fn settle(&mut self, index: usize, turn: Option<u32>) {
        let roster = &self.jobs[index].roster;
        let contest = Contest::of(roster);
        let parked: Vec<(UnitId, String)> =
            roster.waiting(turn).map(|id| (id, contest.why_not(self.unit(id)))).collect();
        for (id, why) in parked {
            self.unit_done(id, Status::Passed, None, why);
        }
    }

    /// Returns how long a timed step may take. The job's remaining budget is shared equally by all units that still
    /// have a timed step.
    fn time_share(&self, job: JobId) -> Duration {
        let budget = self.spec.jobs.get(job.index()).map_or(Duration::MAX, |spec| spec.budget);
        let Some(it) = self.jobs.get(job.index()) else { return budget };
        let candidates_left = u32::try_from(it.roster.to_time_count()).unwrap_or(u32::MAX).max(1);
        budget.saturating_sub(it.timed) / candidates_left
    }

    fn close_job(&mut self, index: usize) {
        let job = &mut self.jobs[index];
        job.done = true;
        let baseline_failed = job.baseline.is_some_and(|id| {
            let baseline = &self.units[id.index()];
            !baseline.passed() || baseline.failed_beside
        });
        self.actions.push(Action::JobDone { job: self.spec.jobs[index].id, baseline_failed });
    }

    /// Ends the units that can never fit. Each unit that has not started is checked once, and again after the limits
    /// have changed or a baseline was added. If the job's captures cannot be used, ends all units that would be
    /// checked.
    fn refuse_units_that_never_fit(&mut self, index: usize) {
        let limits = Some(self.ledger.limits());
        let job = &mut self.jobs[index];
        let mut unseen = std::mem::take(&mut job.fitting.unseen);
        if job.fitting.under != limits {
            job.fitting.under = limits;
            unseen.clone_from(&job.units);
        }
        let untouched: Vec<UnitId> = unseen.into_iter().filter(|&id| self.unit(id).is_untouched()).collect();
        if let Some(broken) = self.spec.jobs[index].broken.clone() {
            for id in untouched {
                self.unit_done(id, Status::CaptureError, Some(Blame::Capture), broken.clone());
            }
            return;
        }
        for id in untouched {
            let paired = self.jobs[index].is_beside_a_baseline(id);
            let too_large = self
                .unit(id)
                .steps_left()
                .iter()
                .filter_map(|step| Some((step.stage, step.least(paired)?.demand(self.spec.idle_worker))))
                .find(|&(_, demand)| self.ledger.never_fits(demand).is_some());
            if let Some((stage, demand)) = too_large {
                self.end_as_never_fitting(id, stage, demand);
            }
        }
    }

    fn end_as_never_fitting(&mut self, unit: UnitId, stage: Stage, demand: Demand) {
        let Some((scope, least, ceiling)) = self.ledger.never_fits(demand) else { return };
        let stage = stage.name();
        let detail = format!(
            "stage `{stage}` needs a ceiling of {least}, but the ceiling is {ceiling} ({})",
            scope.key()
        );
        self.policy(
            "does_not_fit",
            detail.clone(),
            vec![
                ("unit", u64::from(unit.0)),
                ("reserved_bytes", demand.sum().get()),
                ("needed_bytes", least.get()),
                ("ceiling_bytes", ceiling.get()),
            ],
        );
        self.unit_done(unit, Status::DoesNotFit, Some(Blame::Plan), detail);
    }

    fn try_order(&mut self, now: Moment, order: Order, attempt: u32) -> OrderResult {
        let Order { unit, stage, beside } = order;
        let job = self.unit(unit).job;
        let is_exclusive = self.unit(unit).step().exclusive;
        if self.conflicts(is_exclusive) || is_exclusive && self.profile_must_wait(now, job) {
            return OrderResult::MustWait;
        }
        if self.needs_device(unit, beside.is_some()) {
            if let Some(why) = self.no_device() {
                self.without_device(unit, why);
                return OrderResult::Refused;
            }
            if self.device.state() == DeviceState::Returning || self.worker_is_leaving_the_device() {
                return OrderResult::MustWait;
            }
        }
        // The unit fitted when it was added. If no way fits now, the ceiling has been lowered or the supervisor's
        // reservation has been raised since, so waiting would not help.
        let Some((way, demand)) = self.largest_that_fits(order) else {
            let smallest = self.unit(unit).step().least(beside.is_some());
            let smallest = smallest.map(|spec| spec.demand(self.spec.idle_worker));
            self.waiting = None;
            self.end_as_never_fitting(unit, stage, smallest.unwrap_or_default());
            return OrderResult::Refused;
        };
        let worker = match self.fit_worker(now, order, job, demand) {
            Fit::Worker(worker) => worker,
            Fit::Coming => return OrderResult::MustWait,
        };
        match self.ledger.grant(worker, demand) {
            Ok(()) => {
                let why = self.why_smaller(unit, way);
                self.granted(now, worker, order, attempt, (way, why), demand);
            }
            Err(refusal) => {
                // If the ceiling is not reached but the machine is short of memory, a way that takes less memory may
                // start now.
                let Some((smaller, demand)) = self.grant_smaller_way(worker, order, way, refusal) else {
                    self.refused(now, worker, order, demand, refusal);
                    return OrderResult::MustWait;
                };
                self.granted(now, worker, order, attempt, (smaller, Smaller::Refused(refusal)), demand);
            }
        }
        OrderResult::Granted
    }

    /// Returns whether a step must wait for a running step, because one of the two must run alone.
    fn conflicts(&self, is_exclusive: bool) -> bool {
        let mut held = self.workers.values().filter_map(|it| it.lease());
        held.any(|lease| is_exclusive || self.unit(lease.order.unit).step().exclusive)
    }

    /// Returns the first way that could ever be granted, and the memory that it demands. Ways whose attempts ended for
    /// lack of memory are left out, unless no way would remain.
    fn largest_that_fits(&self, order: Order) -> Option<(usize, Demand)> {
        let unit = self.unit(order.unit);
        let ways = unit.step().ways(order.beside.is_some());
        (unit.first_way().min(ways.len().saturating_sub(1))..ways.len())
            .find_map(|way| Some((way, self.demand(unit.job, order.stage, &ways[way])?)))
    }

    /// Returns the memory that a way demands, or `None` if it could never be granted. Measurements of earlier attempts
    /// raise the demand, but only if the raised demand could still be granted.
    fn demand(&self, job: JobId, stage: Stage, spec: &StageSpec) -> Option<Demand> {
        let plain = spec.demand(self.spec.idle_worker);
        if self.ledger.never_fits(plain).is_some() {
            return None;
        }
        let learned = self.estimates.reserve(job, stage, spec, self.spec.idle_worker);
        Some(if self.ledger.never_fits(learned).is_some() { plain } else { learned })
    }

    /// Grants the first way after `from` for which the machine has enough memory now. Returns this way and the memory
    /// that it demands.
    fn grant_smaller_way(
        &mut self,
        worker: WorkerId,
        order: Order,
        from: usize,
        refusal: Refusal,
    ) -> Option<(usize, Demand)> {
        // A compiler with less memory might fail, so a build waits until the machine has more memory.
        if !matches!(refusal, Refusal::Floor { .. }) || order.stage == Stage::Build {
            return None;
        }
        let unit = self.unit(order.unit);
        let ways = unit.step().ways(order.beside.is_some());
        let demands: Vec<(usize, Demand)> = (from + 1..ways.len())
            .filter_map(|way| Some((way, self.demand(unit.job, order.stage, &ways[way])?)))
            .collect();
        demands.into_iter().find(|&(_, demand)| self.ledger.grant(worker, demand).is_ok())
    }

    fn granted(
        &mut self,
        now: Moment,
        worker: WorkerId,
        order: Order,
        attempt: u32,
        (way, smaller): (usize, Smaller),
        demand: Demand,
    ) {
        self.waiting = None;
        let ways = self.unit(order.unit).step().ways(order.beside.is_some());
        let (spec, whole) = (ways[way], ways[0]);
        if way != 0 {
            self.report_smaller(order, smaller, &spec, &whole);
        }
        let lease = LeaseId(self.next_lease);
        self.next_lease += 1;
        let share = self.time_share(self.unit(order.unit).job);
        self.change(order.unit, |unit| unit.progress = Progress::Running { attempt });
        let idle_worker = self.spec.idle_worker;
        if let Some(it) = self.workers.get_mut(&worker) {
            it.leases += 1;
            it.on_device |= demand.device != Bytes::ZERO;
            it.seen_idle = false;
            it.state = State::Leased(Lease {
                id: lease,
                order,
                attempt,
                started: now,
                deadline: now.saturating_add(spec.deadline),
                way,
                predicted: spec.predicted + idle_worker,
                reserved: demand.host,
                device: demand.device,
                peak_owed: it.tree_owed(),
                peak_reclaimable: Bytes::ZERO,
                peak_device: None,
                over_device: None,
                short_of_memory: None,
                breaches: BTreeSet::new(),
            });
        }
        self.actions.push(Action::Start {
            worker,
            lease,
            order,
            attempt,
            reserved: demand.host,
            batch: spec.batch,
            device_cap: spec.device_cap,
            share,
        });
    }

    /// Returns why the ways before `way` were left out.
    fn why_smaller(&self, unit: UnitId, way: usize) -> Smaller {
        if way <= self.unit(unit).first_way() { Smaller::ShortBefore } else { Smaller::Ceiling }
    }

    fn report_smaller(&mut self, order: Order, why: Smaller, spec: &StageSpec, whole: &StageSpec) {
        let mut numbers = vec![
            ("unit", u64::from(order.unit.0)),
            ("batch_bytes", spec.batch.unwrap_or_default().get()),
            ("reserved_bytes", spec.reserved.get()),
            ("whole_bytes", whole.reserved.get()),
        ];
        if order.stage == Stage::Build {
            if self.reported.insert((PolicySubject::LessForCompilers, self.unit(order.unit).job)) {
                numbers.push(("ceiling_bytes", self.ledger.ceilings().host.get()));
                let reason =
                    "compilers get less than [build] memory: that much would never fit under the ceiling";
                self.policy("shrink_build", reason.to_owned(), numbers);
            }
            return;
        }
        let reason = match why {
            Smaller::Ceiling => {
                numbers.push(("ceiling_bytes", self.ledger.ceilings().host.get()));
                "larger batches would never fit under the ceiling".to_owned()
            }
            Smaller::ShortBefore => "an earlier attempt ended for lack of memory".to_owned(),
            Smaller::Refused(refusal) => {
                numbers.extend(refusal.numbers());
                format!("larger batches would have to wait: {refusal}")
            }
        };
        let what = if order.stage.is_timed() { "timed" } else { "run" };
        self.policy("shrink_batch", format!("smaller batches are {what}: {reason}"), numbers);
    }
}

/// Returns whether a stage is useless without the baseline.
fn needs_baseline(stage: Stage) -> bool {
    matches!(stage, Stage::Screen | Stage::Confirm)
}

#[derive(Clone, Copy)]
enum Smaller {
    Ceiling,
    /// An earlier attempt ended for lack of memory.
    ShortBefore,
    /// The machine is short of memory now.
    Refused(Refusal),
}
