//! Tests of a machine that is short of memory: what is reported, which workers are ended, and which are left alone.

use std::time::Duration;

use opt_shared::ids::WorkerId;
use opt_shared::message::{KillReason, Role};
use opt_shared::outcome::Status;
use opt_shared::units::Bytes;

use super::harness::{Granted, Harness, Plan, kills, plan, two_jobs};
use crate::core::event::{Action, Control, Event, Process, ProcessSample, Sample, Stage, StopReason};
use crate::core::{Ceilings, DEATH_TIMEOUT};

const SECOND: Duration = Duration::from_secs(1);

fn sample(swapped: Bytes) -> Event {
    Event::Sample(Sample { supervisor_owed: Bytes::mib(10), swapped, ..Sample::default() })
}

fn with_a_spare(spec: Plan) -> (Harness, Granted, WorkerId) {
    let mut harness = Harness::new(Plan { spare: true, ..spec });
    let build = harness.lease();
    harness.finish(build, Status::Passed);
    let verify = harness.lease();
    assert_eq!(verify.order.stage, Stage::Verify);
    for _ in 0..3 {
        harness.answer();
    }
    let profiler = |action: &Action| match action {
        Action::StartWorker { worker, role: Role::Profiler } => Some(*worker),
        _ => None,
    };
    let spare = harness.log.iter().find_map(profiler).expect("a spare is started");
    (harness, verify, spare)
}

fn started(harness: &Harness) -> usize {
    harness.log.iter().filter(|action| matches!(action, Action::StartWorker { .. })).count()
}

#[test]
fn memory_gap_is_reported_once_it_lasts() {
    let mut harness = Harness::new(plan(1));
    let build = harness.lease();
    let runner = Process::Runner(build.worker, 7);
    harness.runner(build, 7, Bytes::gib(3));
    harness.available = Some(Bytes::gib(10));
    harness.sample(&[(runner, Bytes::mib(1))]);
    let rows = |harness: &Harness| harness.policies("attribution_gap").len();
    // 2 GiB less are available, and this run owes only 1 GiB more. The gap of 1 GiB is as large as the floor.
    harness.available = Some(Bytes::gib(8));
    for _ in 0..2 {
        harness.sample(&[(runner, Bytes::gib(1) + Bytes::mib(1))]);
        harness.now += SECOND * 11;
    }
    assert_eq!(
        rows(&harness),
        0,
        "a gap as large as the floor is not reported: {:#?}",
        harness.policies("attribution_gap")
    );
    // One byte more is a gap, if it lasts.
    harness.available = Some(Bytes::gib(8) - Bytes::new(1));
    let owed = [(runner, Bytes::gib(1) + Bytes::mib(1))];
    harness.sample(&owed);
    let since = harness.now;
    harness.now = since + SECOND * 10 - Duration::from_millis(2);
    harness.sample(&owed);
    assert_eq!(rows(&harness), 0, "freed pages do not count as available immediately");
    harness.sample(&owed);
    assert_eq!(rows(&harness), 1);
    let row = harness.policies("attribution_gap").remove(0);
    let number = |name: &str| row.numbers.iter().find(|it| it.0 == name).map(|it| it.1);
    assert_eq!(number("gap_bytes"), Some(Bytes::gib(1).get() + 1));
    assert_eq!(number("available_bytes"), Some(Bytes::gib(8).get() - 1));
    harness.now += SECOND * 11;
    harness.sample(&owed);
    assert_eq!(rows(&harness), 1, "reported once");
    // The gap is over when less than half of the floor is missing.
    for (available, again) in [(Bytes::mib(8 * 1024 + 512), 1), (Bytes::mib(8 * 1024 + 513), 2)] {
        harness.available = Some(available);
        harness.sample(&owed);
        harness.available = Some(Bytes::gib(7));
        harness.sample(&owed);
        harness.now += SECOND * 11;
        harness.sample(&owed);
        assert_eq!(rows(&harness), again, "after {available}");
        harness.feed(Event::RunnerDied { worker: build.worker, pid: 8 });
    }
}

#[test]
fn run_without_a_floor_reports_no_gap() {
    let mut harness = Harness::new(Plan { floor: Bytes::ZERO, ..plan(1) });
    for available in [10, 1] {
        harness.available = Some(Bytes::gib(available));
        harness.sample(&[]);
        harness.now += SECOND * 11;
        harness.sample(&[]);
    }
    assert_eq!(harness.policies("attribution_gap"), []);
}

