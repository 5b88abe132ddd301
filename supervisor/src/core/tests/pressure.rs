//! A machine short of memory: what is reported, which workers are ended, and which are left alone.

use std::time::Duration;

use opt_shared::ids::WorkerId;
use opt_shared::message::{KillReason, Role};
use opt_shared::outcome::Status;
use opt_shared::units::Bytes;

use super::desk::{Desk, Given, Plan, kills, plan, two_jobs};
use crate::core::event::{Action, Control, Event, Process, ProcessSample, Sample, Stage, StopReason};
use crate::core::{Ceilings, RETURN_TIMEOUT};

const SECOND: Duration = Duration::from_secs(1);

fn sample(swapped: Bytes) -> Event {
    Event::Sample(Sample { supervisor_owed: Bytes::mib(10), swapped, ..Sample::default() })
}

/// Returns a run in which a verification is running and a spare profiler is waiting.
fn with_a_spare(spec: Plan) -> (Desk, Given, WorkerId) {
    let mut desk = Desk::new(Plan { spare: true, ..spec });
    let build = desk.lease();
    desk.finish(build, Status::Passed);
    let verify = desk.lease();
    assert_eq!(verify.order.stage, Stage::Verify);
    for _ in 0..3 {
        desk.answer();
    }
    let profiler = |action: &Action| match action {
        Action::StartWorker { worker, role: Role::Profiler } => Some(*worker),
        _ => None,
    };
    let spare = desk.log.iter().find_map(profiler).expect("a spare is started");
    (desk, verify, spare)
}

fn started(desk: &Desk) -> usize {
    desk.log.iter().filter(|action| matches!(action, Action::StartWorker { .. })).count()
}

#[test]
fn memory_gap_is_reported_once_it_lasts() {
    let mut desk = Desk::new(plan(1));
    let build = desk.lease();
    let runner = Process::Runner(build.worker, 7);
    desk.runner(build, 7, Bytes::gib(3));
    desk.available = Some(Bytes::gib(10));
    desk.sample(&[(runner, Bytes::mib(1))]);
    let rows = |desk: &Desk| desk.policies("attribution_gap").len();
    // The memory that this run owes explains it.
    desk.available = Some(Bytes::gib(8));
    for _ in 0..2 {
        desk.sample(&[(runner, Bytes::gib(1) + Bytes::mib(1))]);
        desk.now += SECOND * 11;
    }
    assert_eq!(
        rows(&desk),
        0,
        "a gap as large as the floor is not reported: {:#?}",
        desk.policies("attribution_gap")
    );
    // One byte more is a gap, if it lasts.
    desk.available = Some(Bytes::gib(8) - Bytes::new(1));
    let owed = [(runner, Bytes::gib(1) + Bytes::mib(1))];
    desk.sample(&owed);
    let since = desk.now;
    desk.now = since + SECOND * 10 - Duration::from_millis(2);
    desk.sample(&owed);
    assert_eq!(rows(&desk), 0, "freed pages do not count as available immediately");
    desk.sample(&owed);
    assert_eq!(rows(&desk), 1);
    let row = desk.policies("attribution_gap").remove(0);
    let number = |name: &str| row.numbers.iter().find(|it| it.0 == name).map(|it| it.1);
    assert_eq!(number("gap_bytes"), Some(Bytes::gib(1).get() + 1));
    assert_eq!(number("available_bytes"), Some(Bytes::gib(8).get() - 1));
    desk.now += SECOND * 11;
    desk.sample(&owed);
    assert_eq!(rows(&desk), 1, "reported once");
    // The gap is over when less than half of the floor is missing.
    for (available, again) in [(Bytes::mib(8 * 1024 + 512), 1), (Bytes::mib(8 * 1024 + 513), 2)] {
        desk.available = Some(available);
        desk.sample(&owed);
        desk.available = Some(Bytes::gib(7));
        desk.sample(&owed);
        desk.now += SECOND * 11;
        desk.sample(&owed);
        assert_eq!(rows(&desk), again, "after {available}");
        desk.feed(Event::RunnerDied { worker: build.worker, pid: 8 });
    }
}

#[test]
fn run_without_a_floor_reports_no_gap() {
    let mut desk = Desk::new(Plan { floor: Bytes::ZERO, ..plan(1) });
    for available in [10, 1] {
        desk.available = Some(Bytes::gib(available));
        desk.sample(&[]);
        desk.now += SECOND * 11;
        desk.sample(&[]);
    }
    assert_eq!(desk.policies("attribution_gap"), []);
}

