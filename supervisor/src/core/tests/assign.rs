//! Tests of how workers are assigned to leases: workers side by side, spares, and failed starts.

use std::time::Duration;

use opt_shared::ids::WorkerId;
use opt_shared::message::Role;
use opt_shared::outcome::Status;
use opt_shared::settings::BeforeProfile;
use opt_shared::units::Bytes;

use super::harness::{Harness, Plan, SUPERVISOR, plan};
use crate::core::Ceilings;
use crate::core::assign::Backoff;
use crate::core::event::{Action, Control, Event, Process, Stage, StopReason};

fn starts(harness: &Harness, wanted: Role) -> usize {
    harness
        .log
        .iter()
        .filter(|action| matches!(action, Action::StartWorker { role, .. } if *role == wanted))
        .count()
}

#[test]
fn plan_limits_how_many_verifiers_work_side_by_side() {
    for verifiers in 1..=3 {
        let mut harness = Harness::new(Plan { verifiers, ..plan(6) });
        let baseline = harness.lease();
        harness.finish(baseline, Status::Passed);
        let all_granted: Vec<_> = (0..verifiers).map(|_| harness.lease()).collect();
        for _ in 0..5 {
            harness.answer();
        }
        assert_eq!(starts(&harness, Role::Verifier), verifiers as usize);
        let starts_of_leases =
            |harness: &Harness| harness.log.iter().filter(|it| matches!(it, Action::Start { .. })).count();
        assert_eq!(starts_of_leases(&harness), 1 + verifiers as usize, "no further lease");
        for granted in all_granted {
            harness.finish(granted, Status::Passed);
        }
        assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    }
}

#[test]
fn second_verifier_is_not_started_if_its_lease_would_not_fit() {
    // In MiB, 20 are charged for the supervisor and 108 for each lease, which includes 8 for its worker.
    for (ceiling, side_by_side) in [(20 + 108 + 108, 2), (20 + 108 + 107, 1)] {
        let spec = Plan { verifiers: 2, ceilings: Ceilings::host(Bytes::mib(ceiling)), ..plan(4) };
        let mut harness = Harness::new(spec);
        let baseline = harness.lease();
        harness.finish(baseline, Status::Passed);
        harness.lease();
        for _ in 0..5 {
            harness.answer();
        }
        assert_eq!(starts(&harness, Role::Verifier), side_by_side, "{ceiling}");
        let rows = harness.policies("serial");
        assert_eq!(rows.len(), 2 - side_by_side, "reported once: {rows:?}");
    }
}

/// Returns the stage of each lease up to the profile, and for each the number of profilers that had been started by
/// then.
fn profilers_started(spec: Plan) -> Vec<(Stage, usize)> {
    let mut harness = Harness::new(spec);
    let mut seen = Vec::new();
    while harness.stopped().is_none() && seen.len() < 6 {
        let granted = harness.lease();
        for _ in 0..4 {
            harness.answer();
        }
        seen.push((granted.order.stage, starts(&harness, Role::Profiler)));
        if granted.order.stage == Stage::Profile {
            break;
        }
        harness.finish(granted, Status::Passed);
    }
    seen
}

#[test]
fn spare_is_ready_when_the_last_verification_ends() {
    let (build, verify, profile) = (Stage::Build, Stage::Verify, Stage::Profile);
    let expected = [(build, 0), (build, 0), (verify, 0), (verify, 1), (profile, 1)];
    assert_eq!(profilers_started(Plan { spare: true, ..plan(2) }), expected);
    // Without a spare, the profiler is started when it is needed.
    let expected = [(build, 0), (build, 0), (verify, 0), (verify, 0), (profile, 1)];
    assert_eq!(profilers_started(plan(2)), expected);
}

#[test]
fn no_spare_is_started_for_a_stage_that_the_plan_leaves_out() {
    for spec in [Plan { spare: true, profile: false, ..plan(1) }, {
        let mut spec = Plan { spare: true, ..plan(1) };
        spec.jobs[0].timed = false;
        spec
    }] {
        let mut harness = Harness::new(spec);
        assert_eq!(harness.pass_the_rest(), StopReason::Finished);
        assert_eq!(starts(&harness, Role::Profiler), 0);
    }
}

