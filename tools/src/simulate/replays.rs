//! Replays after the jobs, as the driver has them: a second core in which every candidate of the plan is over and each
//! replay stands as one with a single stage. Owns its plan, the workers that lie about it, and its laws.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use opt_shared::ids::{CandidateId, JobId, LeaseId};
use opt_shared::outcome::{Body, Report, Status};
use opt_shared::units::Bytes;
use opt_supervisor::core::event::{Action, AttemptEnd, Control, Order, Stage};
use opt_supervisor::core::spec::{CandidateSpec, JobSpec, Resumed, RunSpec, StageSpec};
use opt_tests::reports;

use super::plan::a_candidate;
use super::tape::Tape;

/// None where the tape has no replay.
pub(crate) fn a_plan(jobs: &RunSpec, tape: &mut Tape) -> Option<RunSpec> {
    let count = tape.pick(&[0, 1, 2, 3]);
    let mut spec = RunSpec { verify: false, profile: false, ..jobs.clone() };
    for job in &mut spec.jobs {
        (job.baseline, job.broken, job.timed) = (None, None, false);
        job.candidates.clear();
    }
    for candidate in &mut spec.candidates {
        candidate.job = JobId(0);
        candidate.resumed = Some(Resumed::Done { status: Status::Passed, may_profile: false });
    }
    let recycle = spec.jobs.first()?.recycle.clone();
    for _ in 0..count {
        let id = CandidateId(u32::try_from(spec.candidates.len()).unwrap_or(u32::MAX));
        let job = JobId(u32::try_from(spec.jobs.len()).unwrap_or(u32::MAX));
        let stage = StageSpec {
            predicted: Bytes::mib(10),
            reserved: Bytes::mib(tape.pick(&[100, 20, 300, 1500])),
            device: Bytes::ZERO,
            deadline: Duration::from_secs(10),
            batch: None,
        };
        spec.candidates.push(CandidateSpec { replay: Some(stage), ..a_candidate(id, job) });
        spec.jobs.push(JobSpec {
            id: job,
            baseline: None,
            candidates: vec![id],
            recycle: recycle.clone(),
            broken: None,
            timed: false,
        });
    }
    (0 < count).then_some(spec)
}

/// The driver lets nobody submit once the replays have begun, and only a run's beginning keeps it open.
pub(crate) fn may_be_asked(request: &Control) -> bool {
    !matches!(request, Control::Submit { .. } | Control::StayOpen)
}

/// It passed and shows nothing, or it shows what it did not do.
pub(crate) fn a_lie(choice: u8) -> Report {
    let mut report = reports::report(Stage::Replay, Status::Passed);
    match choice % 3 {
        0 => report.body = Body::of_nothing(Stage::Replay),
        1 => report.head.status = Status::InfraError,
        _ => report.head.status = Status::CaptureError,
    }
    report
}

/// What holds of replays, kept from the actions alone.
#[derive(Debug, Default)]
pub(crate) struct ReplayLaws {
    open: BTreeMap<LeaseId, Order>,
    /// Candidates whose last attempt stands with a whole result.
    complete: BTreeSet<CandidateId>,
    replays: BTreeSet<CandidateId>,
}

impl ReplayLaws {
    pub(crate) fn action(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::Start { lease, order, .. } => {
                self.open.insert(*lease, *order);
                let is_replay = |order: &Order| order.stage() == Stage::Replay;
                // Its times are a result: nothing of ours runs beside it, no profile and no other replay.
                if 1 < self.open.len() && self.open.values().any(is_replay) {
                    return Err(format!("{action:?}: a replay is not alone: {:?}", self.open));
                }
                if is_replay(order) {
                    self.complete.remove(&order.candidate());
                    self.replays.insert(order.candidate());
                }
            }
            Action::AttemptEnded { lease, order, ended, .. } => {
                self.open.remove(lease);
                if let (AttemptEnd::Stands(report), Stage::Replay) = (ended, order.stage()) {
                    let Body::Replay(replayed) = &report.body else {
                        return Err(format!("{action:?}: that is no report of a replay"));
                    };
                    if (report.head.status == Status::Passed) != replayed.result.is_some() {
                        return Err(format!("{action:?}: a result without having passed, or none"));
                    }
                    if replayed.result.is_some() {
                        self.complete.insert(order.candidate());
                    }
                }
            }
            Action::CandidateDone { candidate, status, .. }
                if self.replays.contains(candidate)
                    && (*status == Status::Passed) != self.complete.contains(candidate) =>
            {
                return Err(format!("{action:?}, and its result is not that of a whole replay"));
            }
            _ => {}
        }
        Ok(())
    }
}
