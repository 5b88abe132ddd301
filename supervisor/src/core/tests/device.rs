//! Tests of the device: which process is ended if the run holds too much device memory, when the next lease may start,
//! and what happens if the device cannot be used.

use std::time::Duration;

use opt_shared::ids::WorkerId;
use opt_shared::message::KillReason;
use opt_shared::outcome::{Blame, Status};
use opt_shared::units::Bytes;

use super::harness::{Granted, Harness, Plan, STAGE, kills, one_way, plan, two_jobs};
use crate::core::Ceilings;
use crate::core::device::{DEVICE_RETURN_TIMEOUT, DeviceState};
use crate::core::event::{Action, AttemptEnd, DeviceSample, Event, Process, Stage, StopReason};
use crate::core::spec::StageSpec;
use crate::core::testkit::reports;

const GIB: Bytes = Bytes::gib(1);

/// Changes a plan so that verifications and profiles reserve 400 MiB of a device whose ceiling is 1 GiB.
fn on_device(mut plan: Plan) -> Plan {
    plan.ceilings.device = GIB;
    let stage = StageSpec { device: Bytes::mib(400), ..STAGE };
    for candidate in &mut plan.candidates {
        candidate.verify = vec![stage];
        candidate.profile = one_way(stage);
        candidate.paired = one_way(stage);
    }
    plan
}

fn of_worker(worker: WorkerId, mib: u64) -> (Process, Bytes) {
    (Process::Worker(worker), Bytes::mib(mib))
}

/// Returns a sample in which only these processes use device memory.
fn seen(processes: &[(Process, Bytes)]) -> DeviceSample {
    DeviceSample {
        processes: processes.to_vec(),
        unattributed: Some(Bytes::ZERO),
        free: Some(GIB),
        ..DeviceSample::default()
    }
}

fn verifying(spec: Plan) -> (Harness, Granted) {
    verifying_after(spec, seen(&[]))
}

/// Returns a run whose first sample of the device is the given one, and the lease of its first verification.
fn verifying_after(spec: Plan, sample: DeviceSample) -> (Harness, Granted) {
    let mut harness = Harness::new(spec);
    harness.feed(Event::DeviceSample(sample));
    loop {
        let granted = harness.lease();
        if granted.order.stage == Stage::Verify {
            return (harness, granted);
        }
        harness.finish(granted, Status::Passed);
    }
}

#[test]
fn second_growth_past_the_device_ceiling_is_blamed_on_the_candidate() {
    let (mut harness, first) = verifying(on_device(plan(1)));
    let at_ceiling = harness.feed(Event::DeviceSample(seen(&[of_worker(first.worker, 1024)])));
    assert!(kills(&at_ceiling).is_empty(), "a sum equal to the ceiling does not exceed it");
    let over = harness.feed(Event::DeviceSample(seen(&[of_worker(first.worker, 1025)])));
    let reason = KillReason::DeviceCeiling { owed: Bytes::mib(1025), ceiling: GIB };
    assert_eq!(kills(&over), [(first.worker, None, reason)], "{:#?}", harness.log);
    let row = harness.policies("kill_worker").pop().expect("a row before the kill");
    for number in [("held_bytes", 1025 << 20), ("reserved_bytes", 400 << 20), ("ceiling_bytes", 1 << 30)] {
        assert!(row.numbers.contains(&number), "{row:?}");
    }
    harness.gone(first.worker);
    assert_eq!(harness.done(0), None, "the first time may be the worker's fault");
    harness.feed(Event::DeviceSample(seen(&[])));
    let again = harness.lease();
    assert_eq!((again.order.stage, again.attempt), (Stage::Verify, 2));
    harness.feed(Event::DeviceSample(seen(&[of_worker(again.worker, 2000)])));
    harness.gone(again.worker);
    assert_eq!(harness.done(0), Some((Status::DeviceMemoryLimit, Some(Blame::Candidate))));
    let Some(AttemptEnd::Accepted(report)) = harness.ends().pop() else { panic!("{:#?}", harness.ends()) };
    for figure in ["1.95 GiB", "400 MiB", "1.00 GiB", "memory.device_ceiling"] {
        assert!(report.head.detail.contains(figure), "{figure}: {}", report.head.detail);
    }
}

