//! A replay in the core: one stage, alone, with everybody else's rights and limits.

use opt_shared::ids::{CandidateId, JobId};
use opt_shared::message::KillReason;
use opt_shared::outcome::{Blame, Status};
use opt_shared::units::Bytes;
use opt_tests::reports;

use super::desk::{Desk, STAGE, plan};
use crate::core::event::{Action, Order, Stage, StopReason};
use crate::core::spec::{RunSpec, StageSpec};

/// One job, whose only candidate stands for a replay.
fn replaying(stage: StageSpec) -> RunSpec {
    let mut spec = plan(1);
    spec.jobs[0].baseline = None;
    spec.candidates[0].replay = Some(stage);
    spec
}

const REPLAY: Order = Order::Replay { candidate: CandidateId(0) };

#[test]
fn a_replay_is_one_lease_of_a_profiler() {
    let mut desk = Desk::new(replaying(STAGE));
    let given = desk.lease();
    assert_eq!((given.order, given.attempt), (REPLAY, 1));
    desk.finish(given, Status::Passed);
    assert_eq!(desk.done(0), Some((Status::Passed, None)));
    assert!(desk.log.iter().any(|it| matches!(it, Action::JobDone { job: JobId(0), .. })));
    assert_eq!(desk.pass_the_rest(), StopReason::Finished);
}

/// A worker that says passed and shows nothing, or shows something and does not say so, is not believed.
#[test]
fn a_result_stands_with_passed_and_with_nothing_else() {
    for (status, with_result) in
        [(Status::Passed, false), (Status::InfraError, true), (Status::CaptureError, true)]
    {
        let mut desk = Desk::new(replaying(STAGE));
        for _ in 0..2 {
            let given = desk.lease();
            let mut report = reports::report(Stage::Replay, status);
            let shown = if with_result { Status::Passed } else { Status::InfraError };
            report.body = reports::report(Stage::Replay, shown).body;
            desk.report(given, report);
        }
        assert_eq!(desk.done(0), Some((Status::InfraError, Some(Blame::Worker))), "{status}");
    }
}

#[test]
fn a_lost_worker_costs_a_replay_one_more_attempt() {
    let mut desk = Desk::new(replaying(STAGE));
    let given = desk.lease();
    desk.gone(given.worker);
    let again = desk.lease();
    assert_eq!((again.order, again.attempt), (REPLAY, 2));
    desk.finish(again, Status::Passed);
    assert_eq!(desk.done(0), Some((Status::Passed, None)));
}

#[test]
fn a_replay_that_outlives_its_deadline_is_ended() {
    let mut desk = Desk::new(replaying(STAGE));
    let given = desk.lease();
    let actions = desk.pass_time(STAGE.deadline);
    let ended = Action::KillWorker { worker: given.worker, reason: KillReason::Deadline };
    assert!(actions.contains(&ended), "{actions:?}");
}

#[test]
fn a_replay_that_never_fits_is_refused_before_anything_starts() {
    let desk = Desk::new(replaying(StageSpec { reserved: Bytes::gib(40), ..STAGE }));
    assert_eq!(desk.done(0), Some((Status::DoesNotFit, Some(Blame::Plan))));
    assert!(!desk.log.iter().any(|it| matches!(it, Action::Start { .. } | Action::StartWorker { .. })));
}
