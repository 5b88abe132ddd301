//! Tests when an idle profiler that is due for replacement is ended. If the plan keeps spares, it is ended while
//! verifiers work, so that its successor is ready for the next profile.

use opt_shared::ids::{UnitId, WorkerId};
use opt_shared::outcome::Status;
use opt_shared::settings::BeforeProfile;
use opt_shared::units::Bytes;

use super::harness::{Granted, Harness, Plan, STAGE, a_candidate, two_jobs};
use crate::core::event::{Action, Process, Stage};

fn told_to_end(actions: &[Action], worker: WorkerId) -> bool {
    actions.contains(&Action::Shutdown { worker })
}

/// Runs the first job up to its profile, and returns the profile's lease.
fn after_the_first_job(spec: Plan) -> (Harness, Granted) {
    let mut harness = Harness::new(spec);
    loop {
        let granted = harness.lease();
        if matches!(granted.order.stage, Stage::Profile | Stage::Replay) {
            return (harness, granted);
        }
        harness.finish(granted, Status::Passed);
    }
}

/// Returns a plan in which no verifier outlives the first job, so the second job's verifiers have held no lease.
fn fresh_verifiers() -> Plan {
    let mut spec = Plan { spare: true, ..two_jobs() };
    spec.jobs[0].recycle.before_profile = BeforeProfile::Always;
    spec.jobs[1].recycle.after_leases = 1;
    spec
}

#[test]
fn profiler_due_for_replacement_ends_once_a_verifier_works_for_the_next_profile() {
    type Change = fn(&mut Plan);
    let table: [(&str, Change, bool); 5] = [
        ("due for replacement", |_| {}, true),
        ("not due", |spec| spec.jobs[1].recycle.after_leases = 2, false),
        ("no worker is kept ready", |spec| spec.spare = false, false),
        ("nothing of that job is timed", |spec| spec.jobs[1].timed = false, false),
        (
            "the profiler was needed for a replay, and nothing is profiled",
            |spec| {
                spec.profile = false;
                spec.candidates[0].replay = Some(STAGE);
            },
            false,
        ),
    ];
    for (name, change, goes) in table {
        let mut spec = fresh_verifiers();
        change(&mut spec);
        let (mut harness, profile) = after_the_first_job(spec);
        let from = harness.log.len();
        harness.finish(profile, Status::Passed);
        // The second job's verifier is starting, so no worker is busy.
        assert!(!told_to_end(&harness.log[from..], profile.worker), "{name}: too early");
        let build = harness.lease();
        assert_eq!(build.order.unit, UnitId(1));
        assert_eq!(
            told_to_end(&harness.log[from..], profile.worker),
            goes,
            "{name}: {:#?}",
            &harness.log[from..]
        );
    }
}

#[test]
fn profiler_is_judged_by_the_memory_it_kept() {
    for (kept, goes) in [(20, false), (300, true)] {
        let (mut harness, profile) = after_the_first_job(Plan { spare: true, ..two_jobs() });
        let sample_of = |mib| (Process::Worker(profile.worker), Bytes::mib(mib));
        harness.sample(&[sample_of(5)]);
        harness.sample(&[sample_of(300)]);
        let actions = harness.finish(profile, Status::Passed);
        assert!(
            actions.iter().any(|it| matches!(it, Action::Start { .. })),
            "a verifier works: {actions:#?}"
        );
        assert!(!told_to_end(&actions, profile.worker), "not yet: {actions:#?}");
        let actions = harness.sample(&[sample_of(kept)]);
        assert_eq!(told_to_end(&actions, profile.worker), goes, "{kept} MiB: {actions:#?}");
    }
}

#[test]
fn profiler_due_for_replacement_waits_for_the_verifier_that_is_replaced_first() {
    let mut spec = Plan { spare: true, verifiers: 2, ..two_jobs() };
    spec.jobs[1].candidates.push(UnitId(2));
    spec.candidates.push(a_candidate());
    let (mut harness, profile) = after_the_first_job(spec);
    harness.finish(profile, Status::Passed);
    let (first, other) = (harness.lease(), harness.lease());
    let sample_of = |profiler, verifier| {
        [
            (Process::Worker(profile.worker), Bytes::mib(profiler)),
            (Process::Worker(first.worker), Bytes::mib(verifier)),
        ]
    };
    harness.sample(&sample_of(5, 5));
    harness.sample(&sample_of(5, 300));
    harness.finish(first, Status::Passed);
    // Both workers kept memory that they should have freed.
    let actions = harness.sample(&sample_of(300, 300));
    assert!(told_to_end(&actions, first.worker) && !told_to_end(&actions, profile.worker), "{actions:#?}");
    assert!(harness.core.lease_of(other.worker).is_some());
    let actions = harness.gone(first.worker);
    assert!(told_to_end(&actions, profile.worker), "{actions:#?}");
}