#[test]
fn swapped_pages_are_reported_as_they_double_and_the_spare_is_ended() {
    let (mut desk, _, spare) = with_a_spare(plan(1));
    let mut rows = 0;
    for (mib, news) in [(0, 0), (4, 1), (8, 0), (9, 1), (9, 0), (4, 0), (0, 0), (1, 1)] {
        let actions = desk.feed(sample(Bytes::mib(mib)));
        rows += news;
        assert_eq!(desk.policies("swapped").len(), rows, "at {mib} MiB");
        if (mib, news) == (4, 1) {
            assert!(actions.contains(&Action::Shutdown { worker: spare }), "{actions:#?}");
        }
    }
    // The spare is not started again immediately.
    let before = started(&desk);
    desk.gone(spare);
    for _ in 0..3 {
        desk.answer();
    }
    assert_eq!(started(&desk), before);

    let (mut desk, ..) = with_a_spare(Plan { own_swap: false, ..plan(1) });
    desk.feed(sample(Bytes::mib(4)));
    assert_eq!(desk.policies("swapped"), [], "the plan ignores swapping");
}

#[test]
fn pressure_ends_the_spare_and_prevents_another_for_a_minute() {
    let (mut desk, verify, spare) = with_a_spare(plan(1));
    let actions = desk.feed(Event::Pressure);
    assert!(actions.contains(&Action::Shutdown { worker: spare }), "{actions:#?}");
    assert!(kills(&actions).is_empty(), "working processes are not ended for it");
    desk.gone(spare);
    let before = started(&desk);
    desk.now += SECOND * 50;
    desk.feed(Event::Pressure);
    assert_eq!(desk.policies("pressure").len(), 1, "reported once a minute");
    assert_eq!(started(&desk), before);
    desk.finish(verify, Status::Passed);
    assert_eq!(desk.pass_the_rest(), StopReason::Finished, "a worker that is needed is not a spare");

    let (mut desk, ..) = with_a_spare(plan(1));
    desk.feed(Event::Pressure);
    desk.now += SECOND * 60 - Duration::from_millis(2);
    desk.feed(Event::Pressure);
    assert_eq!(desk.policies("pressure").len(), 1);
    desk.feed(Event::Pressure);
    assert_eq!(desk.policies("pressure").len(), 2, "a minute later it is reported again");
}

#[test]
fn worker_with_a_lease_or_started_on_demand_is_not_a_spare() {
    let (mut desk, verify, spare) = with_a_spare(plan(1));
    desk.feed(Event::Control(Control::StayOpen));
    desk.finish(verify, Status::Passed);
    let profile = desk.lease();
    assert_eq!(profile.worker, spare);
    desk.finish(profile, Status::Passed);
    let told_to_end = |actions: &[Action]| actions.iter().any(|it| matches!(it, Action::Shutdown { .. }));
    assert!(!told_to_end(&desk.feed(Event::Pressure)), "the run is open for more");

    let mut desk = Desk::new(plan(1));
    desk.feed(Event::Control(Control::Pause));
    desk.feed(Event::WorkerReady { worker: WorkerId(1) });
    assert!(!told_to_end(&desk.feed(Event::Pressure)), "its first lease waits for the end of the pause");
}

#[test]
fn spare_is_started_again_after_the_pressure() {
    // The verification may take more than a minute.
    let mut spec = plan(1);
    spec.candidates[0].verify[0].deadline = SECOND * 600;
    let (mut desk, _, spare) = with_a_spare(spec);
    desk.feed(Event::Pressure);
    let since = desk.now;
    desk.gone(spare);
    let before = started(&desk);
    desk.now = since + SECOND * 60 - Duration::from_millis(2);
    desk.sample(&[]);
    assert_eq!(started(&desk), before, "not yet");
    desk.sample(&[]);
    assert_eq!(started(&desk), before + 1, "{:#?}", desk.log);
}

/// Returns a run with two verifications side by side, each with a runner, under a ceiling of 300 MiB.
fn side_by_side() -> (Desk, [Given; 2]) {
    let spec = Plan { verifiers: 2, ceilings: Ceilings::host(Bytes::mib(300)), ..plan(3) };
    let mut desk = Desk::new(spec);
    // The baseline is verified first, alone.
    let baseline = desk.lease();
    desk.finish(baseline, Status::Passed);
    let first = desk.lease();
    let second = desk.lease();
    desk.runner(first, 7, Bytes::gib(1));
    desk.runner(second, 8, Bytes::gib(1));
    (desk, [first, second])
}

