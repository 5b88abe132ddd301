//! Decides what the end of an attempt means for its unit: a verdict, a repetition, a second pass, or the end without a
//! result.

use opt_shared::ids::{LeaseId, UnitId, WorkerId};
use opt_shared::message::KillReason;
use opt_shared::outcome::{Blame, Body, Head, Report, Status};

use super::contest;
use super::event::{Action, AttemptEnd, Moment, Order, PhaseRow, Stage};
use super::recycle::RecycleReason;
use super::unit::{Progress, SecondPass, Unit};
use super::worker::{Lease, State, Worker};
use super::{Core, MAX_SHORT_OF_MEMORY, MAX_WORKERS_LOST};

impl Core {
    pub(super) fn finished(&mut self, now: Moment, worker: WorkerId, id: LeaseId, mut report: Box<Report>) {
        let Some(it) = self.workers.get_mut(&worker) else { return };
        let State::Leased(lease) = &it.state else { return };
        if lease.id != id {
            return;
        }
        let lease = lease.clone();
        it.state = if it.killed.is_some() { State::Terminating } else { State::Idle };
        it.seen_idle = false;
        if let Body::Verify(verified) = &report.body {
            it.validated += verified.bytes_validated;
        }
        let (idle, killed) = (it.is_idle(), it.killed);
        let left_runners = !it.runners.is_empty();
        self.failures_in_a_row = 0;
        self.phase_ended(now, worker, &lease);
        self.ledger.release(worker, self.spec.idle_worker);
        if let Some(waiting) = &mut self.waiting {
            // The timeout applies to memory that other programs hold. This run has just freed memory by ending a lease,
            // so the timeout starts again.
            waiting.since = now;
        }
        if left_runners {
            // A healthy worker reaps its runners before it reports.
            self.kill_runners(worker, KillReason::Orphaned);
            if idle {
                self.recycle(now, worker, RecycleReason::LeftRunners);
            }
        } else if idle && report.head.context_lost {
            self.recycle(now, worker, RecycleReason::ContextLost);
        }
        if let (Some(room), Body::Build(_)) = (report.head.room, &report.body) {
            self.room_read_by_a_build(now, room);
        }
        if let Body::Profile(profiled) = &mut report.body {
            profiled.breaches = lease.breaches.iter().map(|&what| what.to_owned()).collect();
        }
        self.judge(now, lease, killed, report);
    }

    fn phase_ended(&mut self, now: Moment, worker: WorkerId, lease: &Lease) {
        self.actions.push(Action::PhaseEnded(PhaseRow {
            order: lease.order,
            worker,
            predicted: lease.predicted,
            peak_owed: lease.peak_owed,
            peak_reclaimable: lease.peak_reclaimable,
            predicted_device: lease.device,
            peak_device: lease.peak_device,
            started: lease.started,
            ended: now,
        }));
        self.learn(lease);
        let job = self.unit(lease.order.unit).job;
        if lease.order.stage.is_timed()
            && let Some(job) = self.jobs.get_mut(job.index())
        {
            job.timed += now.saturating_sub(lease.started);
        }
    }

    /// Raises the reservations of later leases if the attempt owed more than its lease reserved. An attempt whose
    /// runner was killed for exceeding its own limit changes nothing.
    fn learn(&mut self, lease: &Lease) {
        if matches!(lease.short_of_memory, Some(KillReason::RunnerMemory { .. })) {
            return;
        }
        let job = self.unit(lease.order.unit).job;
        let stage = lease.order.stage;
        if self.estimates.observe(job, stage, lease.reserved, lease.peak_owed) {
            self.policy(
                "raise_estimate",
                format!(
                    "an attempt at stage `{}` owed more than its lease reserved, so later leases of the job and stage \
                     reserve more",
                    stage.name()
                ),
                vec![
                    ("job", u64::from(job.0)),
                    ("reserved_bytes", lease.reserved.get()),
                    ("peak_owed_bytes", lease.peak_owed.get()),
                ],
            );
        }
    }

    pub(super) fn attempt_lost(
        &mut self,
        now: Moment,
        id: WorkerId,
        worker: &Worker,
        lease: Lease,
        how: &str,
    ) {
        if let Some(waiting) = &mut self.waiting {
            waiting.since = now;
        }
        self.phase_ended(now, id, &lease);
        let role = worker.role.name();
        if self.ended_by_order(&lease, role, worker.killed) {
            return;
        }
        let why = match worker.killed {
            Some(KillReason::Deadline) => format!("the {role} was killed: it did not finish in time"),
            Some(KillReason::WorkerFault) => format!("the {role} reported that it could not continue"),
            _ => format!("the {role} was lost ({how})"),
        };
        self.change(lease.order.unit, |unit| unit.workers_lost += 1);
        self.repeat_or_give_up(now, lease, Blame::Worker, why);
    }

