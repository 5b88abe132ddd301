//! When a worn idle profiler is ended. This happens only while verifiers work for the profile that needs its successor.

use opt_shared::ids::{UnitId, WorkerId};
use opt_shared::outcome::Status;
use opt_shared::settings::BeforeProfile;
use opt_shared::units::Bytes;

use super::desk::{Desk, Given, Plan, STAGE, a_candidate, two_jobs};
use crate::core::event::{Action, Process, Stage};

fn told_to_end(actions: &[Action], worker: WorkerId) -> bool {
    actions.contains(&Action::Shutdown { worker })
}

/// Runs the first job up to its profile, and returns the profile's lease.
fn after_the_first_job(spec: Plan) -> (Desk, Given) {
    let mut desk = Desk::new(spec);
    loop {
        let given = desk.lease();
        if matches!(given.order.stage, Stage::Profile | Stage::Replay) {
            return (desk, given);
        }
        desk.finish(given, Status::Passed);
    }
}

/// A plan in which a worker may hold only one lease. The first job leaves no verifier, so the second job's verifiers
/// have held no lease.
fn fresh_verifiers() -> Plan {
    let mut spec = Plan { spare: true, ..two_jobs() };
    spec.jobs[0].recycle.before_profile = BeforeProfile::Always;
    spec.jobs[1].recycle.after_leases = 1;
    spec
}

#[test]
fn worn_profiler_is_ended_once_a_verifier_works_for_the_next_profile() {
    type Change = fn(&mut Plan);
    let table: [(&str, Change, bool); 5] = [
        ("worn", |_| {}, true),
        ("not worn", |spec| spec.jobs[1].recycle.after_leases = 2, false),
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
        let (mut desk, profile) = after_the_first_job(spec);
        let from = desk.log.len();
        desk.finish(profile, Status::Passed);
        // The second job's verifier is starting, so no worker is busy.
        assert!(!told_to_end(&desk.log[from..], profile.worker), "{name}: too early");
        let build = desk.lease();
        assert_eq!(build.order.unit, UnitId(1));
        assert_eq!(told_to_end(&desk.log[from..], profile.worker), goes, "{name}: {:#?}", &desk.log[from..]);
    }
}

/// Memory that a worker owes during a lease is not growth. The other reasons for wear need no sample.
#[test]
fn profiler_is_judged_by_the_memory_it_kept() {
    for (kept, goes) in [(20, false), (300, true)] {
        let (mut desk, profile) = after_the_first_job(Plan { spare: true, ..two_jobs() });
        let look = |mib| (Process::Worker(profile.worker), Bytes::mib(mib));
        desk.sample(&[look(5)]);
        desk.sample(&[look(300)]);
        let actions = desk.finish(profile, Status::Passed);
        assert!(
            actions.iter().any(|it| matches!(it, Action::Start { .. })),
            "a verifier works: {actions:#?}"
        );
        assert!(!told_to_end(&actions, profile.worker), "not yet: {actions:#?}");
        let actions = desk.sample(&[look(kept)]);
        assert_eq!(told_to_end(&actions, profile.worker), goes, "{kept} MiB: {actions:#?}");
    }
}

#[test]
fn worn_profiler_waits_for_a_worn_verifier_to_end_first() {
    let mut spec = Plan { spare: true, verifiers: 2, ..two_jobs() };
    spec.jobs[1].candidates.push(UnitId(2));
    spec.candidates.push(a_candidate());
    let (mut desk, profile) = after_the_first_job(spec);
    desk.finish(profile, Status::Passed);
    let (worn, other) = (desk.lease(), desk.lease());
    let look = |profiler, verifier| {
        [
            (Process::Worker(profile.worker), Bytes::mib(profiler)),
            (Process::Worker(worn.worker), Bytes::mib(verifier)),
        ]
    };
    desk.sample(&look(5, 5));
    desk.sample(&look(5, 300));
    desk.finish(worn, Status::Passed);
    // Both workers kept memory that they should have freed.
    let actions = desk.sample(&look(300, 300));
    assert!(told_to_end(&actions, worn.worker) && !told_to_end(&actions, profile.worker), "{actions:#?}");
    assert!(desk.core.lease_of(other.worker).is_some());
    let actions = desk.gone(worn.worker);
    assert!(told_to_end(&actions, profile.worker), "{actions:#?}");
}
