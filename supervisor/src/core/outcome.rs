//! What the end of an attempt means for its candidate.

use opt_shared::ids::{CandidateId, LeaseId, WorkerId};
use opt_shared::message::Report;
use opt_shared::outcome::{Blame, Status};

use super::event::{Action, AttemptEnd, Moment, Order, PhaseRow, Stage};
use super::job::Progress;
use super::worker::{Lease, State, Worker};
use super::{Core, MOST_ATTEMPTS};

impl Core {
    pub(super) fn finished(&mut self, now: Moment, worker: WorkerId, id: LeaseId, report: Box<Report>) {
        let Some(it) = self.workers.get_mut(&worker) else { return };
        let State::Leased(lease) = &it.state else { return };
        if lease.id != id {
            return;
        }
        let lease = lease.clone();
        it.state = if it.killed { State::Terminating } else { State::Idle };
        // Runners are reaped before a report is sent; what a crash of ours left is the driver's to kill.
        it.runners.clear();
        if let Report::Verify(verified) = &*report {
            it.validated += verified.bytes_validated;
        }
        self.phase(now, worker, &lease);
        self.ledger.release(worker, self.spec.idle_worker);
        self.judge(lease, report);
    }

    fn phase(&mut self, now: Moment, worker: WorkerId, lease: &Lease) {
        let spec = &self.spec.candidates[lease.order.candidate().index()];
        self.actions.push(Action::PhaseEnded(PhaseRow {
            order: lease.order,
            worker,
            predicted: spec.stage(lease.order.stage()).predicted + self.spec.idle_worker,
            peak_owed: lease.peak_owed,
            peak_reclaimable: lease.peak_reclaimable,
            started: lease.started,
            ended: now,
        }));
    }

    /// A worker died with a lease.
    pub(super) fn attempt_lost(&mut self, now: Moment, worker: &Worker, lease: Lease, why: String) {
        let _ = (now, worker);
        self.again_or_never(lease, Blame::Worker, why);
    }

    fn judge(&mut self, lease: Lease, report: Box<Report>) {
        let (status, detail, baseline_failed) = match &*report {
            Report::Build(build) => (build.status, build.detail.clone(), false),
            Report::Verify(verify) => (verify.status, verify.detail.clone(), false),
            Report::Profile(profile) => (profile.status, profile.detail.clone(), profile.baseline_failed),
        };
        if status == Status::InfraError {
            self.again_or_never(lease, Blame::Host, detail);
            return;
        }
        let candidate = lease.order.candidate();
        if baseline_failed {
            // Verified, then failed beside this candidate: the others go on without it, unpaired.
            if let Order::Profile { baseline: Some(baseline), .. } = lease.order {
                self.candidates[baseline.index()].may_profile = false;
                self.policy("baseline_lost", detail.clone(), vec![("candidate", u64::from(baseline.0))]);
            }
            self.actions.push(Action::AttemptEnded {
                lease: lease.id,
                order: lease.order,
                attempt: lease.attempt,
                ended: AttemptEnd::Retried { why: format!("the baseline failed beside it: {detail}") },
            });
            self.candidates[candidate.index()].progress =
                Progress::Waiting { stage: Stage::Profile, attempt: lease.attempt + 1 };
            return;
        }
        let entries_passed = match &*report {
            Report::Verify(verify) => verify.entries_passed,
            Report::Build(_) | Report::Profile(_) => 1,
        };
        self.actions.push(Action::AttemptEnded {
            lease: lease.id,
            order: lease.order,
            attempt: lease.attempt,
            ended: AttemptEnd::Stands(report),
        });
        let partial = self.spec.candidates[candidate.index()].partial
            && status == Status::Unsupported
            && 0 < entries_passed;
        if status != Status::Passed && !partial {
            self.candidate_done(candidate, status, status.blame(), detail);
            return;
        }
        let next = match lease.order.stage() {
            Stage::Build if self.spec.verify => Some(Stage::Verify),
            Stage::Verify => {
                self.candidates[candidate.index()].may_profile = true;
                self.is_timed(candidate).then_some(Stage::Profile)
            }
            Stage::Build | Stage::Profile => None,
        };
        match next {
            Some(stage) => {
                self.candidates[candidate.index()].progress = Progress::Waiting { stage, attempt: 1 };
            }
            None => self.candidate_done(candidate, Status::Passed, None, detail),
        }
    }

    /// Entries without elements are verified, never scored.
    fn is_timed(&self, candidate: CandidateId) -> bool {
        let job = self.spec.candidates[candidate.index()].job;
        self.spec.profile && self.spec.jobs[job.index()].timed
    }

    fn again_or_never(&mut self, lease: Lease, blame: Blame, why: String) {
        let candidate = lease.order.candidate();
        let again = lease.attempt < MOST_ATTEMPTS;
        let ended = if again {
            AttemptEnd::Retried { why: why.clone() }
        } else {
            AttemptEnd::GivenUp { why: why.clone() }
        };
        self.actions.push(Action::AttemptEnded {
            lease: lease.id,
            order: lease.order,
            attempt: lease.attempt,
            ended,
        });
        if again {
            self.policy(
                "retry",
                why,
                vec![("candidate", u64::from(candidate.0)), ("attempt", u64::from(lease.attempt))],
            );
            self.candidates[candidate.index()].progress =
                Progress::Waiting { stage: lease.order.stage(), attempt: lease.attempt + 1 };
        } else {
            self.candidate_done(candidate, Status::InfraError, Some(blame), why);
        }
    }

    pub(super) fn candidate_done(
        &mut self,
        candidate: CandidateId,
        status: Status,
        blame: Option<Blame>,
        detail: String,
    ) {
        self.candidates[candidate.index()].progress = Progress::Done(status);
        self.actions.push(Action::CandidateDone { candidate, status, blame, detail });
    }
}