    /// Handles an attempt whose worker the core killed at a user's request, because the run stops, for lack of memory,
    /// or because the device is lost. Such a worker does not count as lost. Returns false if the attempt ended in any
    /// other way.
    fn ended_by_order(&mut self, lease: &Lease, role: &str, killed: Option<KillReason>) -> bool {
        if self.ended_by_user(lease, killed) {
            return true;
        }
        match killed {
            Some(KillReason::Interrupted | KillReason::RunStopped) => {
                self.change(lease.order.unit, |unit| {
                    unit.progress = Progress::Waiting { attempt: lease.attempt };
                });
                self.attempt_ended(lease, AttemptEnd::Abandoned { why: "the run was stopped".to_owned() });
                true
            }
            Some(reason @ (KillReason::HostCeiling { .. } | KillReason::HostFloor { .. })) => {
                let why = format!("the {role} was ended for lack of memory ({})", memory_figures(reason));
                self.repeat_smaller_or_give_up(lease.clone(), why);
                true
            }
            Some(KillReason::DeviceCeiling { owed, ceiling }) => {
                self.over_device(lease.clone(), owed, ceiling);
                true
            }
            Some(KillReason::DeviceLost) => {
                let why = format!("the {role} was ended: {}", self.no_device().unwrap_or_default());
                self.attempt_ended(lease, AttemptEnd::GivenUp { why: why.clone(), blame: Blame::Host });
                let again = Progress::Waiting { attempt: lease.attempt + 1 };
                self.change(lease.order.unit, |unit| unit.progress = again);
                self.without_device(lease.order.unit, why);
                true
            }
            _ => false,
        }
    }

    /// Decides what a report means. If the attempt's worker is being killed, `killed` is the reason. The report may
    /// then be a complete verdict, or it may only describe how the runners died.
    fn judge(&mut self, now: Moment, lease: Lease, killed: Option<KillReason>, mut report: Box<Report>) {
        if self.ended_by_user(&lease, None) {
            return;
        }
        let role = self.unit(lease.order.unit).step().role.name();
        if report.head.status == Status::InfraError && self.ended_by_order(&lease, role, killed) {
            return;
        }
        if let Some(contradiction) = contradiction(lease.order, &report) {
            self.repeat_or_give_up(now, lease, Blame::Worker, contradiction);
            return;
        }
        self.blame_second_kill(lease.order, &mut report);
        self.blame_same_end(lease.order.unit, &mut report);
        let (status, detail) = (report.head.status, report.head.detail.clone());
        let blame = report.head.blame();
        if status == Status::InfraError {
            match lease.short_of_memory {
                Some(KillReason::HostCeiling { .. } | KillReason::HostFloor { .. }) => {
                    self.repeat_smaller_or_give_up(lease, detail);
                }
                _ if self.pause_if_out_of_tasks(now, &lease, report.head.room.and_then(|room| room.pids)) => {
                    self.repeat(lease, Blame::Host, detail);
                }
                _ if self.excuse_for_lack_of_room(&lease) => self.repeat(lease, Blame::Host, detail),
                _ => self.repeat_or_give_up(now, lease, Blame::Host, detail),
            }
            return;
        }
        if report.baseline_failed() {
            self.baseline_lost(&lease, &detail);
            return;
        }
        let id = lease.order.unit;
        let entries_passed = match &report.body {
            Body::Verify(verified) => verified.entries_passed,
            // Only verified entries are timed, so a profile or replay may not report unsupported entries.
            Body::Build(_) | Body::Profile(_) | Body::Replay(_) => 0,
        };
        let speedup = contest::speedup(&report).filter(|_| status == Status::Passed);
        self.attempt_ended(&lease, AttemptEnd::Accepted(report));
        let partial = self.unit(id).spec.partial && status == Status::Unsupported && 0 < entries_passed;
        if status != Status::Passed && !partial {
            self.unit_done(id, status, blame, detail);
            return;
        }
        let goes_on = self.change(id, |unit| {
            unit.speedup = speedup.or(unit.speedup);
            unit.advance()
        });
        if !goes_on {
            self.unit_done(id, Status::Passed, None, detail);
        }
    }

