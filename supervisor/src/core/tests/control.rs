//! Tests of the effects and answers of users' requests. An attempt that a request ends never counts as a loss of its
//! unit.

use opt_shared::ids::{JobId, UnitId, WorkerId};
use opt_shared::message::{KillReason, Role};
use opt_shared::outcome::{Blame, Status};
use opt_shared::units::Bytes;

use super::harness::{Harness, kills, plan};
use crate::core::MAX_FAILURES;
use crate::core::control::{CANCELLED, Mode, UnitView, Which};
use crate::core::event::{Action, Answer, AttemptEnd, Control, Event, Stage, StopReason};
use crate::core::recycle::RecycleReason;

const VERIFIER: Which = Which::Role(Role::Verifier);

fn ask(harness: &mut Harness, request: Control) -> (Answer, Vec<Action>) {
    let actions = harness.feed(Event::Control(request));
    (answer_in(&actions), actions)
}

fn answer_in(actions: &[Action]) -> Answer {
    let mut answers: Vec<Answer> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Answered(answer) | Action::Replied(answer) => Some(answer.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(answers.len(), 1, "one request, one answer: {answers:?}");
    answers.remove(0)
}

fn done(answer: &(Answer, Vec<Action>)) -> bool {
    matches!(answer.0, Answer::Done(_))
}

fn already(answer: &(Answer, Vec<Action>)) -> bool {
    matches!(answer.0, Answer::Already(_))
}

fn recycled(harness: &Harness) -> Vec<Option<RecycleReason>> {
    harness
        .log
        .iter()
        .filter_map(|action| match action {
            Action::WorkerEnded { recycled, .. } => Some(*recycled),
            _ => None,
        })
        .collect()
}

#[test]
fn recycle_after_the_lease_waits_and_loses_nothing() {
    let mut harness = Harness::new(plan(1));
    let build = harness.lease();
    let request = Control::Recycle { which: VERIFIER, mode: Mode::Drain };
    assert!(done(&ask(&mut harness, request.clone())));
    let again = ask(&mut harness, request);
    assert!(already(&again) && kills(&again.1).is_empty());
    let actions = harness.finish(build, Status::Passed);
    assert!(actions.contains(&Action::Shutdown { worker: build.worker }));
    let verify = harness.lease();
    assert_ne!(verify.worker, build.worker);
    harness.finish(verify, Status::Passed);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 V0 P0", "each step was done once");
    assert_eq!(recycled(&harness)[0], Some(RecycleReason::Requested));
    assert_eq!(harness.policies("recycled").len(), 1);
}

#[test]
fn immediate_recycle_does_not_count_as_a_loss() {
    let mut harness = Harness::new(plan(1));
    for attempt in 1..=u32::try_from(MAX_FAILURES).expect("a few") + 1 {
        let granted = harness.lease();
        assert_eq!((granted.order.stage, granted.attempt), (Stage::Build, attempt));
        let pid = 100 + attempt;
        harness.runner(granted, pid, Bytes::mib(50));
        let asked =
            ask(&mut harness, Control::Recycle { which: Which::Worker(granted.worker), mode: Mode::Now });
        assert!(done(&asked));
        let reason = KillReason::Requested;
        assert_eq!(kills(&asked.1), [(granted.worker, Some(pid), reason), (granted.worker, None, reason)]);
        let same = Control::Recycle { which: Which::Worker(granted.worker), mode: Mode::Now };
        assert!(already(&ask(&mut harness, same)));
        harness.gone(granted.worker);
    }
    assert!(harness.ends().iter().all(|end| matches!(end, AttemptEnd::Retried { blame: Blame::Host, .. })));
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.done(0), Some((Status::Passed, None)));
}

#[test]
fn report_finished_before_the_kill_counts() {
    let mut harness = Harness::new(plan(1));
    let build = harness.lease();
    ask(&mut harness, Control::Recycle { which: VERIFIER, mode: Mode::Now });
    harness.finish(build, Status::Passed);
    assert_eq!(
        harness.core.unit_view(UnitId(0)),
        Some(UnitView::Waiting { stage: Stage::Verify, attempt: 1 })
    );
    harness.gone(build.worker);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 V0 P0");
}

