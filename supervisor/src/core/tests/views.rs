//! Tests of the views of workers, and of the reasons why candidates wait.

use std::time::Duration;

use opt_shared::ids::UnitId;
use opt_shared::message::Role;
use opt_shared::outcome::Status;
use opt_shared::units::Bytes;

use super::harness::{Granted, Harness, IDLE, STAGE, one_way, plan};
use crate::core::control::{LeaseView, Mode, RunnerView, Which, WorkerView};
use crate::core::event::{Control, Event, Process, Stage};
use crate::core::spec::StageSpec;

fn only_worker(harness: &Harness) -> WorkerView {
    let mut views = harness.core.worker_views(harness.now);
    assert_eq!(views.len(), 1, "{views:#?}");
    views.remove(0)
}

#[test]
fn view_of_a_worker_has_its_lease_runners_and_memory() {
    let mut harness = Harness::new(plan(1));
    let born = harness.now;
    let view = only_worker(&harness);
    assert_eq!((view.state, view.role, view.leases, view.lease), ("starting", Role::Verifier, 0, None));
    assert_eq!((view.charged, view.owed, view.runners), (IDLE, Bytes::ZERO, vec![]));

    let build = harness.lease();
    let granted_at = harness.now;
    harness.runner(build, 7, Bytes::mib(50));
    let seen = |worker, runner| {
        [
            (Process::Worker(build.worker), Bytes::mib(worker)),
            (Process::Runner(build.worker, 7), Bytes::mib(runner)),
        ]
    };
    harness.sample(&seen(5, 30));
    harness.now = granted_at + Duration::from_secs(10);
    harness.sample(&seen(4, 20));
    let view = only_worker(&harness);
    assert_eq!((view.id, view.state, view.leases), (build.worker, "leased", 1));
    // This includes the 1 MiB of shared memory that the runner maps.
    assert_eq!((view.owed, view.peak_owed), (Bytes::mib(25), Bytes::mib(36)));
    assert_eq!(view.charged, STAGE.reserved + IDLE);
    let (limit, owed, peak_owed) = (Bytes::mib(50), Bytes::mib(21), Bytes::mib(31));
    assert_eq!(view.runners, [RunnerView { pid: 7, limit, owed, peak_owed }]);
    assert_eq!(view.age, harness.now - born);
    let lease_age = harness.now - granted_at;
    let lease = LeaseView {
        id: build.lease,
        unit: UnitId(0),
        stage: Stage::Build,
        attempt: 1,
        held: lease_age,
        left: STAGE.deadline - lease_age,
    };
    assert_eq!(view.lease, Some(lease));
}

#[test]
fn view_shows_whether_a_worker_is_asked_to_go() {
    type Change = fn(&mut Harness, Granted);
    let table: [(Change, &str, bool); 4] = [
        (|_, _| {}, "leased", false),
        (
            |harness, granted| {
                let which = Which::Worker(granted.worker);
                harness.feed(Event::Control(Control::Recycle { which, mode: Mode::Drain }));
            },
            "leased",
            true,
        ),
        (
            // `after_leases` is 1.
            |harness, granted| {
                harness.finish(granted, Status::Passed);
            },
            "draining",
            true,
        ),
        (
            |harness, _| {
                harness.pass_time(STAGE.deadline);
            },
            "leased",
            true,
        ),
    ];
    for (change, state, goes) in table {
        let mut spec = plan(1);
        spec.jobs[0].recycle.after_leases = 1;
        let mut harness = Harness::new(spec);
        let build = harness.lease();
        change(&mut harness, build);
        let view = harness.core.worker_views(harness.now).remove(0);
        assert_eq!((view.id, view.state, view.asked_to_go), (build.worker, state, goes));
    }
}

fn why(harness: &Harness, candidate: u32) -> String {
    harness
        .core
        .wait_reason(harness.now, UnitId(candidate), |id| format!("job/{id}"))
        .unwrap_or_else(|| panic!("{candidate} does not wait"))
}

#[test]
fn view_counts_the_candidates_ahead_of_a_waiting_one() {
    let before = |harness: &Harness, candidate| {
        let why = why(harness, candidate);
        let (start, _) = why.split_once(" ahead of it").unwrap_or_else(|| panic!("{why}"));
        start.rsplit(", ").next().unwrap_or_default().to_owned()
    };
    let mut harness = Harness::new(plan(3));
    let all = |harness: &Harness| [0, 1, 2].map(|candidate| before(harness, candidate));
    assert_eq!(all(&harness), ["0 candidates are", "1 candidate is", "2 candidates are"]);
    assert!(why(&harness, 0).ends_with("and 1 worker is starting or ending"), "{}", why(&harness, 0));
    let build = harness.lease();
    harness.finish(build, Status::Passed);
    assert_eq!([before(&harness, 0), before(&harness, 2)], ["2 candidates are", "1 candidate is"]);
    // Finished candidates are not counted.
    let build = harness.lease();
    harness.finish(build, Status::CompileError);
    assert_eq!(before(&harness, 0), "1 candidate is");
}

#[test]
fn paired_candidate_needs_more_than_the_baseline_alone() {
    let mut spec = plan(2);
    for candidate in &mut spec.candidates {
        candidate.paired = one_way(StageSpec { reserved: Bytes::mib(200), ..STAGE });
    }
    let mut harness = Harness::new(spec);
    for _ in 0..4 {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    // No lease is granted before the verifier has been sampled.
    assert!(why(&harness, 0).starts_with("stage `profile` needs a lease of 108 MiB"), "{}", why(&harness, 0));
    assert!(why(&harness, 1).starts_with("stage `profile` needs a lease of 208 MiB"), "{}", why(&harness, 1));
}