    /// Treats a kill by an unknown sender as a crash of the candidate if the previous such kill happened at the same
    /// entry. Without a PID namespace, a candidate may have killed itself, but a single kill does not prove it.
    fn blame_second_kill(&mut self, order: Order, report: &mut Report) {
        let head = &report.head;
        if head.status != Status::InfraError || !head.end.as_ref().is_some_and(|end| end.unknown_sender) {
            return;
        }
        let Some(entry) = head.failed_entry().map(str::to_owned) else { return };
        let blamed = order.beside.filter(|_| report.baseline_failed()).unwrap_or(order.unit);
        let before = self.change(blamed, |unit| unit.losses().killed_at.replace(entry.clone()));
        if before.as_ref() == Some(&entry) {
            mark_as_crashed(&mut report.head);
        }
    }

    /// Blames the source if two builds in a row ended in the same way, even if the cause is unknown, because a fault of
    /// the machine would hardly repeat itself.
    fn blame_same_end(&mut self, unit: UnitId, report: &mut Report) {
        let Body::Build(built) = &report.body else { return };
        let before = self.change(unit, |unit| unit.replace_build_end(built.unexplained.clone()));
        if report.head.status == Status::InfraError
            && built.unexplained.is_some()
            && before == built.unexplained
        {
            report.head.status = Status::CompileError;
            report
                .head
                .detail
                .push_str("; the previous attempt ended in the same way, so the source is to blame");
        }
    }

    /// Handles an attempt that ended because the baseline beside it failed. The job's units continue unpaired, and the
    /// attempt does not count as a loss. This happens at most once in a job.
    fn baseline_lost(&mut self, lease: &Lease, detail: &str) {
        let Some(baseline) = lease.order.beside else { return };
        self.change(baseline, |lost| {
            lost.may_be_paired = false;
            lost.failed_beside = true;
        });
        self.actions.push(Action::BaselineLost { baseline });
        self.policy("baseline_lost", detail.to_owned(), vec![("unit", u64::from(baseline.0))]);
        let why = format!("the baseline failed beside it: {detail}");
        self.attempt_ended(lease, AttemptEnd::Retried { why, blame: Blame::Host });
        self.change(lease.order.unit, |unit| {
            unit.progress = Progress::Waiting { attempt: lease.attempt + 1 };
        });
    }

    fn repeat_or_give_up(&mut self, now: Moment, lease: Lease, blame: Blame, why: String) {
        let id = lease.order.unit;
        let (too_many, workers) = self.change(id, |unit| (unit.losses().add_lost(now), unit.workers_lost));
        let quarantine = self.is_in_quarantine(id);
        if too_many || quarantine {
            let why = if quarantine {
                self.policy(
                    "quarantine",
                    format!(
                        "a candidate or replay whose attempts have lost {workers} workers is put off or ended"
                    ),
                    vec![("unit", u64::from(id.0)), ("workers_lost", u64::from(workers))],
                );
                format!(
                    "in quarantine, because its attempts have lost {workers} workers; the last time: {why}"
                )
            } else {
                why
            };
            self.give_up(lease, blame, why);
        } else {
            self.repeat(lease, blame, why);
        }
    }

    fn is_in_quarantine(&self, id: UnitId) -> bool {
        MAX_WORKERS_LOST <= self.unit(id).workers_lost
    }

    /// Handles an attempt that ended for lack of memory. It is repeated once. Unless it is a build, the repetition uses
    /// a smaller batch, if there is one.
    pub(super) fn repeat_smaller_or_give_up(&mut self, lease: Lease, why: String) {
        let times = self.change(lease.order.unit, |unit| {
            unit.losses().short_of_memory += 1;
            // A build is repeated with the same memory, because a compiler with less memory could fail for that reason
            // alone.
            if lease.order.stage != Stage::Build {
                unit.losses().from_way = lease.way + 1;
            }
            unit.losses().short_of_memory
        });
        if MAX_SHORT_OF_MEMORY < times {
            self.give_up(lease, Blame::Host, why);
        } else {
            self.repeat(lease, Blame::Host, why);
        }
    }