#[test]
fn draining_worker_is_not_told_again_but_can_be_killed() {
    let mut harness = Harness::new(plan(1));
    let build = harness.lease();
    ask(&mut harness, Control::Recycle { which: VERIFIER, mode: Mode::Drain });
    // The worker was told to end after its lease, but has not ended yet.
    let actions = harness.finish(build, Status::Passed);
    assert!(actions.contains(&Action::Shutdown { worker: build.worker }));
    let again = |mode| Control::Recycle { which: Which::Worker(build.worker), mode };
    let asked = ask(&mut harness, again(Mode::Drain));
    assert!(already(&asked) && kills(&asked.1).is_empty());
    let asked = ask(&mut harness, again(Mode::Now));
    assert!(done(&asked));
    assert_eq!(kills(&asked.1), [(build.worker, None, KillReason::Requested)]);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 V0 P0");
}

#[test]
fn recycling_no_worker_is_allowed_and_an_unknown_one_is_an_error() {
    let mut harness = Harness::new(plan(1));
    let profiler = Control::Recycle { which: Which::Role(Role::Profiler), mode: Mode::Now };
    assert!(already(&ask(&mut harness, profiler)));
    let unknown = Control::Recycle { which: Which::Worker(WorkerId(77)), mode: Mode::Drain };
    assert!(matches!(ask(&mut harness, unknown).0, Answer::Unknown(_)));
    // A worker that is still starting need not be replaced.
    assert!(already(&ask(&mut harness, Control::Recycle { which: VERIFIER, mode: Mode::Now })));
}

#[test]
fn pause_grants_nothing_and_resume_continues() {
    let mut harness = Harness::new(plan(1));
    let build = harness.lease();
    assert!(done(&ask(&mut harness, Control::Pause)));
    assert!(already(&ask(&mut harness, Control::Pause)));
    harness.finish(build, Status::Passed);
    for _ in 0..20 {
        harness.answer();
    }
    assert_eq!(harness.orders(), "B0");
    let why = harness.core.wait_reason(harness.now, UnitId(0), |id| format!("job/{id}")).expect("it waits");
    assert!(why.contains("paused") && why.contains("108 MiB"), "{why}");
    assert!(done(&ask(&mut harness, Control::Resume)));
    assert!(already(&ask(&mut harness, Control::Resume)));
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
}

#[test]
fn job_cancelled_during_a_pause_ends_during_it() {
    let mut harness = Harness::new(plan(2));
    let build = harness.lease();
    ask(&mut harness, Control::Pause);
    harness.finish(build, Status::Passed);
    let over = |actions: &[Action]| actions.iter().any(|it| matches!(it, Action::JobDone { .. }));
    assert!(!over(&harness.log));
    let asked = ask(&mut harness, Control::Cancel { job: JobId(0), unit: None });
    assert!(done(&asked) && over(&asked.1), "{:#?}", asked.1);
    ask(&mut harness, Control::Resume);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.log.iter().filter(|it| matches!(it, Action::JobDone { .. })).count(), 1);
}

#[test]
fn cancelled_candidate_is_skipped_and_its_worker_killed() {
    let mut harness = Harness::new(plan(3));
    let build = harness.lease();
    let one = |id| Control::Cancel { job: JobId(0), unit: Some(UnitId(id)) };
    // A waiting unit ends at once, a running one with its worker.
    assert!(done(&ask(&mut harness, one(2))));
    assert_eq!(harness.done(2), Some((Status::Skipped, Some(Blame::Plan))));
    let asked = ask(&mut harness, one(0));
    assert_eq!(kills(&asked.1), [(build.worker, None, KillReason::Cancelled)]);
    assert!(already(&ask(&mut harness, one(0))));
    assert_eq!(harness.done(0), None);
    harness.gone(build.worker);
    assert_eq!(harness.done(0), Some((Status::Skipped, Some(Blame::Plan))));
    assert!(already(&ask(&mut harness, one(0))));
    assert!(matches!(ask(&mut harness, one(9)).0, Answer::Unknown(_)));
    assert_eq!(harness.ends(), [AttemptEnd::GivenUp { why: CANCELLED.to_owned(), blame: Blame::Plan }]);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 B1 V1 P1");
}

