//! Tests of the reasons that the policy log gives for decisions that can have several causes.

use std::sync::Arc;
use std::time::Duration;

use opt_shared::message::KillReason;
use opt_shared::outcome::{Body, Status};
use opt_shared::units::Bytes;

use super::harness::{Granted, Harness, Plan, STAGE, plan};
use crate::core::event::{Action, AttemptEnd, PolicyRow, Process, Stage};
use crate::core::spec::StageSpec;

/// Returns a plan whose profile can run in one batch or in two halves.
fn two_ways_to_profile() -> Plan {
    let mut spec = plan(1);
    let whole = StageSpec { reserved: Bytes::mib(800), batch: Some(Bytes::mib(100)), ..STAGE };
    let halves = StageSpec { reserved: Bytes::mib(400), batch: Some(Bytes::mib(50)), ..STAGE };
    spec.candidates[0].profile = Arc::from([whole, halves]);
    spec
}

fn at_profile(spec: Plan, available: Option<Bytes>) -> (Harness, Granted) {
    let mut harness = Harness::new(spec);
    for _ in 0..2 {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    harness.available = available;
    harness.sample(&[]);
    let granted = harness.lease();
    (harness, granted)
}

fn only_row(harness: &Harness, decision: &str) -> PolicyRow {
    let rows = harness.policies(decision);
    assert_eq!(rows.len(), 1, "{rows:#?}");
    rows[0].clone()
}

fn number(row: &PolicyRow, wanted: &str) -> Option<u64> {
    row.numbers.iter().find(|(name, _)| *name == wanted).map(|(_, number)| *number)
}

#[test]
fn smaller_batch_has_the_reason_that_led_to_it() {
    // The whole batch fits.
    let (harness, _) = at_profile(two_ways_to_profile(), None);
    assert!(harness.policies("shrink_batch").is_empty());

    let mut spec = two_ways_to_profile();
    spec.ceilings.host = Bytes::mib(700);
    let (harness, _) = at_profile(spec, None);
    let row = only_row(&harness, "shrink_batch");
    assert!(row.reason.contains("never fit under the ceiling"), "{}", row.reason);
    assert_eq!(number(&row, "ceiling_bytes"), Some(Bytes::mib(700).get()));
    assert_eq!(number(&row, "available_bytes"), None);

    // The ceiling is not reached, but the machine is short of memory.
    let available = Bytes::gib(1) + Bytes::mib(500);
    let (harness, _) = at_profile(two_ways_to_profile(), Some(available));
    let row = only_row(&harness, "shrink_batch");
    assert!(row.reason.contains("host_floor"), "{}", row.reason);
    assert_eq!(number(&row, "available_bytes"), Some(available.get()));
    assert_eq!(number(&row, "ceiling_bytes"), None);

    // The machine has enough memory again.
    let (mut harness, granted) = at_profile(two_ways_to_profile(), None);
    harness.runner(granted, 7, Bytes::gib(2));
    harness.available = Some(Bytes::mib(900));
    harness.sample(&[(Process::Runner(granted.worker, 7), Bytes::mib(600))]);
    assert!(
        matches!(harness.kills()[..], [(_, Some(7), KillReason::HostFloor { .. })]),
        "{:?}",
        harness.kills()
    );
    harness.feed(crate::core::event::Event::RunnerDied { worker: granted.worker, pid: 7 });
    harness.finish(granted, Status::InfraError);
    harness.available = None;
    assert_eq!(harness.lease().attempt, 2);
    let row = only_row(&harness, "shrink_batch");
    assert!(row.reason.contains("an earlier attempt ended for lack of memory"), "{}", row.reason);
    assert_eq!((number(&row, "ceiling_bytes"), number(&row, "available_bytes")), (None, None));
}

#[test]
fn late_worker_is_killed_with_its_deadline_in_the_log() {
    let mut harness = Harness::new(plan(1));
    let granted = harness.lease();
    harness.pass_time(STAGE.deadline + Duration::from_secs(1));
    let row = only_row(&harness, "kill_worker");
    assert_eq!(row.reason, format!("{} did not finish in time", granted.lease));
    assert_eq!(number(&row, "deadline_ms"), Some(60_000));
    assert_eq!(number(&row, "lease"), Some(u64::from(granted.lease.0)));

    // Here, the worker sends no hello.
    let mut harness = Harness::new(plan(1));
    let deadline = harness.core.next_deadline().expect("a starting worker has a deadline");
    harness.pass_time(deadline - harness.now);
    let row = only_row(&harness, "kill_worker");
    assert_eq!((row.reason.as_str(), number(&row, "lease")), ("the worker was not ready in time", None));
    assert!(number(&row, "deadline_ms").is_some_and(|ms| 0 < ms));
}

/// Returns a plan whose build may reserve 800 MiB, or half of that.
fn two_ways_to_build() -> Plan {
    let mut spec = plan(2);
    let whole = StageSpec { reserved: Bytes::mib(800), batch: Some(Bytes::mib(784)), ..STAGE };
    let half = StageSpec { reserved: Bytes::mib(400), batch: Some(Bytes::mib(384)), ..STAGE };
    for candidate in &mut spec.candidates {
        candidate.build = vec![whole, half];
    }
    spec
}

#[test]
fn smaller_compiler_memory_under_a_small_ceiling_is_reported_once() {
    let mut spec = two_ways_to_build();
    spec.ceilings.host = Bytes::mib(700);
    let mut harness = Harness::new(spec);
    let first = harness.lease();
    let is_smaller_build =
        |action: &Action| matches!(action, Action::Start { batch, .. } if *batch == Some(Bytes::mib(384)));
    assert!(harness.log.iter().any(is_smaller_build), "{:#?}", harness.log);
    harness.finish(first, Status::Passed);
    let second = harness.lease();
    assert_eq!((first.order.stage, second.order.stage), (Stage::Build, Stage::Build));
    let row = only_row(&harness, "shrink_build");
    assert!(row.reason.contains("never fit under the ceiling"), "{}", row.reason);
    assert_eq!(number(&row, "ceiling_bytes"), Some(Bytes::mib(700).get()));
}

#[test]
fn build_is_not_shrunk_while_the_machine_is_short_of_memory() {
    let mut harness = Harness::new(two_ways_to_build());
    // The memory above the floor is enough only for the smaller way.
    harness.available = Some(Bytes::gib(1) + Bytes::mib(500));
    harness.sample(&[]);
    for _ in 0..5 {
        harness.answer();
    }
    assert_eq!(harness.orders(), "", "the build waits");
    harness.available = Some(Bytes::gib(2));
    harness.sample(&[]);
    assert_eq!(harness.lease().order.stage, Stage::Build);
    assert!(harness.policies("shrink_build").is_empty(), "{:#?}", harness.log);
}

#[test]
fn profile_names_what_else_was_active() {
    for disturbed in [false, true] {
        let mut harness = Harness::new(plan(1));
        let build = harness.lease();
        harness.finish(build, Status::Passed);
        let verify = harness.lease();
        harness.finish(verify, Status::Passed);
        let profile = harness.lease();
        if disturbed {
            harness.runner(verify, 8, Bytes::mib(1));
        }
        harness.sample(&[(Process::Worker(profile.worker), Bytes::mib(10))]);
        harness.finish(profile, Status::Passed);
        let Some(AttemptEnd::Accepted(report)) = harness.ends().pop() else { panic!("{:?}", harness.ends()) };
        let Body::Profile(profiled) = report.body else { panic!("{report:?}") };
        let expected: &[&str] = if disturbed { &["a runner of another worker had not ended"] } else { &[] };
        assert_eq!(profiled.breaches, expected);
    }
}
