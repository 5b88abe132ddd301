//! Attempts that fail through no fault of the candidate, and lost workers.

use std::time::Duration;

use opt_shared::message::KillReason;
use opt_shared::outcome::{Blame, Body, Head, Report, Status};

use super::desk::{Desk, kills, plan};
use crate::core::control::{Mode, Which};
use crate::core::event::{Action, AttemptEnd, Control, Event, Stage, StopReason, WorkerEndClass};
use crate::core::testkit::reports;
use crate::core::{FAILURE_WINDOW, LOSS_WINDOW, MAX_FAILURES, MAX_LOST_EVER};

fn classes(desk: &Desk) -> Vec<WorkerEndClass> {
    desk.log
        .iter()
        .filter_map(|action| match action {
            Action::WorkerEnded { class, .. } => Some(*class),
            _ => None,
        })
        .collect()
}

/// Fails both attempts of the second pass.
fn fails_again(desk: &mut Desk) {
    for _ in 0..2 {
        let given = desk.lease();
        desk.finish(given, Status::InfraError);
    }
}

#[test]
fn candidate_without_a_verdict_is_put_off_until_nothing_else_is_left() {
    let mut desk = Desk::new(plan(3));
    for _ in 0..4 {
        let given = desk.lease();
        // The baseline builds at once, the next candidate only in its second pass.
        desk.finish(given, if given.order.unit.0 == 1 { Status::InfraError } else { Status::Passed });
    }
    assert_eq!(desk.policies("put_off").len(), 1);
    assert_eq!(desk.done(1), None);
    assert_eq!(desk.pass_the_rest(), StopReason::Finished);
    assert_eq!(desk.orders(), "B0 B1 B1#2 B2 V0 V2 P0 P2/0 B1#3 V1 P1/0");
    assert_eq!(desk.policies("second_pass").len(), 1);
    assert_eq!(desk.done(1), Some((Status::Passed, None)));
}

#[test]
fn candidates_wait_for_the_second_pass_of_their_baseline() {
    let mut desk = Desk::new(plan(2));
    for failed in [false, false, true, true] {
        let given = desk.lease();
        desk.finish(given, if failed { Status::InfraError } else { Status::Passed });
    }
    assert_eq!(desk.pass_the_rest(), StopReason::Finished);
    assert_eq!(desk.orders(), "B0 B1 V0 V0#2 V1 V0#3 P0 P1/0");
}

#[test]
fn losses_further_apart_than_the_window_are_tolerated_up_to_a_number() {
    let mut plan = plan(1);
    plan.candidates[0].build[0].deadline = LOSS_WINDOW * 2;
    let mut desk = Desk::new(plan);
    for loss in 1..=MAX_LOST_EVER + 1 {
        assert!(desk.policies("put_off").is_empty(), "{loss}");
        let given = desk.lease();
        desk.pass_time(LOSS_WINDOW);
        desk.finish(given, Status::InfraError);
    }
    assert_eq!(desk.policies("put_off").len(), 1);
}

#[test]
fn report_of_an_attempt_ended_by_order_is_not_a_loss() {
    let mut desk = Desk::new(plan(1));
    for round in 1..10 {
        let given = desk.lease();
        assert_eq!((given.order.stage, given.attempt), (Stage::Build, round));
        let which = Which::Worker(given.worker);
        desk.feed(Event::Control(Control::Recycle { which, mode: Mode::Now }));
        // The runner died first, so the worker had time to report its death.
        desk.finish(given, Status::InfraError);
        desk.gone(given.worker);
    }
    assert!(desk.policies("put_off").is_empty() && desk.policies("retry").is_empty());
    assert_eq!(desk.pass_the_rest(), StopReason::Finished);
    assert_eq!(desk.done(0), Some((Status::Passed, None)));
}

