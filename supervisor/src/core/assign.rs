//! Decides which worker takes a lease, when workers are started, and when they are replaced.
//!
//! A worker is due for replacement if it is too old, has held enough leases, or has kept too much memory. Such workers
//! are replaced between leases, one at a time. Before a profile, however, all verifiers that kept too much
//! memory, or that the plan requires to be replaced, are ended together.

use std::time::Duration;

use opt_shared::ids::{JobId, WorkerId};
use opt_shared::message::Role;
use opt_shared::units::Bytes;

use super::event::{Moment, Order};
use super::ledger::{Demand, Refusal};
use super::recycle::{self, RecycleReason};
use super::unit::{Progress, Unit};
use super::worker::{State, Worker};
use super::{Core, Ending};

/// The delay after a failed start. It doubles with each further failed start, up to `MAX_BACKOFF`.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

pub(super) enum Fit {
    Worker(WorkerId),
    /// No worker is free yet. For example, all of them are starting, are being replaced, or hold a lease.
    Coming,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    pub(super) until: Option<Moment>,
}

impl Backoff {
    pub(super) fn failed(&mut self, now: Moment) {
        let wait = FIRST_BACKOFF.saturating_mul(1 << self.failures.min(16)).min(MAX_BACKOFF);
        self.failures += 1;
        self.until = Some(now + wait);
    }

    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    pub(super) fn expire(&mut self, now: Moment) {
        self.until = self.until.filter(|&until| now < until);
    }
}

impl Core {
    /// Returns a free worker for a lease. Workers that are due for replacement get no lease. One of them is replaced,
    /// unless another replacement is in progress. If no worker is free or about to be free, starts one, provided that
    /// the lease fits beside the current leases or that the role has no other worker.
    pub(super) fn fit_worker(&mut self, now: Moment, order: Order, job: JobId, demand: Demand) -> Fit {
        let role = self.unit(order.unit).step().role;
        let leased = self.workers.values().filter(|it| it.role == role && it.lease().is_some()).count();
        if self.max_workers(role) <= leased {
            return Fit::Coming;
        }
        let settings = self.spec.jobs[job.index()].recycle.clone();
        let mut coming = self.is_starting(role);
        let mut fit = None;
        for worker in self.idle(|it| it.role == role) {
            let Some(it) = self.workers.get(&worker) else { continue };
            match recycle::reason_to_replace(&settings, &it.usage(now)) {
                // Wait for the next sample, which shows how much memory the worker really kept.
                Some(RecycleReason::Growth) if !it.seen_idle => coming = true,
                Some(_) if !self.none_is_being_replaced() => coming = true,
                Some(reason) => self.recycle(now, worker, reason),
                None => fit = fit.or(Some(worker)),
            }
        }
        if let Some(worker) = fit {
            return Fit::Worker(worker);
        }
        let no_other_worker = !self.workers.values().any(|it| it.role == role && it.stays());
        if !coming && (no_other_worker || self.fits_side_by_side(job, demand)) {
            self.start_worker(now, role, false);
        }
        Fit::Coming
    }

    fn max_workers(&self, role: Role) -> usize {
        match role {
            Role::Verifier => self.spec.verifiers.max(1) as usize,
            Role::Profiler => 1,
        }
    }

    /// Returns whether a lease fits beside the current leases. If it does not fit, reports this once per job.
    fn fits_side_by_side(&mut self, job: JobId, demand: Demand) -> bool {
        let Err(refusal) = self.ledger.admits(None, demand) else { return true };
        self.policy_once(
            PolicySubject::Serial,
            job,
            "serial",
            "the next lease does not fit beside the current ones",
            &refusal,
        );
        false
    }

    /// Returns whether no worker is leaving because it was due for replacement. Workers that leave for another reason,
    /// such as to make room or before a profile, do not count.
    fn none_is_being_replaced(&self) -> bool {
        let leaving = |it: &Worker| {
            it.drain_order.and_then(|order| order.reason).is_some_and(RecycleReason::is_routine)
        };
        !self.workers.values().any(leaving)
    }

    pub(super) fn idle(&self, which: impl Fn(&Worker) -> bool) -> Vec<WorkerId> {
        self.workers.iter().filter(|(_, it)| it.is_idle() && which(it)).map(|(&id, _)| id).collect()
    }

    /// Returns whether a profile still has to wait (law 4 in ARCHITECTURE.md). Ends idle verifiers that kept too much
    /// memory, and those that the plan requires to end, for example because the verifiers together have validated many
    /// bytes. The profile waits until these verifiers are gone, and until every other verifier has been sampled since
    /// its last lease. It also waits while a verifier is starting or a worker is ending, because nothing may run beside
    /// a profile.
    pub(super) fn profile_must_wait(&mut self, now: Moment, job: JobId) -> bool {
        let settings = self.spec.jobs[job.index()].recycle.clone();
        let leaving = |it: &Worker| matches!(it.state, State::Draining { .. } | State::Terminating);
        // Runners that a dead worker left behind stay charged, but a profile does not wait for those that are overdue.
        let mut waiting = self.orphans.values().any(|it| !it.overdue) || self.workers.values().any(leaving);
        let verifiers: Vec<WorkerId> =
            self.workers.iter().filter(|(_, it)| it.role == Role::Verifier).map(|(&id, _)| id).collect();
        let validated = self.validated_by_verifiers();
        for worker in verifiers {
            let Some(it) = self.workers.get(&worker) else { continue };
            match &it.state {
                State::Idle => {
                    let usage = it.usage(now);
                    let reason = recycle::before_profile(&settings, &usage, validated).or_else(|| {
                        (it.seen_idle && recycle::has_grown(&settings, &usage))
                            .then_some(RecycleReason::Growth)
                    });
                    if let Some(reason) = reason {
                        self.recycle(now, worker, reason);
                        waiting = true;
                    } else if 0 < usage.leases && !it.seen_idle {
                        waiting = true;
                    }
                }
                State::Starting { .. } => waiting = true,
                State::Leased(_) | State::Draining { .. } | State::Terminating => {}
            }
        }
        waiting
    }

