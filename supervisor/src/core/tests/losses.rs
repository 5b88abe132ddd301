//! Tests of attempts that fail through no fault of the candidate, and of lost workers.

use std::time::Duration;

use opt_shared::ids::UnitId;
use opt_shared::message::KillReason;
use opt_shared::outcome::{Blame, Body, Head, Report, Status};

use super::harness::{Granted, Harness, kills, plan};
use crate::core::control::{Mode, Which};
use crate::core::event::{Action, AttemptEnd, Control, Event, Stage, StopReason, WorkerEndClass};
use crate::core::testkit::reports;
use crate::core::{FAILURE_WINDOW, LOSS_WINDOW, MAX_FAILURES, MAX_LOST_EVER};

fn classes(harness: &Harness) -> Vec<WorkerEndClass> {
    harness
        .log
        .iter()
        .filter_map(|action| match action {
            Action::WorkerEnded { class, .. } => Some(*class),
            _ => None,
        })
        .collect()
}

/// Fails both attempts of the second pass.
fn fail_second_pass(harness: &mut Harness) {
    for _ in 0..2 {
        let granted = harness.lease();
        harness.finish(granted, Status::InfraError);
    }
}

#[test]
fn candidate_without_a_verdict_is_put_off_until_nothing_else_is_left() {
    let mut harness = Harness::new(plan(3));
    for _ in 0..4 {
        let granted = harness.lease();
        // The baseline's first build passes. The next candidate's build passes only in its second pass.
        harness.finish(granted, if granted.order.unit.0 == 1 { Status::InfraError } else { Status::Passed });
    }
    assert_eq!(harness.policies("put_off").len(), 1);
    assert_eq!(harness.done(1), None);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 B1 B1#2 B2 V0 V2 P0 P2/0 B1#3 V1 P1/0");
    assert_eq!(harness.policies("second_pass").len(), 1);
    assert_eq!(harness.done(1), Some((Status::Passed, None)));
}

#[test]
fn candidates_wait_for_the_second_pass_of_their_baseline() {
    let mut harness = Harness::new(plan(2));
    for failed in [false, false, true, true] {
        let granted = harness.lease();
        harness.finish(granted, if failed { Status::InfraError } else { Status::Passed });
    }
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 B1 V0 V0#2 V1 V0#3 P0 P1/0");
}

#[test]
fn losses_of_a_step_further_apart_than_the_window_are_tolerated_up_to_a_number() {
    let mut plan = plan(1);
    plan.candidates[0].build[0].deadline = LOSS_WINDOW * 2;
    let mut harness = Harness::new(plan);
    for loss in 1..=MAX_LOST_EVER + 1 {
        assert!(harness.policies("put_off").is_empty(), "{loss}");
        let granted = harness.lease();
        harness.pass_time(LOSS_WINDOW);
        harness.finish(granted, Status::InfraError);
    }
    assert_eq!(harness.policies("put_off").len(), 1);
}

#[test]
fn report_of_an_attempt_ended_by_order_is_not_a_loss() {
    let mut harness = Harness::new(plan(1));
    for round in 1..10 {
        let granted = harness.lease();
        assert_eq!((granted.order.stage, granted.attempt), (Stage::Build, round));
        let which = Which::Worker(granted.worker);
        harness.feed(Event::Control(Control::Recycle { which, mode: Mode::Now }));
        // The runner died before the worker, so the worker had time to report the runner's death.
        harness.finish(granted, Status::InfraError);
        harness.gone(granted.worker);
    }
    assert!(harness.policies("put_off").is_empty() && harness.policies("retry").is_empty());
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.done(0), Some((Status::Passed, None)));
}

#[test]
fn attempt_stopped_with_the_run_is_repeated_by_the_next_run() {
    let mut harness = Harness::new(plan(1));
    let granted = harness.lease();
    harness.feed(Event::Interrupt);
    harness.feed(Event::Interrupt);
    harness.finish(granted, Status::InfraError);
    assert!(matches!(harness.ends()[..], [AttemptEnd::Abandoned { .. }]), "{:?}", harness.ends());
    assert_eq!(harness.done(0), None);
}

