//! Tests of a machine that has no room for builds or allows no more processes: what waits, what continues, and when the
//! run ends.

use std::time::Duration;

use opt_shared::outcome::{Report, Status};
use opt_shared::room::Room;
use opt_shared::units::Bytes;

use super::harness::{Granted, Harness, plan};
use crate::core::control::UnitView;
use crate::core::event::{Event, Stage, StopReason};
use crate::core::testkit::reports;

const SHORT: Room = Room { disk: Some(Bytes::mib(3)), inodes: None, pids: None };
const BETWEEN_THE_MARKS: Room = Room { disk: Some(Bytes::mib(48)), inodes: None, pids: None };
const PLENTY: Room = Room { disk: Some(Bytes::gib(3)), inodes: None, pids: None };

/// Lets every granted step pass, until no more leases are granted.
fn pass_what_is_granted(harness: &mut Harness) {
    for _ in 0..40 {
        match harness.try_lease() {
            Some(granted) => harness.finish(granted, Status::Passed),
            None => harness.answer(),
        };
    }
}

/// Returns the report of an attempt that failed, with the room that was left.
fn failed(granted: Granted, room: Room) -> Report {
    let mut report = reports::report(granted.order.stage, Status::InfraError);
    report.head.room = Some(room);
    report
}

#[test]
fn builds_wait_for_room_while_other_steps_continue() {
    let mut harness = Harness::new(plan(3));
    for _ in 0..2 {
        let build = harness.lease();
        if build.order.unit.0 == 1 {
            harness.feed(Event::Room(SHORT));
        }
        harness.finish(build, Status::Passed);
    }
    pass_what_is_granted(&mut harness);
    assert_eq!(harness.orders(), "B0 B1 V0 V1 P0 P1/0");
    let waiting = harness.core.run_view().waiting.expect("it waits").1;
    assert!(waiting.contains("room for builds: 3.00 MiB are free"), "{waiting}");
    let unit = opt_shared::ids::UnitId(2);
    assert_eq!(harness.core.unit_view(unit), Some(UnitView::Waiting { stage: Stage::Build, attempt: 1 }));
    let why = harness.core.wait_reason(harness.now, unit, |other| other.to_string()).expect("it waits");
    assert!(why.contains("no room for builds"), "{why}");
    // Builds stay held, because the next one could use up the room.
    harness.feed(Event::Room(BETWEEN_THE_MARKS));
    pass_what_is_granted(&mut harness);
    assert_eq!(harness.orders(), "B0 B1 V0 V1 P0 P1/0");
    assert_eq!(harness.policies("room_short").len(), 1);
    assert!(harness.policies("room_back").is_empty());
    harness.feed(Event::Room(PLENTY));
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 B1 V0 V1 P0 P1/0 B2 V2 P2/0");
    assert_eq!((harness.policies("room_short").len(), harness.policies("room_back").len()), (1, 1));
    assert_eq!(harness.core.run_view().waiting, None);
}

#[test]
fn candidate_waits_for_a_baseline_that_waits_for_room() {
    let mut spec = plan(2);
    spec.verifiers = 2;
    let mut harness = Harness::new(spec);
    let (baseline, candidate) = (harness.lease(), harness.lease());
    assert_eq!(harness.orders(), "B0 B1");
    harness.report(baseline, failed(baseline, SHORT));
    harness.finish(candidate, Status::Passed);
    pass_what_is_granted(&mut harness);
    assert_eq!(harness.orders(), "B0 B1 V1");
    harness.feed(Event::Room(PLENTY));
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 B1 V1 B0#2 V0 P0 P1/0");
}

#[test]
fn first_three_builds_that_fail_without_room_are_not_losses() {
    let mut harness = Harness::new(plan(1));
    for attempt in 1..=5 {
        let build = harness.lease();
        assert_eq!((build.order.stage, build.attempt), (Stage::Build, attempt));
        // The compiler's files have already been deleted when the room is read, so room between the two marks counts as
        // a shortage.
        harness.report(build, failed(build, BETWEEN_THE_MARKS));
        pass_what_is_granted(&mut harness);
        assert_eq!(harness.try_lease(), None, "it waits for room");
        assert_eq!(harness.policies("put_off").len(), usize::from(attempt == 5), "attempt {attempt}");
        harness.feed(Event::Room(PLENTY));
    }
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.done(0), Some((Status::Passed, None)));
}

#[test]
fn failed_build_with_room_is_a_loss() {
    let mut harness = Harness::new(plan(1));
    for _ in 0..2 {
        let build = harness.lease();
        harness.report(build, failed(build, PLENTY));
    }
    assert_eq!(harness.policies("put_off").len(), 1);
}

#[test]
fn shortage_without_builds_changes_nothing() {
    let mut harness = Harness::new(plan(1));
    let build = harness.lease();
    harness.feed(Event::Room(SHORT));
    harness.finish(build, Status::Passed);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert!(harness.policies("room_short").is_empty());
}