    /// Gives up a step. If the step is a screening or a confirmation, the unit continues without it, unless the unit is
    /// in quarantine. In all other cases, the unit is put off the first time, because the cause may be gone by the
    /// second pass, and it ends the second time.
    fn give_up(&mut self, lease: Lease, blame: Blame, why: String) {
        let id = lease.order.unit;
        let is_left_out =
            matches!(lease.order.stage, Stage::Screen | Stage::Confirm) && !self.is_in_quarantine(id);
        if !is_left_out && self.unit(id).second_pass == SecondPass::NotNeeded {
            return self.put_off(&lease, blame, why);
        }
        self.attempt_ended(&lease, AttemptEnd::GivenUp { why: why.clone(), blame });
        // A candidate that cannot be screened continues with its profile. A candidate that cannot be confirmed keeps
        // its first times.
        if !is_left_out {
            self.unit_done(id, Status::InfraError, Some(blame), why);
        } else if !self.change(id, Unit::advance) {
            self.unit_done(id, Status::Passed, None, format!("not confirmed: {why}"));
        }
    }

    fn put_off(&mut self, lease: &Lease, blame: Blame, why: String) {
        let id = lease.order.unit;
        self.change(id, |unit| {
            unit.second_pass = SecondPass::PutOff;
            unit.progress = Progress::Waiting { attempt: lease.attempt + 1 };
        });
        let numbers = vec![("unit", u64::from(id.0)), ("attempt", u64::from(lease.attempt))];
        self.policy("put_off", format!("put off until nothing else is left to do: {why}"), numbers);
        self.attempt_ended(lease, AttemptEnd::Retried { why, blame });
    }

    /// Ends an attempt without a result. The unit waits for its next attempt.
    pub(super) fn repeat(&mut self, lease: Lease, blame: Blame, why: String) {
        let id = lease.order.unit;
        self.change(id, |unit| unit.progress = Progress::Waiting { attempt: lease.attempt + 1 });
        self.attempt_ended(&lease, AttemptEnd::Retried { why: why.clone(), blame });
        self.policy("retry", why, vec![("unit", u64::from(id.0)), ("attempt", u64::from(lease.attempt))]);
    }

    pub(super) fn attempt_ended(&mut self, lease: &Lease, ended: AttemptEnd) {
        self.actions.push(Action::AttemptEnded {
            lease: lease.id,
            order: lease.order,
            attempt: lease.attempt,
            ended,
        });
    }

    pub(super) fn unit_done(&mut self, unit: UnitId, status: Status, blame: Option<Blame>, detail: String) {
        self.change(unit, |unit| {
            unit.progress = Progress::Done(status);
            // Candidates are not timed beside a baseline that failed.
            unit.may_be_paired &= status == Status::Passed;
            unit.forget_losses();
        });
        self.actions.push(Action::UnitDone { unit, status, blame, detail });
    }
}

fn memory_figures(reason: KillReason) -> String {
    match reason {
        KillReason::HostCeiling { owed, ceiling } => format!("owed {owed}, ceiling {ceiling}"),
        KillReason::HostFloor { available, floor } => format!("available {available}, floor {floor}"),
        _ => String::new(),
    }
}

/// Returns what is wrong with a report that contradicts itself or its order, or `None` if it does not. Such a report is
/// discarded.
fn contradiction(order: Order, report: &Report) -> Option<String> {
    let passed = report.head.status == Status::Passed;
    let what = match (order.stage, &report.body) {
        (Stage::Build, Body::Build(build)) => {
            (passed && build.artifact.is_none()).then_some("has the status PASSED but no artifact")
        }
        (Stage::Verify, Body::Verify(_)) => None,
        (Stage::Screen | Stage::Profile | Stage::Confirm, Body::Profile(profile)) => {
            (profile.baseline_failed && (order.beside.is_none() || passed)).then_some(
                "blames a baseline that was not timed, or says that it passed although the baseline failed",
            )
        }
        // A replay has a result exactly if it passed.
        (Stage::Replay, Body::Replay(replay)) => (passed != replay.result.is_some())
            .then_some("has a result without the status PASSED, or the status PASSED without a result"),
        _ => Some("has the results of another stage"),
    };
    what.map(|what| format!("the worker's report of stage `{}` {what}", order.stage.name()))
}

fn mark_as_crashed(head: &mut Head) {
    let again = ", as in an earlier attempt (without a PID namespace, the sender cannot be known)";
    head.status = Status::Crashed;
    head.detail.push_str(again);
    if let Some(failure) = head.failures.first_mut() {
        failure.status = Status::Crashed;
        failure.detail.push_str(again);
    }
}