#[test]
fn attempt_with_an_infrastructure_error_is_repeated_once_in_each_pass() {
    let mut harness = Harness::new(plan(1));
    let first = harness.lease();
    harness.finish(first, Status::InfraError);
    let second = harness.lease();
    assert_eq!((second.order, second.attempt), (first.order, 2));
    harness.finish(second, Status::Passed);
    // In each pass, each stage may be repeated once.
    let verify = harness.lease();
    assert_eq!(verify.attempt, 1);
    harness.finish(verify, Status::InfraError);
    let verify = harness.lease();
    harness.finish(verify, Status::InfraError);
    assert_eq!(harness.done(0), None, "there is a second pass");
    fail_second_pass(&mut harness);
    assert_eq!(harness.done(0), Some((Status::InfraError, Some(Blame::Host))));
    let blame = Blame::Host;
    let why = "INFRA_ERROR".to_owned();
    assert_eq!(harness.ends()[0], AttemptEnd::Retried { why: why.clone(), blame });
    assert_eq!(harness.ends()[5], AttemptEnd::GivenUp { why, blame });
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 B0#2 V0 V0#2 V0#3 V0#4");
}

#[test]
fn lost_worker_is_replaced_and_its_successor_repeats_the_step() {
    let mut harness = Harness::new(plan(1));
    let first = harness.lease();
    harness.gone(first.worker);
    let second = harness.lease();
    assert_ne!(second.worker, first.worker);
    assert_eq!((second.order, second.attempt), (first.order, 2));
    harness.gone(second.worker);
    for _ in 0..2 {
        let later = harness.lease();
        harness.gone(later.worker);
    }
    assert_eq!(harness.done(0), Some((Status::InfraError, Some(Blame::Worker))));
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(classes(&harness), [WorkerEndClass::Unknown; 4]);
}

#[test]
fn candidate_that_lost_two_workers_is_quarantined() {
    let mut harness = Harness::new(plan(1));
    let build = harness.lease();
    harness.gone(build.worker);
    let again = harness.lease();
    assert_eq!((again.order.stage, again.attempt), (Stage::Build, 2));
    harness.finish(again, Status::Passed);
    let verify = harness.lease();
    assert_eq!((verify.order.stage, verify.attempt), (Stage::Verify, 1));
    harness.gone(verify.worker);
    assert_eq!(harness.policies("quarantine").len(), 1);
    // The unit may lose two more workers in its second pass, and then gets no further attempt.
    for _ in 0..2 {
        let last = harness.lease();
        harness.gone(last.worker);
    }
    assert_eq!(harness.done(0), Some((Status::InfraError, Some(Blame::Worker))));
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 B0#2 V0 V0#2 V0#3");
}

#[test]
fn reports_of_dead_workers_and_other_leases_change_nothing() {
    let mut harness = Harness::new(plan(1));
    let first = harness.lease();
    harness.gone(first.worker);
    let second = harness.lease();
    let lines = harness.log.len();
    harness.finish(first, Status::Passed);
    harness.runner(first, 7, plan(1).ceilings.host);
    harness.feed(Event::WorkerReady { worker: first.worker });
    harness.feed(Event::WorkerFault { worker: first.worker, detail: String::new() });
    harness.feed(Event::WorkerNotReady { worker: first.worker, why: String::new(), alive: true });
    harness.feed(Event::WorkerGone { worker: first.worker, how: String::new(), left_runners: false });
    harness.feed(Event::KillWanted { worker: first.worker, pid: 7, reason: KillReason::Deadline });
    harness.feed(Event::RunnerDied { worker: first.worker, pid: 7 });
    // The living worker reports for the dead worker's lease.
    harness.feed(Event::Finished {
        worker: second.worker,
        lease: first.lease,
        report: Box::new(reports::report(Stage::Build, Status::Passed)),
    });
    assert_eq!(harness.log.len(), lines, "{:?}", &harness.log[lines..]);
}