#[test]
fn runner_with_a_context_is_ended_instead_of_its_worker() {
    let (mut harness, verify) = verifying(on_device(plan(1)));
    harness.runner(verify, 7, GIB);
    let held = [of_worker(verify.worker, 100), (Process::Runner(verify.worker, 7), Bytes::mib(1000))];
    let killed = kills(&harness.feed(Event::DeviceSample(seen(&held))));
    let reason = KillReason::DeviceCeiling { owed: Bytes::mib(1100), ceiling: GIB };
    assert_eq!(killed, [(verify.worker, Some(7), reason)]);
    assert!(kills(&harness.feed(Event::DeviceSample(seen(&held)))).is_empty(), "each is ended once");
}

/// The first worker holds exactly the 400 MiB that its lease reserves.
#[test]
fn only_the_offender_is_ended() {
    let (mut harness, first) = verifying(Plan { verifiers: 2, ..on_device(plan(2)) });
    let second = harness.lease();
    assert_eq!((first.order.stage, second.order.stage), (Stage::Verify, Stage::Verify));
    let held = [of_worker(first.worker, 400), of_worker(second.worker, 700)];
    let killed = kills(&harness.feed(Event::DeviceSample(seen(&held))));
    assert_eq!(killed.iter().map(|it| it.0).collect::<Vec<_>>(), [second.worker]);
}

#[test]
fn lease_waits_until_a_dead_worker_is_unlisted_and_its_memory_is_back() {
    let (mut harness, first) = verifying(on_device(plan(1)));
    harness.feed(Event::DeviceSample(seen(&[of_worker(first.worker, 300)])));
    harness.gone(first.worker);
    assert_eq!(harness.core.device_state(), DeviceState::Returning);
    let listed = DeviceSample { left: vec![(first.worker, Bytes::mib(300))], ..seen(&[]) };
    harness.feed(Event::DeviceSample(listed));
    let held = DeviceSample { unattributed: Some(Bytes::mib(300)), ..seen(&[]) };
    harness.feed(Event::DeviceSample(held));
    for _ in 0..6 {
        harness.answer();
    }
    assert_eq!(harness.try_lease(), None, "{:#?}", harness.log);
    harness.feed(Event::DeviceSample(seen(&[])));
    assert_eq!(harness.core.device_state(), DeviceState::Usable);
    assert_eq!(harness.lease().order.stage, Stage::Verify);
    assert!(harness.policies("device_not_returned").is_empty());
}

#[test]
fn memory_that_was_unattributed_before_is_not_counted_as_a_dead_workers() {
    let unattributed = |mib, held: &[_]| DeviceSample { unattributed: Some(Bytes::mib(mib)), ..seen(held) };
    let (mut harness, first) = verifying_after(on_device(plan(1)), unattributed(300, &[]));
    harness.feed(Event::DeviceSample(unattributed(300, &[of_worker(first.worker, 200)])));
    harness.gone(first.worker);
    harness.feed(Event::DeviceSample(unattributed(365, &[])));
    assert_eq!(harness.core.device_state(), DeviceState::Returning);
    // Drivers keep up to 64 MiB.
    harness.feed(Event::DeviceSample(unattributed(364, &[])));
    assert_eq!(harness.core.device_state(), DeviceState::Usable);
}

#[test]
fn unattributed_memory_means_nothing_while_a_living_worker_is_not_listed() {
    let (mut harness, first) = verifying(Plan { verifiers: 2, ..on_device(plan(2)) });
    let second = harness.lease();
    let held = [of_worker(first.worker, 300), of_worker(second.worker, 300)];
    harness.feed(Event::DeviceSample(seen(&held)));
    harness.gone(first.worker);
    harness.feed(Event::DeviceSample(DeviceSample { unattributed: Some(Bytes::mib(300)), ..seen(&[]) }));
    assert_eq!(harness.core.device_state(), DeviceState::Usable);
}