#[test]
fn attempt_stopped_with_the_run_is_repeated_by_the_next_run() {
    let mut desk = Desk::new(plan(1));
    let given = desk.lease();
    desk.feed(Event::Interrupt);
    desk.feed(Event::Interrupt);
    desk.finish(given, Status::InfraError);
    assert!(matches!(desk.ends()[..], [AttemptEnd::Abandoned { .. }]), "{:?}", desk.ends());
    assert_eq!(desk.done(0), None);
}

#[test]
fn infrastructure_error_is_tried_once_more() {
    let mut desk = Desk::new(plan(1));
    let first = desk.lease();
    desk.finish(first, Status::InfraError);
    let second = desk.lease();
    assert_eq!((second.order, second.attempt), (first.order, 2));
    desk.finish(second, Status::Passed);
    // Each stage may be repeated once.
    let verify = desk.lease();
    assert_eq!(verify.attempt, 1);
    desk.finish(verify, Status::InfraError);
    let verify = desk.lease();
    desk.finish(verify, Status::InfraError);
    assert_eq!(desk.done(0), None, "there is a second pass");
    fails_again(&mut desk);
    assert_eq!(desk.done(0), Some((Status::InfraError, Some(Blame::Host))));
    let blame = Blame::Host;
    let why = "INFRA_ERROR".to_owned();
    assert_eq!(desk.ends()[0], AttemptEnd::Retried { why: why.clone(), blame });
    assert_eq!(desk.ends()[5], AttemptEnd::GivenUp { why, blame });
    assert_eq!(desk.pass_the_rest(), StopReason::Finished);
    assert_eq!(desk.orders(), "B0 B0#2 V0 V0#2 V0#3 V0#4");
}

#[test]
fn lost_worker_is_replaced_and_its_successor_gets_the_lease() {
    let mut desk = Desk::new(plan(1));
    let first = desk.lease();
    desk.gone(first.worker);
    let second = desk.lease();
    assert_ne!(second.worker, first.worker);
    assert_eq!((second.order, second.attempt), (first.order, 2));
    desk.gone(second.worker);
    let third = desk.lease();
    desk.gone(third.worker);
    assert_eq!(desk.done(0), Some((Status::InfraError, Some(Blame::Worker))));
    assert_eq!(desk.pass_the_rest(), StopReason::Finished);
    assert_eq!(classes(&desk), [WorkerEndClass::Unknown; 3]);
}

/// One worker is lost in each of two stages. Neither stage has used its second attempt, but a unit may not lose more
/// than two workers.
#[test]
fn candidate_that_lost_two_workers_is_quarantined() {
    let mut desk = Desk::new(plan(1));
    let build = desk.lease();
    desk.gone(build.worker);
    let again = desk.lease();
    assert_eq!((again.order.stage, again.attempt), (Stage::Build, 2));
    desk.finish(again, Status::Passed);
    let verify = desk.lease();
    assert_eq!((verify.order.stage, verify.attempt), (Stage::Verify, 1));
    desk.gone(verify.worker);
    assert_eq!(desk.policies("quarantine").len(), 1);
    // It gets one more worker in its second pass, and then no further one.
    let last = desk.lease();
    desk.gone(last.worker);
    assert_eq!(desk.done(0), Some((Status::InfraError, Some(Blame::Worker))));
    assert_eq!(desk.pass_the_rest(), StopReason::Finished);
    assert_eq!(desk.orders(), "B0 B0#2 V0 V0#2");
}

#[test]
fn reports_of_dead_workers_and_other_leases_change_nothing() {
    let mut desk = Desk::new(plan(1));
    let first = desk.lease();
    desk.gone(first.worker);
    let second = desk.lease();
    let lines = desk.log.len();
    desk.finish(first, Status::Passed);
    desk.runner(first, 7, plan(1).ceilings.host);
    desk.feed(Event::WorkerReady { worker: first.worker });
    desk.feed(Event::WorkerFault { worker: first.worker, detail: String::new() });
    desk.feed(Event::WorkerNotReady { worker: first.worker, why: String::new(), alive: true });
    desk.feed(Event::WorkerGone { worker: first.worker, how: String::new(), left_runners: false });
    desk.feed(Event::KillWanted { worker: first.worker, pid: 7, reason: KillReason::Deadline });
    desk.feed(Event::RunnerDied { worker: first.worker, pid: 7 });
    // The right worker reports for a lease that it no longer has.
    desk.feed(Event::Finished {
        worker: second.worker,
        lease: first.lease,
        report: Box::new(reports::report(Stage::Build, Status::Passed)),
    });
    assert_eq!(desk.log.len(), lines, "{:?}", &desk.log[lines..]);
}