#[test]
fn stuck_worker_is_killed_and_its_candidate_is_not_blamed() {
    let mut harness = Harness::new(plan(1));
    let first = harness.lease();
    assert!(kills(&harness.pass_time(Duration::from_secs(59))).is_empty());
    assert_eq!(
        kills(&harness.pass_time(Duration::from_secs(1))),
        [(first.worker, None, KillReason::Deadline)]
    );
    assert!(kills(&harness.pass_time(Duration::from_secs(10))).is_empty(), "it is killed only once");
    harness.gone(first.worker);
    let second = harness.lease();
    assert_eq!(second.attempt, 2);
    // The report of a worker that finished before the signal reached it counts.
    harness.pass_time(Duration::from_secs(60));
    harness.finish(second, Status::Passed);
    assert!(matches!(harness.ends()[1], AttemptEnd::Accepted(_)));
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 B0#2 V0 P0");
}

#[test]
fn killed_worker_that_does_not_die_stops_the_run() {
    let mut harness = Harness::new(plan(1));
    harness.lease();
    harness.pass_time(Duration::from_secs(60));
    let deadline = harness.core.next_deadline().expect("its death has a deadline");
    harness.pass_time(deadline - harness.now);
    assert_eq!(harness.policies("worker_not_gone").len(), 1);
    let Some(StopReason::HostFailure { why }) = harness.stopped() else { panic!("{:#?}", harness.log) };
    assert!(why.contains("is still alive"), "{why}");
}

#[test]
fn worker_that_reports_a_fault_is_killed() {
    let mut harness = Harness::new(plan(1));
    let first = harness.lease();
    let actions = harness.feed(Event::WorkerFault { worker: first.worker, detail: "no pids".to_owned() });
    assert_eq!(kills(&actions), [(first.worker, None, KillReason::WorkerFault)]);
    assert_eq!(harness.policies("worker_fault")[0].reason, "no pids");
    harness.gone(first.worker);
    assert_eq!(harness.lease().attempt, 2);
}

#[test]
fn worker_start_has_a_deadline() {
    let mut harness = Harness::new(plan(1));
    assert_eq!(harness.core.next_deadline(), Some(Duration::from_millis(30_001)));
    let actions = harness.pass_time(Duration::from_secs(30));
    let [(worker, None, KillReason::Deadline)] = kills(&actions)[..] else { panic!("{actions:?}") };
    harness.gone(worker);
    assert_eq!(classes(&harness), [WorkerEndClass::NotReady]);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
}

#[test]
fn too_many_lost_workers_stop_the_run() {
    // In the first round, losses follow each other as fast as the delays allow. In the second round, any two losses are
    // more than a window apart.
    for pace in [Duration::ZERO, FAILURE_WINDOW * 2] {
        let mut harness = Harness::new(plan(1));
        let mut losses = 0;
        while harness.stopped().is_none() {
            losses += 1;
            assert!(losses <= MAX_FAILURES, "{:#?}", harness.log);
            harness.now += pace;
            let worker = harness
                .log
                .iter()
                .rev()
                .find_map(|action| match action {
                    Action::StartWorker { worker, .. } => Some(*worker),
                    _ => None,
                })
                .expect("a worker is started");
            let lines = harness.log.len();
            harness.feed(Event::WorkerNotReady { worker, why: "exec format error".to_owned(), alive: false });
            // The delay before each start grows, up to ten seconds.
            let starts = |harness: &Harness, from: usize| {
                harness.log[from..].iter().filter(|it| matches!(it, Action::StartWorker { .. })).count()
            };
            assert_eq!(starts(&harness, lines), 0);
            if harness.stopped().is_none() {
                let deadline = harness.core.next_deadline().expect("the next start is due");
                let wait = Duration::from_millis(100 << (losses - 1)).min(Duration::from_secs(10));
                assert_eq!(deadline - harness.now, wait);
                harness.pass_time(wait);
                assert_eq!(starts(&harness, lines), 1);
            }
        }
        let Some(StopReason::HostFailure { why }) = harness.stopped() else {
            panic!("{:?}", harness.stopped())
        };
        assert!(why.contains("exec format error"), "{why}");
        assert_eq!(losses, MAX_FAILURES);
        assert_eq!(harness.done(0), None, "a resumed run continues with this candidate");
    }
}