#[test]
fn cancelled_candidate_is_skipped_even_if_it_reports_meanwhile() {
    let mut harness = Harness::new(plan(1));
    let build = harness.lease();
    ask(&mut harness, Control::Cancel { job: JobId(0), unit: None });
    harness.finish(build, Status::Passed);
    assert_eq!(harness.done(0), Some((Status::Skipped, Some(Blame::Plan))));
    harness.gone(build.worker);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0");
}

#[test]
fn new_ceiling_applies_from_the_next_grant() {
    let mut harness = Harness::new(plan(2));
    let build = harness.lease();
    let set = |mib| Control::SetCeiling { ceiling: Bytes::mib(mib) };
    // The minimum is 20 MiB for the supervisor and 8 MiB for an idle worker.
    assert!(matches!(ask(&mut harness, set(27)).0, Answer::Refused(_)));
    assert!(done(&ask(&mut harness, set(28))) && done(&ask(&mut harness, set(4096))));
    assert!(already(&ask(&mut harness, set(4096))));
    let asked = ask(&mut harness, set(50));
    assert!(done(&asked) && kills(&asked.1).is_empty(), "running attempts continue");
    harness.finish(build, Status::Passed);
    harness.pass_the_rest();
    let does_not_fit = Some((Status::DoesNotFit, Some(Blame::Plan)));
    assert_eq!((harness.done(0), harness.done(1)), (does_not_fit, does_not_fit));
    assert_eq!(harness.orders(), "B0");
}

#[test]
fn submitted_candidates_are_served_in_turns() {
    let mut harness = Harness::new(plan(1));
    ask(&mut harness, Control::StayOpen);
    let submit = |harness: &mut Harness, id| {
        let actions = harness.submit(0, id);
        (answer_in(&actions), actions)
    };
    for _ in 0..3 {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    for _ in 0..10 {
        harness.answer();
    }
    assert_eq!(harness.stopped(), None, "an open run waits");
    assert!(done(&submit(&mut harness, 1)));
    let first = harness.lease();
    // The new candidates wait until the first one is done, and then go through each stage together.
    assert!(done(&submit(&mut harness, 2)) && done(&submit(&mut harness, 3)));
    assert!(matches!(submit(&mut harness, 3).0, Answer::Unknown(_)), "the id is already taken");
    harness.finish(first, Status::Passed);
    while harness.done(3).is_none() {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    assert_eq!(harness.orders(), "B0 V0 P0 B1 V1 P1/0 B2 B3 V2 V3 P2/0 P3/0");
    assert!(done(&ask(&mut harness, Control::Shutdown { mode: Mode::Drain })));
    assert!(matches!(submit(&mut harness, 4).0, Answer::Refused(_)));
    assert_eq!(harness.pass_the_rest(), StopReason::Finished, "nothing was left to do");
}

#[test]
fn shutdown_drains_or_kills_as_requested() {
    let mut harness = Harness::new(plan(2));
    let build = harness.lease();
    let shutdown = |mode| Control::Shutdown { mode };
    let drained = ask(&mut harness, shutdown(Mode::Drain)).0;
    assert_eq!(drained, Answer::Done("running attempts may finish, then the run ends".to_owned()));
    assert!(already(&ask(&mut harness, shutdown(Mode::Drain))));
    assert!(matches!(ask(&mut harness, Control::Pause).0, Answer::Refused(_)));
    let asked = ask(&mut harness, shutdown(Mode::Now));
    assert_eq!(kills(&asked.1), [(build.worker, None, KillReason::Interrupted)]);
    assert_eq!(harness.pass_the_rest(), StopReason::Interrupted);
}