#[test]
fn stuck_worker_is_killed_and_its_candidate_is_not_blamed() {
    let mut desk = Desk::new(plan(1));
    let first = desk.lease();
    assert!(kills(&desk.pass_time(Duration::from_secs(59))).is_empty());
    assert_eq!(kills(&desk.pass_time(Duration::from_secs(1))), [(first.worker, None, KillReason::Deadline)]);
    assert!(kills(&desk.pass_time(Duration::from_secs(10))).is_empty(), "it is killed only once");
    desk.gone(first.worker);
    let second = desk.lease();
    assert_eq!(second.attempt, 2);
    // The report of a worker that finished before the signal reached it counts.
    desk.pass_time(Duration::from_secs(60));
    desk.finish(second, Status::Passed);
    assert!(matches!(desk.ends()[1], AttemptEnd::Accepted(_)));
    assert_eq!(desk.pass_the_rest(), StopReason::Finished);
    assert_eq!(desk.orders(), "B0 B0#2 V0 P0");
}

#[test]
fn killed_worker_that_does_not_die_stops_the_run() {
    let mut desk = Desk::new(plan(1));
    desk.lease();
    desk.pass_time(Duration::from_secs(60));
    let deadline = desk.core.next_deadline().expect("its death has a deadline");
    desk.pass_time(deadline - desk.now);
    assert_eq!(desk.policies("worker_not_gone").len(), 1);
    let Some(StopReason::HostFailure { why }) = desk.stopped() else { panic!("{:#?}", desk.log) };
    assert!(why.contains("is still alive"), "{why}");
}

#[test]
fn worker_that_reports_a_fault_is_killed() {
    let mut desk = Desk::new(plan(1));
    let first = desk.lease();
    let actions = desk.feed(Event::WorkerFault { worker: first.worker, detail: "no pids".to_owned() });
    assert_eq!(kills(&actions), [(first.worker, None, KillReason::WorkerFault)]);
    assert_eq!(desk.policies("worker_fault")[0].reason, "no pids");
    desk.gone(first.worker);
    assert_eq!(desk.lease().attempt, 2);
}

#[test]
fn start_has_a_deadline() {
    let mut desk = Desk::new(plan(1));
    assert_eq!(desk.core.next_deadline(), Some(Duration::from_millis(30_001)));
    let actions = desk.pass_time(Duration::from_secs(30));
    let [(worker, None, KillReason::Deadline)] = kills(&actions)[..] else { panic!("{actions:?}") };
    desk.gone(worker);
    assert_eq!(classes(&desk), [WorkerEndClass::NotReady]);
    assert_eq!(desk.pass_the_rest(), StopReason::Finished);
}