#[test]
fn lost_workers_far_apart_do_not_stop_the_run() {
    let mut harness = Harness::new(plan(12));
    for _ in 0..12 {
        // Of every two attempts, the first loses its worker.
        let lost = harness.lease();
        harness.now += FAILURE_WINDOW;
        harness.gone(lost.worker);
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.done(11), Some((Status::Passed, None)));
}

#[test]
fn baseline_lost_beside_a_candidate_is_not_the_candidates_loss() {
    let mut harness = Harness::new(plan(3));
    for _ in 0..7 {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    let failed = |status| reports::of_the_baseline(reports::report(Stage::Profile, status));
    let paired = harness.lease();
    harness.finish(paired, Status::InfraError);
    let paired = harness.lease();
    assert_eq!(paired.attempt, 2);
    harness.report(paired, failed(Status::Timeout));
    assert_eq!(harness.policies("baseline_lost").len(), 1);
    assert!(harness.log.contains(&Action::BaselineLost { baseline: UnitId(0) }));
    // The first attempt was lost through the host's fault. The second ended because of the baseline, which does not
    // count as a loss.
    let third = harness.lease();
    // This attempt has no baseline beside it. If the worker blames a baseline nevertheless, the worker is at fault, and
    // the attempt counts as one more loss.
    harness.report(third, failed(Status::Timeout));
    assert_eq!(harness.policies("put_off").len(), 1);
    let other = harness.lease();
    harness.finish(other, Status::Passed);
    for _ in 0..2 {
        let again = harness.lease();
        harness.report(again, failed(Status::Timeout));
    }
    assert_eq!(harness.done(1), Some((Status::InfraError, Some(Blame::Worker))));
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 B1 B2 V0 V1 V2 P0 P1/0 P1/0#2 P1#3 P2 P1#4 P1#5");
    let failed = |action: &Action| matches!(action, Action::JobDone { baseline_failed: true, .. });
    assert!(harness.log.iter().any(failed));
}

#[test]
fn impossible_report_is_the_workers_fault() {
    let nothing_built = || {
        let Report { head, .. } = reports::report(Stage::Build, Status::Passed);
        Report::new(head, Body::of_nothing(Stage::Build))
    };
    for report in [nothing_built(), reports::report(Stage::Verify, Status::Passed)] {
        let mut harness = Harness::new(plan(1));
        for _ in 0..4 {
            let granted = harness.lease();
            harness.report(granted, report.clone());
        }
        assert_eq!(harness.done(0), Some((Status::InfraError, Some(Blame::Worker))));
    }
}

#[test]
fn second_kill_by_an_unknown_sender_on_one_entry_is_a_crash() {
    let crash = (Status::Crashed, Some(Blame::Candidate));
    let host = (Status::InfraError, Some(Blame::Host));
    for (entries, unknown, expected) in [
        (["entry_000001", "entry_000001"], true, crash),
        (["entry_000001", "entry_000002"], true, host),
        // A runner in a separate PID namespace cannot kill itself.
        (["entry_000001", "entry_000001"], false, host),
    ] {
        for passed in [1, 2] {
            let mut harness = Harness::new(plan(1));
            for _ in 0..passed {
                let granted = harness.lease();
                harness.finish(granted, Status::Passed);
            }
            for entry in entries {
                let granted = harness.lease();
                harness.report(granted, reports::killed_at(granted.order.stage, entry, unknown));
            }
            if expected == host {
                fail_second_pass(&mut harness);
            }
            assert_eq!(harness.done(0), Some(expected), "{entries:?} {unknown}");
            if expected == crash {
                let Some(AttemptEnd::Accepted(report)) = harness.ends().pop() else {
                    panic!("{:?}", harness.ends())
                };
                let Head { status, failures, .. } = report.head;
                assert_eq!((status, failures[0].status), (Status::Crashed, Status::Crashed));
                assert!(failures[0].detail.contains("the sender cannot be known"), "{failures:?}");
            }
        }
    }
}

#[test]
fn baseline_that_kills_itself_beside_a_candidate_is_lost() {
    let mut harness = Harness::new(plan(2));
    for _ in 0..5 {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    for _ in 0..2 {
        let granted = harness.lease();
        let report = reports::killed_at(Stage::Profile, "entry_000001", true);
        harness.report(granted, reports::of_the_baseline(report));
    }
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 B1 V0 V1 P0 P1/0 P1/0#2 P1#3");
    assert_eq!(harness.done(1), Some((Status::Passed, None)));
}

#[test]
fn one_kill_of_each_side_on_one_entry_is_not_a_crash() {
    let mut harness = Harness::new(plan(2));
    for _ in 0..5 {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    for baseline_failed in [true, false] {
        let granted = harness.lease();
        let report = reports::killed_at(Stage::Profile, "entry_000001", true);
        harness.report(granted, if baseline_failed { reports::of_the_baseline(report) } else { report });
    }
    fail_second_pass(&mut harness);
    assert_eq!(harness.done(1), Some((Status::InfraError, Some(Blame::Host))));
    assert!(harness.policies("baseline_lost").is_empty());
}

/// If attempts finish in between, only the workers that were lost within the window count.
#[test]
fn lost_workers_stop_the_run_only_within_the_window() {
    for (late, stops) in [(Duration::ZERO, true), (Duration::from_millis(1), false)] {
        let mut harness = Harness::new(plan(12));
        let mut first = Duration::ZERO;
        for loss in 1..=MAX_FAILURES {
            let lost = harness.lease();
            if loss == MAX_FAILURES {
                harness.now = first + FAILURE_WINDOW + late - Duration::from_millis(1);
            }
            harness.gone(lost.worker);
            if loss == 1 {
                first = harness.now;
            }
            if loss < MAX_FAILURES {
                assert_eq!(harness.stopped(), None, "after {loss}");
                let again = harness.lease();
                harness.finish(again, Status::Passed);
            }
        }
        assert_eq!(harness.stopped().is_some(), stops, "{late:?}");
    }
}

#[test]
fn lost_attempt_says_that_its_worker_reported_a_fault() {
    let mut harness = Harness::new(plan(1));
    let first = harness.lease();
    harness.feed(Event::WorkerFault { worker: first.worker, detail: "no more".to_owned() });
    harness.gone(first.worker);
    let [AttemptEnd::Retried { why, .. }] = &harness.ends()[..] else { panic!("{:?}", harness.ends()) };
    assert!(why.contains("could not continue"), "{why}");
}

#[test]
fn build_that_ends_twice_in_the_same_unexplained_way_is_the_candidates_fault() {
    let failed = |granted: Granted, end: Option<&str>| {
        let mut report = reports::report(granted.order.stage, Status::InfraError);
        let Body::Build(built) = &mut report.body else { panic!("a build: {granted:?}") };
        built.unexplained = end.map(str::to_owned);
        report
    };
    let mut harness = Harness::new(plan(1));
    for end in [Some("one"), Some("two")] {
        let build = harness.lease();
        harness.report(build, failed(build, end));
    }
    // The second pass.
    for end in [None, None] {
        let build = harness.lease();
        harness.report(build, failed(build, end));
    }
    assert_eq!(
        harness.done(0),
        Some((Status::InfraError, Some(Blame::Host))),
        "no two builds ended in the same way"
    );
    let mut harness = Harness::new(plan(1));
    for _ in 0..2 {
        assert_eq!(harness.done(0), None);
        let build = harness.lease();
        harness.report(build, failed(build, Some("one")));
    }
    assert_eq!(harness.done(0), Some((Status::CompileError, Some(Blame::Candidate))));
}