#[test]
fn lease_waits_for_a_worker_that_is_about_to_end() {
    let (mut harness, first) = verifying(on_device(plan(2)));
    let mut report = reports::report(Stage::Verify, Status::Crashed);
    report.head.context_lost = true;
    harness.report(first, report);
    for _ in 0..6 {
        harness.answer();
    }
    while let Some(granted) = harness.try_lease() {
        assert_eq!(granted.order.stage, Stage::Build, "{}", harness.orders());
        harness.finish(granted, Status::Passed);
        harness.answer();
    }
    harness.gone(first.worker);
    harness.feed(Event::DeviceSample(seen(&[])));
    assert_eq!(harness.lease().order.stage, Stage::Verify, "{}", harness.orders());
}

#[test]
fn device_that_keeps_memory_is_quarantined_and_builds_continue() {
    let (mut harness, first) = verifying(on_device(two_jobs()));
    harness.feed(Event::DeviceSample(seen(&[of_worker(first.worker, 300)])));
    harness.gone(first.worker);
    let kept = || DeviceSample { left: vec![(first.worker, Bytes::mib(300))], ..seen(&[]) };
    harness.feed(Event::DeviceSample(kept()));
    let deadline = harness.core.next_deadline().expect("the core wakes for it");
    assert!(deadline <= harness.now + DEVICE_RETURN_TIMEOUT, "{deadline:?}");
    harness.pass_time(DEVICE_RETURN_TIMEOUT);
    let row = harness.policies("device_not_returned").pop().expect("a row");
    assert!(row.numbers.contains(&("device_bytes", 300 << 20)), "{row:?}");
    assert_eq!(harness.core.device_state(), DeviceState::Quarantined);
    assert_eq!(harness.core.device_state().name(), "quarantined");
    // Builds are still granted, because they do not need the device.
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert!(harness.orders().contains("B1"), "{}", harness.orders());
    assert_eq!(harness.orders().matches('V').count(), 1, "{}", harness.orders());
    for candidate in [0, 1] {
        assert_eq!(harness.done(candidate), Some((Status::InfraError, Some(Blame::Host))));
    }
}

/// A worker may end before any sample has listed it.
#[test]
fn memory_of_a_dead_worker_that_no_sample_listed_is_reported() {
    let (mut harness, first) = verifying(on_device(two_jobs()));
    let unattributed = |mib| DeviceSample { unattributed: Some(Bytes::mib(mib)), ..seen(&[]) };
    harness.gone(first.worker);
    harness.feed(Event::DeviceSample(unattributed(300)));
    harness.pass_time(DEVICE_RETURN_TIMEOUT);
    let row = harness.policies("device_not_returned").pop().expect("a row");
    assert!(row.numbers.contains(&("device_bytes", 300 << 20)), "{row:?}");
}

#[test]
fn device_whose_memory_comes_back_late_is_used_again() {
    let (mut harness, first) = verifying(on_device(two_jobs()));
    harness.feed(Event::DeviceSample(seen(&[of_worker(first.worker, 300)])));
    harness.gone(first.worker);
    harness.pass_time(DEVICE_RETURN_TIMEOUT);
    let build = harness.lease();
    assert_eq!(build.order.stage, Stage::Build);
    harness.feed(Event::DeviceSample(seen(&[])));
    assert_eq!(harness.policies("device_returned").len(), 1);
    harness.finish(build, Status::Passed);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    for candidate in [0, 1] {
        assert_eq!(harness.done(candidate), Some((Status::Passed, None)), "{}", harness.orders());
    }
}

#[test]
fn lost_device_is_blamed_on_the_host_and_the_rest_continues() {
    let (mut harness, verify) = verifying(on_device(two_jobs()));
    harness.feed(Event::DeviceSample(seen(&[of_worker(verify.worker, 300)])));
    let actions = harness.feed(Event::DeviceLost { why: "GPU is lost".to_owned() });
    assert_eq!(kills(&actions), [(verify.worker, None, KillReason::DeviceLost)]);
    assert_eq!(harness.policies("device_lost").len(), 1);
    harness.gone(verify.worker);
    let Some(AttemptEnd::GivenUp { why, blame: Blame::Host }) = harness.ends().pop() else {
        panic!("{:#?}", harness.ends())
    };
    assert!(why.contains("the verifier was ended: ") && why.contains("GPU is lost"), "{why}");
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert!(harness.orders().contains("B1"), "{}", harness.orders());
    for candidate in [0, 1] {
        assert_eq!(harness.done(candidate), Some((Status::InfraError, Some(Blame::Host))));
    }
    assert!(harness.policies("worker_fault").is_empty() && harness.policies("stop").is_empty());
}