#[test]
fn too_many_losses_stop_the_run() {
    // First all losses come at once, then so slowly that they never fall into one window.
    for pace in [Duration::ZERO, FAILURE_WINDOW * 2] {
        let mut desk = Desk::new(plan(1));
        let mut losses = 0;
        while desk.stopped().is_none() {
            losses += 1;
            assert!(losses <= MAX_FAILURES, "{:#?}", desk.log);
            desk.now += pace;
            let worker = desk
                .log
                .iter()
                .rev()
                .find_map(|action| match action {
                    Action::StartWorker { worker, .. } => Some(*worker),
                    _ => None,
                })
                .expect("a worker is started");
            let lines = desk.log.len();
            desk.feed(Event::WorkerNotReady { worker, why: "exec format error".to_owned(), alive: false });
            // The delay before each start grows, up to ten seconds.
            let starts = |desk: &Desk, from: usize| {
                desk.log[from..].iter().filter(|it| matches!(it, Action::StartWorker { .. })).count()
            };
            assert_eq!(starts(&desk, lines), 0);
            if desk.stopped().is_none() {
                let deadline = desk.core.next_deadline().expect("the next start is due");
                let wait = Duration::from_millis(100 << (losses - 1)).min(Duration::from_secs(10));
                assert_eq!(deadline - desk.now, wait);
                desk.pass_time(wait);
                assert_eq!(starts(&desk, lines), 1);
            }
        }
        let Some(StopReason::HostFailure { why }) = desk.stopped() else { panic!("{:?}", desk.stopped()) };
        assert!(why.contains("exec format error"), "{why}");
        assert_eq!(losses, MAX_FAILURES);
        assert_eq!(desk.done(0), None, "a resumed run continues with this candidate");
    }
}

#[test]
fn losses_far_apart_are_tolerated() {
    let mut desk = Desk::new(plan(12));
    for _ in 0..12 {
        // Every second attempt loses its worker.
        let lost = desk.lease();
        desk.now += FAILURE_WINDOW;
        desk.gone(lost.worker);
        let given = desk.lease();
        desk.finish(given, Status::Passed);
    }
    assert_eq!(desk.pass_the_rest(), StopReason::Finished);
    assert_eq!(desk.done(11), Some((Status::Passed, None)));
}

#[test]
fn baseline_lost_beside_a_candidate_is_not_the_candidates_loss() {
    let mut desk = Desk::new(plan(3));
    for _ in 0..7 {
        let given = desk.lease();
        desk.finish(given, Status::Passed);
    }
    let failed = |status| reports::of_the_baseline(reports::report(Stage::Profile, status));
    let paired = desk.lease();
    desk.finish(paired, Status::InfraError);
    let paired = desk.lease();
    assert_eq!(paired.attempt, 2);
    desk.report(paired, failed(Status::Timeout));
    assert_eq!(desk.policies("baseline_lost").len(), 1);
    // This is the third attempt. The host caused one loss and the baseline another; the candidate caused none.
    let third = desk.lease();
    // A worker that blames a baseline although there was none is at fault. That counts as one more loss.
    desk.report(third, failed(Status::Timeout));
    assert_eq!(desk.policies("put_off").len(), 1);
    let other = desk.lease();
    desk.finish(other, Status::Passed);
    for _ in 0..2 {
        let again = desk.lease();
        desk.report(again, failed(Status::Timeout));
    }
    assert_eq!(desk.done(1), Some((Status::InfraError, Some(Blame::Worker))));
    assert_eq!(desk.pass_the_rest(), StopReason::Finished);
    assert_eq!(desk.orders(), "B0 B1 B2 V0 V1 V2 P0 P1/0 P1/0#2 P1#3 P2 P1#4 P1#5");
    let failed = |action: &Action| matches!(action, Action::JobDone { baseline_failed: true, .. });
    assert!(desk.log.iter().any(failed));
}

#[test]
fn impossible_report_is_the_workers_fault() {
    let nothing_built = || {
        let Report { head, .. } = reports::report(Stage::Build, Status::Passed);
        Report::new(head, Body::of_nothing(Stage::Build))
    };
    for report in [nothing_built(), reports::report(Stage::Verify, Status::Passed)] {
        let mut desk = Desk::new(plan(1));
        for _ in 0..4 {
            let given = desk.lease();
            desk.report(given, report.clone());
        }
        assert_eq!(desk.done(0), Some((Status::InfraError, Some(Blame::Worker))));
    }
}