#[test]
fn swapped_pages_are_reported_as_they_double_and_the_spare_is_ended() {
    let (mut harness, _, spare) = with_a_spare(plan(1));
    let mut rows = 0;
    for (mib, new_rows) in [(0, 0), (4, 1), (8, 0), (9, 1), (9, 0), (4, 0), (0, 0), (1, 1)] {
        let actions = harness.feed(sample(Bytes::mib(mib)));
        rows += new_rows;
        assert_eq!(harness.policies("swapped").len(), rows, "at {mib} MiB");
        if (mib, new_rows) == (4, 1) {
            assert!(actions.contains(&Action::Shutdown { worker: spare }), "{actions:#?}");
        }
    }
    // The spare is not started again immediately.
    let before = started(&harness);
    harness.gone(spare);
    for _ in 0..3 {
        harness.answer();
    }
    assert_eq!(started(&harness), before);

    let (mut harness, ..) = with_a_spare(Plan { own_swap: false, ..plan(1) });
    harness.feed(sample(Bytes::mib(4)));
    assert_eq!(harness.policies("swapped"), [], "the plan ignores swapping");
}

#[test]
fn pressure_ends_the_spare_and_prevents_another_for_a_minute() {
    let (mut harness, verify, spare) = with_a_spare(plan(1));
    let actions = harness.feed(Event::Pressure);
    assert!(actions.contains(&Action::Shutdown { worker: spare }), "{actions:#?}");
    assert!(kills(&actions).is_empty(), "working processes are not ended");
    harness.gone(spare);
    let before = started(&harness);
    harness.now += SECOND * 50;
    harness.feed(Event::Pressure);
    assert_eq!(harness.policies("pressure").len(), 1, "reported once a minute");
    assert_eq!(started(&harness), before);
    harness.finish(verify, Status::Passed);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished, "a worker that is needed is not a spare");

    let (mut harness, ..) = with_a_spare(plan(1));
    harness.feed(Event::Pressure);
    harness.now += SECOND * 60 - Duration::from_millis(2);
    harness.feed(Event::Pressure);
    assert_eq!(harness.policies("pressure").len(), 1);
    harness.feed(Event::Pressure);
    assert_eq!(harness.policies("pressure").len(), 2, "a minute later it is reported again");
}

#[test]
fn worker_with_a_lease_or_started_on_demand_is_not_a_spare() {
    let (mut harness, verify, spare) = with_a_spare(plan(1));
    harness.feed(Event::Control(Control::StayOpen));
    harness.finish(verify, Status::Passed);
    let profile = harness.lease();
    assert_eq!(profile.worker, spare);
    harness.finish(profile, Status::Passed);
    let told_to_end = |actions: &[Action]| actions.iter().any(|it| matches!(it, Action::Shutdown { .. }));
    assert!(!told_to_end(&harness.feed(Event::Pressure)), "the run is open for more");

    let mut harness = Harness::new(plan(1));
    harness.feed(Event::Control(Control::Pause));
    harness.feed(Event::WorkerReady { worker: WorkerId(1) });
    assert!(!told_to_end(&harness.feed(Event::Pressure)), "its first lease waits for the end of the pause");
}

#[test]
fn spare_is_started_again_after_the_pressure() {
    // The verification may take longer than the minute for which the test waits.
    let mut spec = plan(1);
    spec.candidates[0].verify[0].deadline = SECOND * 600;
    let (mut harness, _, spare) = with_a_spare(spec);
    harness.feed(Event::Pressure);
    let since = harness.now;
    harness.gone(spare);
    let before = started(&harness);
    harness.now = since + SECOND * 60 - Duration::from_millis(2);
    harness.sample(&[]);
    assert_eq!(started(&harness), before, "not yet");
    harness.sample(&[]);
    assert_eq!(started(&harness), before + 1, "{:#?}", harness.log);
}

/// Returns a run under a ceiling of 300 MiB, with two leases that have a runner each.
fn side_by_side() -> (Harness, [Granted; 2]) {
    let spec = Plan { verifiers: 2, ceilings: Ceilings::host(Bytes::mib(300)), ..plan(3) };
    let mut harness = Harness::new(spec);
    // The first lease is that of the baseline's build.
    let baseline = harness.lease();
    harness.finish(baseline, Status::Passed);
    let first = harness.lease();
    let second = harness.lease();
    harness.runner(first, 7, Bytes::gib(1));
    harness.runner(second, 8, Bytes::gib(1));
    (harness, [first, second])
}