    /// Returns the captured bytes that the living verifiers together have verified since they started.
    pub(super) fn validated_by_verifiers(&self) -> Bytes {
        self.workers.values().filter(|it| it.role == Role::Verifier).map(|it| it.validated).sum()
    }

    /// While verifiers work, starts the worker that will be needed next, and ends an idle profiler that is due for
    /// replacement.
    pub(super) fn keep_a_spare(&mut self, now: Moment, index: usize) {
        if !self.spec.spare || self.ending != Ending::No || now < self.no_spare_before {
            return;
        }
        self.replace_profiler_if_due(now, index);
        let Some(role) = self.needed_next(index) else { return };
        let job = self.spec.jobs[index].id;
        match self.ledger.admits(None, Demand::host(self.spec.idle_worker)) {
            Ok(()) => self.start_worker(now, role, true),
            Err(refusal) => {
                let text = match role {
                    Role::Profiler => {
                        "a spare profiler does not fit; it is started when the verifiers are done"
                    }
                    Role::Verifier => {
                        "a spare verifier does not fit; it is started when the old one has ended"
                    }
                };
                self.policy_once(PolicySubject::NoSpare(role), job, "no_spare", text, &refusal);
            }
        }
    }

    /// While verifiers work, replaces an idle profiler that is due for replacement. Otherwise the first profile would
    /// wait for the old profiler to end and for a new one to start.
    fn replace_profiler_if_due(&mut self, now: Moment, index: usize) {
        // There is at most one profiler. If it is idle, verifiers hold all the leases.
        let verifying = self.workers.values().any(|it| it.lease().is_some());
        if !verifying || !self.jobs[index].roster.has_exclusive_steps() || !self.none_is_being_replaced() {
            return;
        }
        let settings = self.spec.jobs[index].recycle.clone();
        for worker in self.idle(|it| it.role == Role::Profiler) {
            let reason = self.workers.get(&worker).and_then(|it| {
                let reason = recycle::reason_to_replace(&settings, &it.usage(now));
                reason.filter(|&reason| it.seen_idle || reason != RecycleReason::Growth)
            });
            if let Some(reason) = reason {
                self.recycle(now, worker, reason);
            }
        }
    }

    /// Returns the role of the worker that the job will need next, if that worker has not been started yet. Returns
    /// `None` if no lease is held, or if the profiler holds one.
    fn needed_next(&self, index: usize) -> Option<Role> {
        let leased: Vec<&Worker> = self.workers.values().filter(|it| it.lease().is_some()).collect();
        if leased.is_empty() || leased.iter().any(|it| it.role == Role::Profiler) {
            return None;
        }
        let staying = |role| self.workers.values().filter(|it| it.role == role && it.stays()).count();
        if !self.jobs[index].roster.has_waiting_non_exclusive() {
            // The last units are being built or verified.
            let next = |unit: &'_ Unit| {
                let step = match unit.progress {
                    Progress::Waiting { .. } => Some(unit.step()),
                    Progress::Running { .. } => unit.next_step(),
                    Progress::Done(_) => None,
                };
                step.filter(|step| step.exclusive).map(|step| step.role)
            };
            return self.units_of(index).find_map(next).filter(|&role| staying(role) == 0);
        }
        let after_leases = self.spec.jobs[index].recycle.after_leases;
        let is_due = |it: &Worker| after_leases <= it.leases;
        let room = staying(Role::Verifier) <= self.max_workers(Role::Verifier);
        (room && leased.into_iter().any(is_due) && self.idle(|it| it.role == Role::Verifier).is_empty())
            .then_some(Role::Verifier)
            .filter(|_| !self.is_starting(Role::Verifier))
    }

    fn is_starting(&self, role: Role) -> bool {
        self.workers.values().any(|it| it.role == role && matches!(it.state, State::Starting { .. }))
    }

    /// Writes a policy row once per job and subject, because the same decision is made after every event.
    pub(super) fn policy_once(
        &mut self,
        subject: PolicySubject,
        job: JobId,
        decision: &'static str,
        text: &str,
        refusal: &Refusal,
    ) {
        if self.reported.insert((subject, job)) {
            let mut numbers = vec![("job", u64::from(job.0))];
            numbers.extend(refusal.numbers());
            self.policy(decision, format!("{text}: {refusal}"), numbers);
        }
    }
}

/// The subject of a policy row that is written once per job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PolicySubject {
    Serial,
    LessForCompilers,
    NoSpare(Role),
}