#[test]
fn second_kill_by_an_unknown_sender_on_one_entry_is_a_crash() {
    let crash = (Status::Crashed, Some(Blame::Candidate));
    let host = (Status::InfraError, Some(Blame::Host));
    for (entries, unknown, expected) in [
        (["entry_000001", "entry_000001"], true, crash),
        (["entry_000001", "entry_000002"], true, host),
        // A runner in a separate PID namespace cannot kill itself, so an outside process did.
        (["entry_000001", "entry_000001"], false, host),
    ] {
        for passed in [1, 2] {
            let mut desk = Desk::new(plan(1));
            for _ in 0..passed {
                let given = desk.lease();
                desk.finish(given, Status::Passed);
            }
            for entry in entries {
                let given = desk.lease();
                desk.report(given, reports::killed_at(given.order.stage, entry, unknown));
            }
            if expected == host {
                fails_again(&mut desk);
            }
            assert_eq!(desk.done(0), Some(expected), "{entries:?} {unknown}");
            if expected == crash {
                let Some(AttemptEnd::Accepted(report)) = desk.ends().pop() else {
                    panic!("{:?}", desk.ends())
                };
                let Head { status, failures, .. } = report.head;
                assert_eq!((status, failures[0].status), (Status::Crashed, Status::Crashed));
                assert!(failures[0].detail.contains("sender unknown"), "{failures:?}");
            }
        }
    }
}

#[test]
fn baseline_that_kills_itself_beside_a_candidate_is_lost() {
    let mut desk = Desk::new(plan(2));
    for _ in 0..5 {
        let given = desk.lease();
        desk.finish(given, Status::Passed);
    }
    for _ in 0..2 {
        let given = desk.lease();
        let report = reports::killed_at(Stage::Profile, "entry_000001", true);
        desk.report(given, reports::of_the_baseline(report));
    }
    assert_eq!(desk.pass_the_rest(), StopReason::Finished);
    assert_eq!(desk.orders(), "B0 B1 V0 V1 P0 P1/0 P1/0#2 P1#3");
    assert_eq!(desk.done(1), Some((Status::Passed, None)));
}

/// Kills are counted per side. One kill of the baseline and one of the candidate are not two kills of one side.
#[test]
fn one_kill_of_each_side_on_one_entry_is_not_a_crash() {
    let mut desk = Desk::new(plan(2));
    for _ in 0..5 {
        let given = desk.lease();
        desk.finish(given, Status::Passed);
    }
    for baseline_failed in [true, false] {
        let given = desk.lease();
        let report = reports::killed_at(Stage::Profile, "entry_000001", true);
        desk.report(given, if baseline_failed { reports::of_the_baseline(report) } else { report });
    }
    fails_again(&mut desk);
    assert_eq!(desk.done(1), Some((Status::InfraError, Some(Blame::Host))));
    assert!(desk.policies("baseline_lost").is_empty());
}

/// Attempts finish in between, so losses are counted only within the window.
#[test]
fn losses_count_within_the_window() {
    for (late, stops) in [(Duration::ZERO, true), (Duration::from_millis(1), false)] {
        let mut desk = Desk::new(plan(12));
        let mut first = Duration::ZERO;
        for loss in 1..=MAX_FAILURES {
            let lost = desk.lease();
            if loss == MAX_FAILURES {
                desk.now = first + FAILURE_WINDOW + late - Duration::from_millis(1);
            }
            desk.gone(lost.worker);
            if loss == 1 {
                first = desk.now;
            }
            if loss < MAX_FAILURES {
                assert_eq!(desk.stopped(), None, "after {loss}");
                let again = desk.lease();
                desk.finish(again, Status::Passed);
            }
        }
        match desk.policies("host_trouble").len() + usize::from(desk.stopped().is_some()) {
            0 => assert!(!stops, "{late:?}"),
            _ => assert!(stops, "{late:?}"),
        }
    }
}

#[test]
fn end_of_a_worker_names_the_fault_it_reported() {
    let mut desk = Desk::new(plan(1));
    let first = desk.lease();
    desk.feed(Event::WorkerFault { worker: first.worker, detail: "no more".to_owned() });
    desk.gone(first.worker);
    let [AttemptEnd::Retried { why, .. }] = &desk.ends()[..] else { panic!("{:?}", desk.ends()) };
    assert!(why.contains("could not continue"), "{why}");
}