#[test]
fn offender_is_ended_over_the_ceiling_and_not_the_newest_lease() {
    let (mut harness, [first, second]) = side_by_side();
    let seen = |one, two| {
        [
            (Process::Runner(first.worker, 7), Bytes::mib(one)),
            (Process::Runner(second.worker, 8), Bytes::mib(two)),
        ]
    };
    // In addition to these, the supervisor owes 10 MiB, and each runner maps 1 MiB of shared memory.
    assert!(
        kills(&harness.sample(&seen(198, 90))).is_empty(),
        "a sum equal to the ceiling does not exceed it"
    );
    let killed = kills(&harness.sample(&seen(199, 90)));
    let reason = KillReason::HostCeiling { owed: Bytes::mib(301), ceiling: Bytes::mib(300) };
    assert_eq!(killed, [(first.worker, Some(7), reason)], "{:#?}", harness.log);
    assert!(kills(&harness.sample(&seen(199, 95))).is_empty(), "its memory is still being freed");
}

#[test]
fn newest_lease_is_ended_below_the_floor_without_an_offender() {
    let (mut harness, [first, second]) = side_by_side();
    let available = Bytes::gib(1) - Bytes::mib(1);
    harness.available = Some(available);
    let seen = [
        (Process::Runner(first.worker, 7), Bytes::mib(80)),
        (Process::Runner(second.worker, 8), Bytes::mib(70)),
    ];
    let reason = KillReason::HostFloor { available, floor: Bytes::gib(1) };
    assert_eq!(kills(&harness.sample(&seen)), [(second.worker, Some(8), reason)]);
}

#[test]
fn idle_worker_that_holds_memory_is_ended_before_working_ones() {
    let spec = two_jobs();
    for (held, goes) in [(15, false), (16, true)] {
        let mut harness = Harness::new(spec.clone());
        let mut profiler = None;
        for stage in [Stage::Build, Stage::Verify, Stage::Profile] {
            let granted = harness.lease();
            assert_eq!(granted.order.stage, stage);
            profiler = Some(granted.worker);
            harness.finish(granted, Status::Passed);
        }
        let profiler = profiler.expect("it had a lease");
        let build = harness.lease();
        harness.runner(build, 7, Bytes::gib(1));
        harness.available = Some(Bytes::gib(1) - Bytes::mib(1));
        let processes = [
            ProcessSample {
                process: Process::Worker(profiler),
                owed: Bytes::mib(held),
                reclaimable: Bytes::ZERO,
            },
            ProcessSample {
                process: Process::Runner(build.worker, 7),
                owed: Bytes::mib(90),
                reclaimable: Bytes::ZERO,
            },
        ];
        let actions = harness.feed(Event::Sample(Sample {
            processes: processes.to_vec(),
            supervisor_owed: Bytes::mib(10),
            available: harness.available,
            free: Some(Bytes::mib(77)),
            ..Sample::default()
        }));
        assert_eq!(actions.contains(&Action::Shutdown { worker: profiler }), goes, "{held}: {actions:#?}");
        assert_eq!(kills(&actions).is_empty(), goes, "{held}: {actions:#?}");
        if goes {
            // The worker has one second to end.
            let until = harness.now + SECOND;
            for now in [harness.now, until - Duration::from_millis(2)] {
                harness.now = now;
                let again = harness.sample(&[(Process::Runner(build.worker, 7), Bytes::mib(90))]);
                assert!(kills(&again).is_empty());
            }
            let again = harness.sample(&[(Process::Runner(build.worker, 7), Bytes::mib(90))]);
            assert_eq!(kills(&again).len(), 1, "{again:#?}");
        }
    }
}

#[test]
fn memory_of_a_dead_worker_is_awaited_before_another_is_ended() {
    let (mut harness, [first, second]) = side_by_side();
    let of_dead_worker = (Process::Runner(first.worker, 7), Bytes::mib(90));
    let seen = [of_dead_worker, (Process::Runner(second.worker, 8), Bytes::mib(90))];
    harness.sample(&seen);
    harness.feed(Event::WorkerGone { worker: first.worker, how: "signal 9".to_owned(), left_runners: true });
    let since = harness.now;
    harness.available = Some(Bytes::gib(1) - Bytes::mib(1));
    for now in [since, since + DEATH_TIMEOUT - Duration::from_millis(2)] {
        harness.now = now;
        assert!(kills(&harness.sample(&seen)).is_empty(), "its memory is still being freed");
    }
    // The memory does not come back, so another lease is ended.
    harness.feed(Event::Tick);
    let killed: Vec<_> =
        kills(&harness.sample(&seen)).into_iter().map(|(worker, pid, _)| (worker, pid)).collect();
    assert_eq!(killed, [(second.worker, Some(8))]);
}