#[test]
fn unified_memory_is_one_sum_under_the_smaller_ceiling() {
    let mut spec = on_device(plan(1));
    spec.ceilings = Ceilings { host: Bytes::gib(4), device: GIB, unified: true };
    let (mut harness, verify) = verifying(spec);
    let nothing_free = |held| DeviceSample { unattributed: None, free: None, ..seen(held) };
    harness.sample(&[(Process::Worker(verify.worker), Bytes::mib(100))]);
    let held = [of_worker(verify.worker, 900)];
    assert!(kills(&harness.feed(Event::DeviceSample(nothing_free(&held)))).is_empty());
    // The sum includes the supervisor's 10 MiB and the worker's 100 MiB on the host.
    let held = [of_worker(verify.worker, 915)];
    let killed = kills(&harness.feed(Event::DeviceSample(nothing_free(&held))));
    let reason = KillReason::DeviceCeiling { owed: Bytes::mib(1025), ceiling: GIB };
    assert_eq!(killed, [(verify.worker, None, reason)], "{:#?}", harness.log);
}

#[test]
fn unit_is_put_off_while_other_processes_hold_the_device_memory() {
    let spec = on_device(plan(1));
    let mut harness = Harness::new(spec);
    let others = || DeviceSample {
        others: Bytes::mib(800),
        other_processes: 1,
        free: Some(Bytes::mib(224)),
        ..seen(&[])
    };
    harness.feed(Event::DeviceSample(others()));
    assert_eq!(harness.policies("device_in_use").len(), 1, "reported at once");
    harness.feed(Event::DeviceSample(others()));
    let row = harness.policies("device_in_use");
    assert_eq!(row.len(), 1, "reported once");
    assert!(row[0].numbers.contains(&("device_bytes", 800 << 20)), "{row:?}");
    let build = harness.lease();
    harness.finish(build, Status::Passed);
    for _ in 0..4 {
        harness.answer();
    }
    assert_eq!(harness.try_lease(), None);
    assert_eq!((harness.policies("wait").len(), harness.policies("idle_wait").len()), (1, 1));
    harness.pass_time(crate::core::MEMORY_TIMEOUT);
    assert_eq!(harness.policies("put_off").len(), 1, "{:#?}", harness.log);
    harness.feed(Event::DeviceSample(seen(&[])));
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.done(0), Some((Status::Passed, None)));
}

#[test]
fn busy_device_without_a_process_is_reported_once() {
    let (mut harness, verify) = verifying(on_device(plan(1)));
    let busy = || DeviceSample { utilisation: Some(90), ..seen(&[]) };
    harness.feed(Event::DeviceSample(busy()));
    assert!(harness.policies("device_busy").is_empty(), "a lease of this run uses the device");
    harness.finish(verify, Status::Crashed);
    for _ in 0..2 {
        harness.feed(Event::DeviceSample(busy()));
    }
    assert_eq!(harness.policies("device_busy").len(), 1);
}

#[test]
fn phase_and_worker_record_their_device_peaks() {
    let (mut harness, verify) = verifying(on_device(plan(1)));
    for mib in [100, 350, 200] {
        harness.feed(Event::DeviceSample(seen(&[of_worker(verify.worker, mib)])));
    }
    let actions = harness.finish(verify, Status::Crashed);
    let phase = actions.iter().find_map(|action| match action {
        Action::PhaseEnded(row) => Some((row.predicted_device, row.peak_device)),
        _ => None,
    });
    assert_eq!(phase, Some((Bytes::mib(400), Some(Bytes::mib(350)))));
    let build = harness.log.iter().find_map(|action| match action {
        Action::PhaseEnded(row) if row.order.stage == Stage::Build => Some(row.peak_device),
        _ => None,
    });
    assert_eq!(build, Some(None), "a figure that was not measured is `None`");
    harness.pass_time(Duration::from_secs(1));
    harness.pass_the_rest();
    let peak = harness.log.iter().find_map(|action| match action {
        Action::WorkerEnded { worker, peak_device, .. } if *worker == verify.worker => Some(*peak_device),
        _ => None,
    });
    assert_eq!(peak, Some(Some(Bytes::mib(350))));
}