#[test]
fn spare_that_does_not_fit_is_left_out_and_reported_once() {
    // With one byte less, an idle worker does not fit beside the lease.
    let lease = Bytes::mib(108);
    let idle = super::harness::IDLE;
    for (ceiling, fits) in
        [(SUPERVISOR + lease + idle, true), (SUPERVISOR + lease + idle - Bytes::new(1), false)]
    {
        let spec = Plan { spare: true, ceilings: Ceilings::host(ceiling), ..plan(1) };
        let mut harness = Harness::new(spec);
        let build = harness.lease();
        harness.finish(build, Status::Passed);
        harness.lease();
        for _ in 0..5 {
            harness.answer();
        }
        assert_eq!(starts(&harness, Role::Profiler), usize::from(fits), "{ceiling}");
        assert_eq!(harness.policies("no_spare").len(), usize::from(!fits), "{:#?}", harness.log);
    }
}

#[test]
fn successor_is_ready_when_a_verifier_is_replaced() {
    for spare in [true, false] {
        let mut spec = Plan { spare, ..plan(4) };
        spec.jobs[0].recycle.after_leases = 2;
        let mut harness = Harness::new(spec);
        let first = harness.lease();
        assert_eq!(starts(&harness, Role::Verifier), 1);
        for _ in 0..4 {
            harness.answer();
        }
        assert_eq!(starts(&harness, Role::Verifier), 1, "it may take one more lease");
        harness.finish(first, Status::Passed);
        let second = harness.lease();
        assert_eq!(second.worker, first.worker);
        for _ in 0..4 {
            harness.answer();
        }
        assert_eq!(starts(&harness, Role::Verifier), 1 + usize::from(spare), "spare = {spare}");
        harness.finish(second, Status::Passed);
        let third = harness.lease();
        assert_ne!(third.worker, first.worker);
        harness.finish(third, Status::Passed);
        assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    }
}

#[test]
fn no_second_worker_is_started_while_one_is_starting() {
    let mut harness = Harness::new(Plan { verifiers: 3, ..plan(6) });
    for _ in 0..3 {
        harness.sample(&[]);
        assert_eq!(starts(&harness, Role::Verifier), 1);
    }
    // A second verifier is needed beside the first, but no successor of the first is needed.
    let mut spec = Plan { verifiers: 2, spare: true, ..plan(6) };
    spec.jobs[0].recycle.after_leases = 1;
    let mut harness = Harness::new(spec);
    harness.feed(Event::WorkerReady { worker: WorkerId(1) });
    for _ in 0..3 {
        harness.sample(&[]);
        assert_eq!(starts(&harness, Role::Verifier), 2);
    }
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
}

/// The second verification waits for memory, but its worker exists already.
#[test]
fn no_spare_is_started_while_a_verifier_is_idle() {
    let mut spec = Plan { verifiers: 2, spare: true, ceilings: Ceilings::host(Bytes::mib(600)), ..plan(2) };
    spec.jobs[0].recycle.after_leases = 2;
    spec.candidates[1].verify[0].reserved = Bytes::mib(500);
    let mut harness = Harness::new(spec);
    let builds = [harness.lease(), harness.lease()];
    for build in builds {
        harness.finish(build, Status::Passed);
    }
    let verify = harness.lease();
    assert_eq!((verify.order.stage, harness.policies("wait").len()), (Stage::Verify, 1));
    for _ in 0..3 {
        harness.sample(&[]);
    }
    assert_eq!(starts(&harness, Role::Verifier), 2, "{:#?}", harness.log);
}