#[test]
fn run_ends_if_room_for_builds_never_comes() {
    let mut harness = Harness::new(plan(2));
    let build = harness.lease();
    harness.feed(Event::Room(SHORT));
    harness.pass_time(Duration::from_secs(30));
    harness.finish(build, Status::Passed);
    pass_what_is_granted(&mut harness);
    assert_eq!(harness.stopped(), None);
    let deadline = harness.core.next_deadline().expect("the wait has a limit");
    assert!(Duration::from_secs(3600) <= deadline);
    harness.pass_time(deadline - harness.now);
    for _ in 0..4 {
        harness.answer();
    }
    let Some(StopReason::HostFailure { why }) = harness.stopped() else { panic!("{:#?}", harness.log) };
    assert!(why.contains("no room for builds") && why.contains("delete files to make space"), "{why}");
    assert_eq!(harness.done(1), None, "a resumed run builds it");
}

#[test]
fn attempts_without_processes_are_repeated_after_a_pause() {
    let none_left = Room { disk: None, inodes: None, pids: Some(0) };
    let mut harness = Harness::new(plan(1));
    let build = harness.lease();
    harness.finish(build, Status::Passed);
    let mut before = Duration::ZERO;
    for times in 1..=7 {
        let verify = harness.lease();
        assert_eq!((verify.order.stage, verify.attempt), (Stage::Verify, times));
        harness.report(verify, failed(verify, none_left));
        assert_eq!(harness.try_lease(), None, "nothing is granted in the pause");
        assert!(harness.core.run_view().waiting.expect("it waits").1.contains("more processes"));
        let until = harness.core.next_deadline().expect("the pause has an end");
        let pause = until - harness.now;
        assert!(before < pause && pause <= Duration::from_secs(30), "{before:?}, {pause:?}");
        before = pause;
        harness.pass_time(pause);
        assert!(harness.core.run_view().waiting.is_none());
    }
    assert_eq!(harness.policies("tasks_short").len(), 7);
    // From here on, attempts count as losses.
    for _ in 0..2 {
        let verify = harness.lease();
        harness.report(verify, failed(verify, none_left));
    }
    assert_eq!(harness.policies("put_off").len(), 1);
    // The machine allows processes again.
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.done(0), Some((Status::Passed, None)));
}

/// Reports that the machine refused to start a process for an attempt.
fn refuse(harness: &mut Harness, granted: Granted) {
    harness.report(granted, failed(granted, Room { disk: None, inodes: None, pids: Some(0) }));
}

/// Returns the lengths of the reported pauses, in milliseconds.
fn pauses(harness: &Harness) -> Vec<u64> {
    let rows = harness.policies("tasks_short");
    let numbers = rows.iter().flat_map(|row| &row.numbers);
    numbers.filter(|(name, _)| *name == "pause_ms").map(|(_, pause)| *pause).collect()
}

#[test]
fn shorter_pause_does_not_end_a_longer_one() {
    let mut spec = plan(2);
    spec.verifiers = 2;
    let mut harness = Harness::new(spec);
    for _ in 0..2 {
        let build = harness.lease();
        harness.finish(build, Status::Passed);
    }
    // For one unit, the machine refuses a process twice, so the second pause takes one second.
    let (first, second) = (harness.lease(), harness.lease());
    assert_eq!(harness.orders(), "B0 B1 V0 V1");
    refuse(&mut harness, first);
    harness.pass_time(Duration::from_millis(500));
    let again = harness.lease();
    assert_eq!(again.order, first.order);
    refuse(&mut harness, again);
    let until = harness.now + Duration::from_secs(1);
    harness.pass_time(Duration::from_millis(100));
    refuse(&mut harness, second);
    assert_eq!(pauses(&harness), [500, 1000, 500]);
    // The third pause ends 400 ms earlier than the second. Each event advances the clock by a millisecond.
    harness.pass_time(until - harness.now - Duration::from_millis(2));
    assert_eq!(harness.try_lease(), None);
    harness.pass_time(Duration::ZERO);
    assert!(harness.try_lease().is_some());
}

#[test]
fn pauses_are_short_once_they_have_taken_five_minutes() {
    let mut harness = Harness::new(plan(6));
    let mut seen = 0;
    while seen < 42 {
        let granted = harness.lease();
        if granted.order.stage != Stage::Verify || granted.attempt == 8 {
            harness.finish(granted, Status::Passed);
            continue;
        }
        refuse(&mut harness, granted);
        seen += 1;
        let pauses = pauses(&harness);
        assert_eq!(pauses.len(), seen);
        let pause = pauses.last().copied().unwrap_or_default();
        let before: u64 = pauses.iter().sum::<u64>() - pause;
        assert!(pause == 500 || before < 300_000, "{pauses:?}");
        harness.pass_time(Duration::from_millis(pause));
    }
    let pauses = pauses(&harness);
    assert!(pauses.contains(&30_000) && pauses.ends_with(&[500; 7]), "{pauses:?}");
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
}
