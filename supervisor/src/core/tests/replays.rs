//! Tests of how the core handles replays. A replay has one stage, which runs alone and has the same limits as other
//! stages.

use opt_shared::ids::{JobId, UnitId};
use opt_shared::message::KillReason;
use opt_shared::outcome::{Blame, Status};
use opt_shared::units::Bytes;

use super::harness::{Harness, Plan, STAGE, a_replay, plan};
use crate::core::event::{Action, Order, Stage, StopReason};
use crate::core::spec::StageSpec;
use crate::core::testkit::reports;

/// Returns a plan with one job, whose only unit is a replay.
fn replaying(stage: StageSpec) -> Plan {
    let mut plan = plan(1);
    plan.jobs[0].baseline = None;
    plan.candidates[0] = a_replay(stage);
    plan
}

const REPLAY: Order = Order { unit: UnitId(0), stage: Stage::Replay, beside: None };

#[test]
fn replay_takes_one_lease_of_a_profiler() {
    let mut harness = Harness::new(replaying(STAGE));
    let granted = harness.lease();
    assert_eq!((granted.order, granted.attempt), (REPLAY, 1));
    harness.finish(granted, Status::Passed);
    assert_eq!(harness.done(0), Some((Status::Passed, None)));
    assert!(harness.log.iter().any(|it| matches!(it, Action::JobDone { job: JobId(0), .. })));
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
}

#[test]
fn replay_report_whose_result_contradicts_its_status_is_the_workers_fault() {
    for (status, with_result) in
        [(Status::Passed, false), (Status::InfraError, true), (Status::CaptureError, true)]
    {
        let mut harness = Harness::new(replaying(STAGE));
        for _ in 0..4 {
            let granted = harness.lease();
            let mut report = reports::report(Stage::Replay, status);
            let shown = if with_result { Status::Passed } else { Status::InfraError };
            report.body = reports::report(Stage::Replay, shown).body;
            harness.report(granted, report);
        }
        assert_eq!(harness.done(0), Some((Status::InfraError, Some(Blame::Worker))), "{status}");
    }
}

#[test]
fn lost_worker_costs_a_replay_one_attempt() {
    let mut harness = Harness::new(replaying(STAGE));
    let granted = harness.lease();
    harness.gone(granted.worker);
    let again = harness.lease();
    assert_eq!((again.order, again.attempt), (REPLAY, 2));
    harness.finish(again, Status::Passed);
    assert_eq!(harness.done(0), Some((Status::Passed, None)));
}

#[test]
fn replay_past_its_deadline_is_ended() {
    let mut harness = Harness::new(replaying(STAGE));
    let granted = harness.lease();
    let actions = harness.pass_time(STAGE.deadline);
    let ended = Action::KillWorker { worker: granted.worker, reason: KillReason::Deadline };
    assert!(actions.contains(&ended), "{actions:?}");
}

#[test]
fn replay_that_never_fits_is_refused_before_anything_starts() {
    let harness = Harness::new(replaying(StageSpec { reserved: Bytes::gib(40), ..STAGE }));
    assert_eq!(harness.done(0), Some((Status::DoesNotFit, Some(Blame::Plan))));
    assert!(!harness.log.iter().any(|it| matches!(it, Action::Start { .. } | Action::StartWorker { .. })));
}
