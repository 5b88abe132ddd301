//! Tests of `check_invariants` and `check_rosters`: each test breaks a law, and the check must report the breach. The
//! last test checks `lease_of`.

use opt_shared::ids::{UnitId, WorkerId};
use opt_shared::message::Role;
use opt_shared::outcome::Status;
use opt_shared::units::Bytes;

use super::harness::{Granted, Harness, plan};
use crate::core::event::{Event, Order, Stage, StopReason};
use crate::core::unit::{Progress, Unit};
use crate::core::worker::State;
use crate::core::{Core, Ending};

fn at_work() -> (Harness, Granted) {
    let mut harness = Harness::new(plan(3));
    let build = harness.lease();
    (harness, build)
}

/// Breaks a law, and returns what the check reports.
fn broken(breach: impl FnOnce(&mut Core, Granted)) -> String {
    let (mut harness, build) = at_work();
    assert_eq!(harness.core.check_invariants(), Ok(()));
    breach(&mut harness.core, build);
    harness.core.check_invariants().expect_err("a law is broken")
}

#[test]
fn uncharged_worker_is_noticed() {
    let error = broken(|core, build| core.ledger.close(build.worker));
    assert!(error.ends_with("is alive but not charged"), "{error}");
}

#[test]
fn charge_for_a_missing_worker_is_noticed() {
    let error = broken(|core, _| core.ledger.open(WorkerId(77), Bytes::mib(1)));
    assert_eq!(error, "a worker that has ended is still charged");
}

#[test]
fn lease_of_an_ended_unit_is_noticed() {
    let error =
        broken(|core, _| core.change(UnitId(0), |unit| unit.progress = Progress::Done(Status::Passed)));
    assert!(error.contains("its unit is") && error.contains("Done"), "{error}");
}

#[test]
fn lease_of_another_role_is_noticed() {
    let error = broken(|core, build| {
        core.workers.get_mut(&build.worker).expect("it is alive").role = Role::Profiler;
    });
    assert!(error.contains("is a profiler but holds"), "{error}");
}

#[test]
fn running_candidate_without_a_lease_is_noticed() {
    let error = broken(|core, build| {
        core.workers.get_mut(&build.worker).expect("it is alive").state = State::Idle;
    });
    assert_eq!(error, "1 units are running and 0 leases are held");
}

#[test]
fn profile_beside_anything_else_is_noticed() {
    let (mut harness, build) = at_work();
    let core = &mut harness.core;
    // A second worker has the lease of another candidate's profile.
    let mut second = core.workers[&build.worker].clone();
    let State::Leased(lease) = &mut second.state else { panic!("it holds a lease") };
    for _ in 0..2 {
        core.change(UnitId(1), Unit::advance);
    }
    lease.order = Order { unit: UnitId(1), stage: Stage::Profile, beside: None };
    core.change(UnitId(1), |unit| unit.progress = Progress::Running { attempt: lease.attempt });
    second.role = Role::Profiler;
    core.workers.insert(WorkerId(77), second);
    core.ledger.open(WorkerId(77), Bytes::mib(1));
    let error = core.check_invariants().expect_err("both are running");
    assert_eq!(error, "an exclusive step runs beside another one");
    // An exclusive step that runs alone is allowed.
    core.workers.remove(&build.worker);
    core.ledger.close(build.worker);
    core.change(UnitId(0), |unit| unit.progress = Progress::Done(Status::Passed));
    assert_eq!(core.check_invariants(), Ok(()));
}

#[test]
fn too_many_leases_of_verifiers_are_noticed() {
    let error = broken(|core, build| {
        let mut second = core.workers[&build.worker].clone();
        let State::Leased(lease) = &mut second.state else { panic!("it holds a lease") };
        lease.order.unit = UnitId(1);
        core.change(UnitId(1), |unit| unit.progress = Progress::Running { attempt: lease.attempt });
        core.workers.insert(WorkerId(77), second);
        core.ledger.open(WorkerId(77), Bytes::mib(1));
    });
    assert_eq!(error, "verifiers hold 2 leases, the limit is 1");
}

#[test]
fn worker_left_out_when_everything_is_killed_is_noticed() {
    let error = broken(|core, _| core.ending = Ending::Kill(StopReason::Interrupted));
    assert!(error.starts_with("everything is being killed, but not"), "{error}");
}

#[test]
fn lease_without_a_unit_is_noticed() {
    let error = broken(|core, build| {
        let State::Leased(lease) = &mut core.workers.get_mut(&build.worker).expect("it is alive").state
        else {
            return;
        };
        lease.order.unit = UnitId(77);
    });
    assert!(error.ends_with("its unit does not exist"), "{error}");
}

#[test]
fn ended_job_with_unfinished_units_is_noticed() {
    let error = broken(|core, _| core.jobs[0].done = true);
    assert_eq!(error, "job-0 is over, but it has open units or its source may offer more");
    let mut harness = Harness::silent(&plan(0));
    harness.feed(Event::Tick);
    harness.core.jobs[0].done = true;
    let error = harness.core.check_invariants().expect_err("its source has not answered");
    assert_eq!(error, "job-0 is over, but it has open units or its source may offer more");
}

#[test]
fn unit_that_changed_without_its_roster_is_noticed() {
    let (mut harness, _) = at_work();
    assert_eq!(harness.core.check_rosters(), Ok(()));
    harness.core.units[1].progress = Progress::Done(Status::Passed);
    assert_eq!(harness.core.check_rosters(), Err("the roster of job-0 differs from its units".to_owned()));
}

#[test]
fn lease_of_a_worker_is_known() {
    let (harness, build) = at_work();
    assert_eq!(harness.core.lease_of(build.worker), Some(build.lease));
    assert_eq!(harness.core.lease_of(WorkerId(77)), None);
}
