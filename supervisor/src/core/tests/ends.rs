//! Tests of how a run ends before its work is done.

use std::time::Duration;

use opt_shared::message::KillReason;
use opt_shared::outcome::Status;
use opt_shared::units::Bytes;

use super::harness::{Harness, kills, plan};
use crate::core::event::{Action, AttemptEnd, Event, StopReason, WorkerEndClass};

#[test]
fn first_interrupt_lets_running_attempts_finish() {
    let mut harness = Harness::new(plan(2));
    let granted = harness.lease();
    assert_eq!(harness.feed(Event::Interrupt), []);
    let actions = harness.finish(granted, Status::Passed);
    assert!(actions.contains(&Action::Shutdown { worker: granted.worker }));
    assert!(matches!(harness.ends()[0], AttemptEnd::Accepted(_)));
    assert_eq!(harness.pass_the_rest(), StopReason::Interrupted);
    assert_eq!(harness.orders(), "B0", "nothing further is granted");
    assert!(harness.kills().is_empty());
    assert_eq!(harness.feed(Event::Tick), [], "the run has already stopped");
}

#[test]
fn second_interrupt_kills() {
    let mut harness = Harness::new(plan(2));
    let granted = harness.lease();
    harness.runner(granted, 7, Bytes::gib(1));
    harness.feed(Event::Interrupt);
    let reason = KillReason::Interrupted;
    let expected = [(granted.worker, Some(7), reason), (granted.worker, None, reason)];
    assert_eq!(kills(&harness.feed(Event::Interrupt)), expected);
    assert!(kills(&harness.feed(Event::Interrupt)).is_empty());
    // A runner that has just started is killed, too.
    assert_eq!(kills(&harness.runner(granted, 8, Bytes::gib(1))), [(granted.worker, Some(8), reason)]);
    assert_eq!(harness.pass_the_rest(), StopReason::Interrupted);
    assert_eq!(harness.ends(), [AttemptEnd::Abandoned { why: "the run was stopped".to_owned() }]);
    assert_eq!(harness.done(0), None, "a resumed run does it again");
}

#[test]
fn interrupted_second_attempt_does_not_count_as_a_failure() {
    let mut harness = Harness::new(plan(1));
    let first = harness.lease();
    harness.finish(first, Status::InfraError);
    let second = harness.lease();
    assert_eq!(second.attempt, 2);
    harness.feed(Event::Interrupt);
    harness.feed(Event::Interrupt);
    assert_eq!(harness.pass_the_rest(), StopReason::Interrupted);
    assert_eq!(harness.done(0), None);
}

#[test]
fn drain_does_not_wait_for_a_starting_worker() {
    let mut harness = Harness::new(plan(1));
    let actions = harness.feed(Event::Interrupt);
    assert!(matches!(kills(&actions)[..], [(_, None, KillReason::Interrupted)]));
    assert_eq!(harness.pass_the_rest(), StopReason::Interrupted);
    let ended = harness.log.iter().find_map(|action| match action {
        Action::WorkerEnded { class, .. } => Some(*class),
        _ => None,
    });
    assert_eq!(ended, Some(WorkerEndClass::Killed), "the core ended it, so it did not fail to start");
}

#[test]
fn worker_that_ignores_its_drain_order_is_killed() {
    let mut harness = Harness::new(plan(1));
    let granted = harness.lease();
    harness.feed(Event::Interrupt);
    harness.finish(granted, Status::Passed);
    assert!(kills(&harness.pass_time(Duration::from_secs(9))).is_empty());
    let expected = [(granted.worker, None, KillReason::Deadline)];
    assert_eq!(kills(&harness.pass_time(Duration::from_secs(1))), expected);
    assert_eq!(harness.pass_the_rest(), StopReason::Interrupted);
}

#[test]
fn interrupt_after_the_run_has_stopped_does_nothing() {
    let mut harness = Harness::new({
        let mut spec = plan(1);
        spec.jobs[0].broken = Some("unreadable".to_owned());
        spec
    });
    assert_eq!(harness.stopped(), Some(StopReason::Finished));
    assert_eq!(harness.feed(Event::Interrupt), []);
}
