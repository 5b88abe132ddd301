//! Tests of leases, limits, floors, and workers that are replaced because of their memory.

use std::time::Duration;

use opt_shared::ids::{JobId, WorkerId};
use opt_shared::message::{KillReason, Role};
use opt_shared::outcome::{Blame, Status};
use opt_shared::settings::BeforeProfile;
use opt_shared::units::Bytes;

use super::harness::{Granted, Harness, IDLE, Plan, STAGE, SUPERVISOR, kills, one_way, plan, two_jobs};
use crate::core::control::{Mode, Which};
use crate::core::event::{Action, Control, Event, Process, Stage, StopReason};
use crate::core::recycle::RecycleReason;
use crate::core::spec::StageSpec;

fn recycled(harness: &Harness) -> Vec<RecycleReason> {
    harness
        .log
        .iter()
        .filter_map(|action| match action {
            Action::WorkerEnded { recycled, .. } => *recycled,
            _ => None,
        })
        .collect()
}

fn position(harness: &Harness, which: impl Fn(&Action) -> bool) -> usize {
    harness.log.iter().position(which).unwrap_or_else(|| panic!("not there\n{:#?}", harness.log))
}

fn at_profile(spec: Plan) -> Harness {
    let mut harness = Harness::new(spec);
    for _ in 0..2 {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    harness
}

#[test]
fn large_validation_ends_its_verifier_before_a_profiler_gets_a_lease() {
    for (before_profile, large, expected) in [
        (BeforeProfile::Large, Bytes::mib(100), true),
        (BeforeProfile::Large, Bytes::mib(101), false),
        (BeforeProfile::Always, Bytes::gib(9), true),
        (BeforeProfile::Never, Bytes::ZERO, false),
    ] {
        let mut spec = plan(1);
        spec.jobs[0].recycle.before_profile = before_profile;
        spec.jobs[0].recycle.large_job = large;
        let mut harness = at_profile(spec);
        // Even the start of the profiler waits until the verifier has ended, no matter how long that takes.
        if expected {
            for _ in 0..5 {
                harness.sample(&[]);
            }
            assert!(
                !harness.log.iter().any(|it| matches!(it, Action::StartWorker { role: Role::Profiler, .. }))
            );
        }
        assert_eq!(harness.pass_the_rest(), StopReason::Finished);
        assert_eq!(recycled(&harness).contains(&RecycleReason::BeforeProfile), expected);
        if expected {
            let ended = position(&harness, |it| matches!(it, Action::WorkerEnded { .. }));
            let started =
                position(&harness, |it| matches!(it, Action::StartWorker { role: Role::Profiler, .. }));
            assert!(ended < started);
            let names: Vec<&str> =
                harness.policies("recycled")[0].numbers.iter().map(|(name, _)| *name).collect();
            for name in ["owed_before_bytes", "charged_after_bytes", "took_ms"] {
                assert!(names.contains(&name), "{names:?}");
            }
        }
    }
}

#[test]
fn bytes_that_several_verifiers_validated_count_together() {
    for (verifiers, large, expected) in [
        // The verifications of the two candidates validate 100 MiB each.
        (2, Bytes::mib(200), 2),
        (2, Bytes::mib(201), 0),
        (1, Bytes::mib(200), 1),
    ] {
        let mut spec = plan(2);
        spec.verifiers = verifiers;
        spec.jobs[0].recycle.before_profile = BeforeProfile::Large;
        spec.jobs[0].recycle.large_job = large;
        let mut harness = Harness::new(spec);
        // Complete all builds and then all verifications. As many run at the same time as there are verifiers.
        let mut attempts = 0;
        while attempts < 4 {
            let granted: Vec<_> = (0..verifiers).map(|_| harness.lease()).collect();
            for granted in granted {
                harness.finish(granted, Status::Passed);
                attempts += 1;
            }
        }
        assert_eq!(harness.pass_the_rest(), StopReason::Finished);
        let before_profile =
            recycled(&harness).into_iter().filter(|&reason| reason == RecycleReason::BeforeProfile);
        assert_eq!(before_profile.count(), expected, "{verifiers} verifiers, large_job = {large}");
    }
}

#[test]
fn verifier_that_has_grown_is_ended_whatever_before_profile_says() {
    for (kept, expected) in [(Bytes::mib(300), true), (Bytes::mib(200), false)] {
        let mut harness = Harness::new(plan(1));
        let build = harness.lease();
        let worker = Process::Worker(build.worker);
        harness.sample(&[(worker, Bytes::mib(5))]);
        harness.finish(build, Status::Passed);
        let verify = harness.lease();
        // Memory that the worker owes while it works does not count as memory that it kept.
        harness.sample(&[(worker, Bytes::mib(900))]);
        harness.finish(verify, Status::Passed);
        assert_eq!(recycled(&harness), []);
        assert!(!harness.log.iter().any(|it| matches!(it, Action::StartWorker { role: Role::Profiler, .. })));
        harness.sample(&[(worker, kept)]);
        assert_eq!(harness.pass_the_rest(), StopReason::Finished);
        assert_eq!(recycled(&harness).contains(&RecycleReason::Growth), expected);
    }
}

/// The verifier has done no work, so its memory need not be checked.
#[test]
fn profile_does_not_wait_for_a_sample_of_an_unused_verifier() {
    let mut harness = Harness::new(plan(2));
    for _ in 0..3 {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    let last = harness.lease();
    harness.feed(Event::Control(Control::Recycle { which: Which::Worker(last.worker), mode: Mode::Now }));
    harness.gone(last.worker);
    // The verifier's successor is starting, but its unit is cancelled.
    let one = Control::Cancel { job: JobId(0), unit: Some(last.order.unit) };
    harness.feed(Event::Control(one));
    let worker = WorkerId(last.worker.0 + 1);
    let actions = harness.feed(Event::WorkerReady { worker });
    let profiler = |it: &Action| matches!(it, Action::StartWorker { role: Role::Profiler, .. });
    assert!(actions.iter().any(profiler), "{actions:#?}");
}

#[test]
fn workers_due_for_replacement_are_replaced_between_leases() {
    type Change = fn(&mut Plan);
    let table: [(Change, RecycleReason); 2] = [
        (|spec| spec.jobs[0].recycle.after_leases = 1, RecycleReason::Leases),
        (|spec| spec.jobs[0].recycle.max_age = Duration::ZERO, RecycleReason::Age),
    ];
    for (change, reason) in table {
        let mut spec = plan(2);
        change(&mut spec);
        let mut harness = Harness::new(spec);
        assert_eq!(harness.pass_the_rest(), StopReason::Finished);
        assert_eq!(harness.orders(), "B0 B1 V0 V1 P0 P1/0");
        // Each lease has a new worker. Verifiers have four leases and profilers two, and the first of each role
        // replaces no worker.
        assert_eq!(recycled(&harness), [reason; 4]);
    }
    // With a limit of zero, workers that have done nothing are not replaced, so the run ends.
    let mut spec = plan(1);
    spec.jobs[0].recycle.after_leases = 0;
    assert_eq!(Harness::new(spec).pass_the_rest(), StopReason::Finished);
}

#[test]
fn unit_that_never_fits_is_reported_before_anything_starts() {
    let needed = STAGE.reserved + IDLE + SUPERVISOR;
    for (ceiling, fits) in [(needed, true), (needed - Bytes::new(1), false)] {
        let mut spec = plan(2);
        spec.ceilings.host = ceiling;
        let mut harness = Harness::new(spec);
        assert_eq!(harness.log.iter().any(|it| matches!(it, Action::StartWorker { .. })), fits);
        assert_eq!(harness.pass_the_rest(), StopReason::Finished);
        let expected = if fits { (Status::Passed, None) } else { (Status::DoesNotFit, Some(Blame::Plan)) };
        assert_eq!((harness.done(0), harness.done(1)), (Some(expected), Some(expected)));
        assert_eq!(harness.policies("does_not_fit").is_empty(), fits);
    }
    // Later stages count, too.
    let mut spec = plan(2);
    spec.candidates[1].verify[0].reserved = Bytes::gib(4);
    let mut harness = Harness::new(spec);
    harness.pass_the_rest();
    assert_eq!(harness.done(1), Some((Status::DoesNotFit, Some(Blame::Plan))));
    assert_eq!(harness.orders(), "B0 V0 P0");
    // A stage that is not run does not count.
    let mut spec = plan(1);
    spec.candidates[0].profile = one_way(StageSpec { reserved: Bytes::gib(4), ..STAGE });
    spec.jobs[0].timed = false;
    let mut harness = Harness::new(spec);
    harness.pass_the_rest();
    assert_eq!(harness.done(0), Some((Status::Passed, None)));
}

#[test]
fn unit_that_never_fits_beside_the_baseline_is_reported_before_anything_starts() {
    let mut spec = plan(2);
    for candidate in &mut spec.candidates {
        candidate.paired = one_way(StageSpec { reserved: Bytes::gib(5), ..STAGE });
    }
    let mut harness = Harness::new(spec);
    let baseline = harness.lease();
    assert_eq!(harness.done(1), Some((Status::DoesNotFit, Some(Blame::Plan))));
    harness.finish(baseline, Status::Passed);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 V0 P0");
    assert_eq!(harness.done(0), Some((Status::Passed, None)));
}

#[test]
fn idle_worker_is_recycled_to_make_room() {
    // Under the smaller ceiling, an idle worker does not fit beside a lease.
    let min_ceiling = STAGE.reserved + IDLE + SUPERVISOR;
    for (ceiling, expected) in
        [(min_ceiling, vec![RecycleReason::MakeRoom]), (min_ceiling + IDLE, Vec::new())]
    {
        let mut spec = plan(1);
        spec.ceilings.host = ceiling;
        let mut harness = at_profile(spec);
        assert_eq!(harness.pass_the_rest(), StopReason::Finished);
        assert_eq!(recycled(&harness), expected);
    }
    let mut spec = plan(2);
    spec.ceilings.host = STAGE.reserved + IDLE + SUPERVISOR;
    let mut harness = Harness::new(spec);
    for _ in 0..4 {
        let granted = harness.lease();
        harness.sample(&[(Process::Worker(granted.worker), Bytes::mib(30))]);
        harness.finish(granted, Status::Passed);
    }
    harness.sample(&[]);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(recycled(&harness), [RecycleReason::MakeRoom]);
    assert_eq!(harness.policies("wait").len(), 1);
    assert_eq!(harness.done(1), Some((Status::Passed, None)));
}

/// The user is told when nothing is running any more, but not while another lease is held.
#[test]
fn user_is_told_when_the_last_lease_ends_and_the_next_one_still_waits() {
    let mut harness = Harness::new(plan(2));
    let first = harness.lease();
    let orders = harness.orders();
    harness.available = Some(Bytes::gib(1) + Bytes::mib(50));
    harness.sample(&[]);
    for _ in 0..5 {
        harness.answer();
    }
    assert_eq!(harness.orders(), orders, "the second candidate waits");
    assert!(harness.policies("idle_wait").is_empty(), "{:#?}", harness.log);
    harness.finish(first, Status::Passed);
    for _ in 0..5 {
        harness.answer();
    }
    assert_eq!((harness.orders(), harness.policies("idle_wait").len()), (orders, 1));
}

#[test]
fn lease_waits_for_the_machines_memory_up_to_a_limit() {
    let mut harness = Harness::new(plan(1));
    harness.available = Some(Bytes::gib(1) + Bytes::mib(50));
    harness.sample(&[]);
    for _ in 0..5 {
        harness.answer();
    }
    assert_eq!(harness.orders(), "");
    assert_eq!(harness.policies("idle_wait").len(), 1, "one row for one wait");
    assert_eq!(harness.policies("wait").len(), 1);
    harness.available = Some(Bytes::gib(2));
    assert_eq!(harness.lease().attempt, 1);

    let mut harness = Harness::new(plan(1));
    harness.available = Some(Bytes::ZERO);
    harness.sample(&[]);
    harness.answer();
    let deadline = harness.core.next_deadline().expect("the wait has a limit");
    harness.pass_time(deadline - harness.now);
    assert!(!harness.kills().is_empty());
    assert!(harness.kills().iter().all(|(_, _, reason)| *reason == KillReason::RunStopped));
    let StopReason::HostFailure { why } = harness.pass_the_rest() else { panic!("{:#?}", harness.log) };
    assert!(why.contains("host_floor"), "{why}");
}

fn with_runner(limit: Bytes) -> (Harness, Granted) {
    let mut harness = Harness::new(plan(1));
    let granted = harness.lease();
    let actions = harness.runner(granted, 7, limit);
    assert_eq!(actions, [Action::AllowRunner { worker: granted.worker, pid: 7 }]);
    (harness, granted)
}

#[test]
fn runner_over_its_limit_is_killed_once() {
    let (mut harness, granted) = with_runner(Bytes::mib(100));
    let runner = Process::Runner(granted.worker, 7);
    // The 1 MiB of shared memory that the runner maps is added.
    assert!(kills(&harness.sample(&[(runner, Bytes::mib(99))])).is_empty());
    let owed = Bytes::mib(100);
    let reason = KillReason::RunnerMemory { owed: owed + Bytes::mib(1), limit: owed };
    assert_eq!(kills(&harness.sample(&[(runner, owed)])), [(granted.worker, Some(7), reason)]);
    for _ in 0..3 {
        assert!(kills(&harness.sample(&[(runner, Bytes::mib(200))])).is_empty());
    }
    assert_eq!(harness.policies("kill_runner").len(), 1, "one row for one kill");
    let wanted = Event::KillWanted { worker: granted.worker, pid: 7, reason: KillReason::Deadline };
    assert!(kills(&harness.feed(wanted)).is_empty(), "the first reason is kept");
    let died = harness.feed(Event::RunnerDied { worker: granted.worker, pid: 7 });
    let peak_owed = Bytes::mib(201);
    assert_eq!(died, [Action::MayReap { worker: granted.worker, pid: 7, killed: Some(reason), peak_owed }]);
}

#[test]
fn largest_runner_is_killed_first_below_the_floor() {
    let (mut harness, granted) = with_runner(Bytes::gib(2));
    harness.runner(granted, 8, Bytes::gib(2));
    let seen = |small, large| {
        [
            (Process::Runner(granted.worker, 7), Bytes::mib(small)),
            (Process::Runner(granted.worker, 8), Bytes::mib(large)),
        ]
    };
    let available = Bytes::gib(1) - Bytes::new(1);
    harness.available = Some(Bytes::gib(1));
    assert!(kills(&harness.sample(&seen(500, 600))).is_empty(), "the machine is at the floor, not below it");
    harness.available = Some(available);
    assert!(kills(&harness.sample(&seen(10, 60))).is_empty(), "other programs hold the memory");
    let reason = KillReason::HostFloor { available, floor: Bytes::gib(1) };
    assert_eq!(kills(&harness.sample(&seen(500, 600))), [(granted.worker, Some(8), reason)]);
    assert!(kills(&harness.sample(&seen(500, 600))).is_empty(), "its memory is still being freed");
    harness.feed(Event::RunnerDied { worker: granted.worker, pid: 8 });
    assert_eq!(kills(&harness.sample(&seen(500, 0))), [(granted.worker, Some(7), reason)]);
    // The worker reports an INFRA_ERROR. The attempt is repeated when there is enough memory.
    harness.feed(Event::RunnerDied { worker: granted.worker, pid: 7 });
    harness.finish(granted, Status::InfraError);
    for _ in 0..3 {
        harness.answer();
    }
    assert_eq!(harness.orders(), "B0");
    harness.available = None;
    assert_eq!(harness.lease().attempt, 2);
}

#[test]
fn runner_without_a_lease_is_killed() {
    let mut harness = Harness::new(plan(1));
    let first = harness.lease();
    let stranger = Granted { lease: opt_shared::ids::LeaseId(99), ..first };
    let killed = |pid| [(first.worker, Some(pid), KillReason::Orphaned)];
    assert_eq!(kills(&harness.runner(stranger, 7, IDLE)), killed(7));
    harness.feed(Event::RunnerDied { worker: first.worker, pid: 7 });
    harness.finish(first, Status::Passed);
    assert_eq!(kills(&harness.runner(first, 8, IDLE)), killed(8), "its lease is over");
}

#[test]
fn worker_that_leaves_runners_behind_is_not_used_again() {
    let (mut harness, granted) = with_runner(Bytes::mib(100));
    harness.sample(&[(Process::Runner(granted.worker, 7), Bytes::mib(50))]);
    let actions = harness.finish(granted, Status::InfraError);
    assert_eq!(kills(&actions), [(granted.worker, Some(7), KillReason::Orphaned)]);
    assert!(actions.contains(&Action::Shutdown { worker: granted.worker }));
    assert!(Bytes::mib(50) < harness.core.ledger.charged().host, "charged until it is gone");
    assert_ne!(harness.lease().worker, granted.worker);
    harness.gone(granted.worker);
    assert_eq!(recycled(&harness), [RecycleReason::LeftRunners]);
}

#[test]
fn phase_records_its_peak() {
    let (mut harness, granted) = with_runner(Bytes::gib(1));
    let all = [
        (Process::Worker(granted.worker), Bytes::mib(6)),
        (Process::Runner(granted.worker, 7), Bytes::mib(80)),
    ];
    harness.sample(&all);
    harness.sample(&all[..1]);
    harness.feed(Event::RunnerDied { worker: granted.worker, pid: 7 });
    let actions = harness.finish(granted, Status::Passed);
    let row = actions
        .iter()
        .find_map(|action| match action {
            Action::PhaseEnded(row) => Some(row),
            _ => None,
        })
        .expect("a phase");
    assert_eq!(row.peak_owed, Bytes::mib(6 + 80 + 1));
    assert_eq!(row.peak_reclaimable, Bytes::mib(2));
    assert_eq!(row.predicted, STAGE.predicted + IDLE);
}

#[test]
fn profiler_due_for_replacement_is_replaced_while_verifiers_work() {
    for (spare, starts_in_the_switch) in [(true, 0), (false, 1)] {
        let mut spec = two_jobs();
        for job in &mut spec.jobs {
            job.recycle.after_leases = 1;
        }
        spec.spare = spare;
        let mut harness = Harness::new(spec);
        for stage in [Stage::Build, Stage::Verify, Stage::Profile, Stage::Build] {
            let granted = harness.lease();
            assert_eq!(granted.order.stage, stage);
            harness.finish(granted, Status::Passed);
        }
        let granted = harness.lease();
        for _ in 0..4 {
            harness.answer();
        }
        let verified = harness.log.len();
        harness.finish(granted, Status::Passed);
        let profile = harness.lease();
        let starts = harness.log[verified..]
            .iter()
            .filter(|it| matches!(it, Action::StartWorker { role: Role::Profiler, .. }))
            .count();
        assert_eq!(starts, starts_in_the_switch, "spare = {spare}\n{:#?}", harness.log);
        harness.finish(profile, Status::Passed);
        assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    }
}