#[test]
fn no_worker_is_started_during_a_profile() {
    let mut spec = Plan { spare: true, ..plan(1) };
    spec.jobs[0].recycle.before_profile = BeforeProfile::Always;
    let mut harness = Harness::new(spec);
    harness.feed(Event::Control(Control::StayOpen));
    for _ in 0..2 {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    let profile = harness.lease();
    assert_eq!(profile.order.stage, Stage::Profile);
    let verifiers = starts(&harness, Role::Verifier);
    harness.submit(0, 1);
    for _ in 0..3 {
        harness.sample(&[]);
        assert_eq!(starts(&harness, Role::Verifier), verifiers);
    }
    harness.finish(profile, Status::Passed);
    assert_eq!(starts(&harness, Role::Verifier), verifiers + 1);
}

#[test]
fn delay_grows_with_each_failed_start() {
    let mut backoff = Backoff::default();
    let mut now = Duration::from_secs(100);
    for tenths in [1, 2, 4, 8, 16, 32, 64, 100, 100] {
        backoff.failed(now);
        let until = now + Duration::from_millis(100) * tenths;
        assert_eq!(backoff.until, Some(until));
        backoff.expire(until - Duration::from_nanos(1));
        assert_eq!(backoff.until, Some(until));
        backoff.expire(until);
        assert_eq!(backoff.until, None);
        now = until;
    }
    for _ in 0..40 {
        backoff.failed(now);
    }
    assert_eq!(backoff.until, Some(now + Duration::from_secs(10)), "no shift overflows");
    backoff.succeeded();
    backoff.failed(now);
    assert_eq!(backoff.until, Some(now + Duration::from_millis(100)));
}

#[test]
fn failed_start_is_repeated_after_a_delay() {
    let mut harness = Harness::new(plan(1));
    let worker = WorkerId(1);
    harness.feed(Event::WorkerNotReady { worker, why: "exit code 1".to_owned(), alive: false });
    assert_eq!(starts(&harness, Role::Verifier), 1);
    let wait = harness.core.next_deadline().expect("it is tried again");
    assert_eq!(wait, harness.now + Duration::from_millis(100));
    harness.now = wait - Duration::from_millis(2);
    harness.feed(Event::Tick);
    assert_eq!(starts(&harness, Role::Verifier), 1);
    harness.feed(Event::Tick);
    assert_eq!(starts(&harness, Role::Verifier), 2);
    assert_eq!(harness.done(0), None);
    assert_eq!(harness.core.lease_of(worker), None);
}

#[test]
fn worker_is_judged_by_the_memory_it_keeps() {
    for (kept, goes) in [(20, false), (200, true)] {
        let mut spec = plan(2);
        spec.jobs[0].recycle.growth = Bytes::mib(50);
        let mut harness = Harness::new(spec);
        let build = harness.lease();
        let worker = build.worker;
        let sample_of = |mib| (Process::Worker(worker), Bytes::mib(mib));
        harness.sample(&[sample_of(5)]);
        harness.sample(&[sample_of(200)]);
        let starts_before = harness.log.iter().filter(|it| matches!(it, Action::Start { .. })).count();
        let actions = harness.finish(build, Status::Passed);
        assert!(!actions.contains(&Action::Shutdown { worker }), "not yet: {actions:#?}");
        assert!(!actions.iter().any(|it| matches!(it, Action::Start { .. } | Action::StartWorker { .. })));
        let actions = harness.sample(&[sample_of(kept)]);
        assert_eq!(actions.contains(&Action::Shutdown { worker }), goes, "{kept}: {actions:#?}");
        let next = harness.lease();
        assert_eq!(next.worker != worker, goes);
        let starts_after = harness.log.iter().filter(|it| matches!(it, Action::Start { .. })).count();
        assert_eq!(starts_after, starts_before + 1);
        harness.finish(next, Status::Passed);
        assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    }
}

#[test]
fn workers_due_for_replacement_are_replaced_one_at_a_time() {
    let mut spec = Plan { verifiers: 2, ..plan(7) };
    spec.jobs[0].recycle.after_leases = 2;
    let mut harness = Harness::new(spec);
    let baseline = harness.lease();
    harness.finish(baseline, Status::Passed);
    let for_leases = |harness: &Harness, decision: &str| {
        harness.policies(decision).iter().filter(|row| row.reason.contains("after_leases")).count()
    };
    let mut max_leaving = 0;
    for _ in 0..200 {
        match harness.try_lease() {
            Some(granted) => harness.finish(granted, Status::Passed),
            None => harness.answer(),
        };
        max_leaving = (for_leases(&harness, "recycle") - for_leases(&harness, "recycled")).max(max_leaving);
        if harness.stopped().is_some() {
            break;
        }
    }
    assert_eq!(harness.stopped(), Some(StopReason::Finished));
    assert!(3 <= for_leases(&harness, "recycle"), "{:#?}", harness.policies("recycle"));
    assert_eq!(max_leaving, 1, "one at a time");
}