#[test]
fn offender_is_ended_over_the_ceiling_and_not_the_newest_lease() {
    let (mut desk, [first, second]) = side_by_side();
    let seen = |one, two| {
        [
            (Process::Runner(first.worker, 7), Bytes::mib(one)),
            (Process::Runner(second.worker, 8), Bytes::mib(two)),
        ]
    };
    // The supervisor's 10 and 1 MiB of shared memory for each are added to these.
    assert!(kills(&desk.sample(&seen(198, 90))).is_empty(), "a sum equal to the ceiling does not exceed it");
    let killed = kills(&desk.sample(&seen(199, 90)));
    let reason = KillReason::HostCeiling { owed: Bytes::mib(301), ceiling: Bytes::mib(300) };
    assert_eq!(killed, [(first.worker, Some(7), reason)], "{:#?}", desk.log);
    assert!(kills(&desk.sample(&seen(199, 95))).is_empty(), "its memory is on its way back");
}

#[test]
fn newest_lease_is_ended_below_the_floor_without_an_offender() {
    let (mut desk, [first, second]) = side_by_side();
    let available = Bytes::gib(1) - Bytes::mib(1);
    desk.available = Some(available);
    let seen = [
        (Process::Runner(first.worker, 7), Bytes::mib(80)),
        (Process::Runner(second.worker, 8), Bytes::mib(70)),
    ];
    let reason = KillReason::HostFloor { available, floor: Bytes::gib(1) };
    assert_eq!(kills(&desk.sample(&seen)), [(second.worker, Some(8), reason)]);
}

#[test]
fn idle_worker_that_holds_memory_is_ended_before_working_ones() {
    // A verification runs beside a profiler that has been idle since the previous job.
    let spec = two_jobs();
    for (held, goes) in [(15, false), (16, true)] {
        let mut desk = Desk::new(spec.clone());
        let mut profiler = None;
        for stage in [Stage::Build, Stage::Verify, Stage::Profile] {
            let given = desk.lease();
            assert_eq!(given.order.stage, stage);
            profiler = Some(given.worker);
            desk.finish(given, Status::Passed);
        }
        let profiler = profiler.expect("it had a lease");
        let build = desk.lease();
        desk.runner(build, 7, Bytes::gib(1));
        desk.available = Some(Bytes::gib(1) - Bytes::mib(1));
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
        let actions = desk.feed(Event::Sample(Sample {
            processes: processes.to_vec(),
            supervisor_owed: Bytes::mib(10),
            available: desk.available,
            free: Some(Bytes::mib(77)),
            ..Sample::default()
        }));
        assert_eq!(actions.contains(&Action::Shutdown { worker: profiler }), goes, "{held}: {actions:#?}");
        assert_eq!(kills(&actions).is_empty(), goes, "{held}: {actions:#?}");
        if goes {
            // The worker has a second to end.
            let until = desk.now + SECOND;
            for now in [desk.now, until - Duration::from_millis(2)] {
                desk.now = now;
                let again = desk.sample(&[(Process::Runner(build.worker, 7), Bytes::mib(90))]);
                assert!(kills(&again).is_empty());
            }
            let again = desk.sample(&[(Process::Runner(build.worker, 7), Bytes::mib(90))]);
            assert_eq!(kills(&again).len(), 1, "{again:#?}");
        }
    }
}

#[test]
fn memory_of_a_dead_worker_is_awaited_before_another_is_ended() {
    let (mut desk, [first, second]) = side_by_side();
    let of_dead_worker = (Process::Runner(first.worker, 7), Bytes::mib(90));
    let seen = [of_dead_worker, (Process::Runner(second.worker, 8), Bytes::mib(90))];
    desk.sample(&seen);
    desk.feed(Event::WorkerGone { worker: first.worker, how: "signal 9".to_owned(), left_runners: true });
    let since = desk.now;
    desk.available = Some(Bytes::gib(1) - Bytes::mib(1));
    for now in [since, since + RETURN_TIMEOUT - Duration::from_millis(2)] {
        desk.now = now;
        assert!(kills(&desk.sample(&seen)).is_empty(), "its memory is on its way back");
    }
    // The memory does not come back, so another lease is ended.
    desk.feed(Event::Tick);
    let killed: Vec<_> =
        kills(&desk.sample(&seen)).into_iter().map(|(worker, pid, _)| (worker, pid)).collect();
    assert_eq!(killed, [(second.worker, Some(8))]);
}
