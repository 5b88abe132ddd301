//! Tests of attempts and workers that end for lack of memory, and of memory that does not come back.

use std::time::Duration;

use opt_shared::message::KillReason;
use opt_shared::outcome::{Blame, Status};
use opt_shared::units::Bytes;

use super::harness::{Granted, Harness, Plan, kills, plan, two_jobs};
use crate::core::Ceilings;
use crate::core::DEATH_TIMEOUT;
use crate::core::control::Mode;
use crate::core::event::{
    Action, AttemptEnd, Control, Event, Process, ProcessSample, Sample, Stage, StopReason, WorkerEndClass,
};
use crate::core::recycle::RecycleReason;

fn sample_of(worker: opt_shared::ids::WorkerId, owed: Bytes, available: Option<Bytes>) -> Event {
    let process = ProcessSample { process: Process::Worker(worker), owed, reclaimable: Bytes::ZERO };
    Event::Sample(Sample {
        processes: vec![process],
        supervisor_owed: Bytes::mib(10),
        available,
        ..Sample::default()
    })
}

/// Ends the build's worker for lack of memory in both attempts of both passes. Returns how each attempt and the unit
/// ended.
fn ended_in_every_attempt(
    spec: Plan,
    owed: Bytes,
    available: Option<Bytes>,
) -> (Vec<AttemptEnd>, Option<(Status, Option<Blame>)>) {
    let mut harness = Harness::new(spec);
    for attempt in 1..=4 {
        let granted = harness.lease();
        assert_eq!((granted.order.stage, granted.attempt), (Stage::Build, attempt));
        let killed = kills(&harness.feed(sample_of(granted.worker, owed, available)));
        assert_eq!(killed.len(), 1, "{:#?}", harness.log);
        harness.gone(granted.worker);
        harness.sample(&[]);
    }
    assert!(harness.policies("quarantine").is_empty(), "losses for lack of memory count separately");
    (harness.ends(), harness.done(0))
}

#[test]
fn attempts_that_always_run_out_of_memory_are_given_up_with_their_figures() {
    let infra = Some((Status::InfraError, Some(Blame::Host)));
    let available = Bytes::gib(1) - Bytes::mib(24);
    let (ends, done) = ended_in_every_attempt(plan(1), Bytes::mib(80), Some(available));
    assert_eq!(done, infra);
    let why = |end: &AttemptEnd| match end {
        AttemptEnd::Retried { why, blame: Blame::Host } | AttemptEnd::GivenUp { why, blame: Blame::Host } => {
            why.clone()
        }
        other => panic!("{other:?}"),
    };
    assert!(matches!(ends[..], [.., AttemptEnd::Retried { .. }, AttemptEnd::GivenUp { .. }]), "{ends:?}");
    for end in &ends {
        assert!(why(end).contains("available 1000 MiB, floor 1.00 GiB"), "{}", why(end));
    }

    let spec = Plan { ceilings: Ceilings::host(Bytes::mib(300)), ..plan(1) };
    let (ends, done) = ended_in_every_attempt(spec, Bytes::mib(291), None);
    assert_eq!(done, infra);
    for end in &ends {
        assert!(why(end).contains("owed 301 MiB, ceiling 300 MiB"), "{}", why(end));
    }
}

#[test]
fn memory_of_a_dead_worker_is_reported_once_when_overdue() {
    let mut harness = Harness::new(plan(1));
    let build = harness.lease();
    harness.runner(build, 7, Bytes::mib(100));
    harness.feed(Event::WorkerGone { worker: build.worker, how: "signal 9".to_owned(), left_runners: true });
    let since = harness.now;
    let rows = |harness: &Harness| harness.policies("memory_not_returned").len();
    harness.now = since + DEATH_TIMEOUT - Duration::from_millis(2);
    harness.feed(Event::Tick);
    assert_eq!(rows(&harness), 0);
    harness.feed(Event::Tick);
    assert_eq!(rows(&harness), 1);
    for _ in 0..3 {
        harness.pass_time(DEATH_TIMEOUT);
    }
    assert_eq!(rows(&harness), 1, "once");
}

#[test]
fn worker_that_ends_as_ordered_is_classed_as_ended() {
    let mut harness = Harness::new(plan(1));
    let build = harness.lease();
    let which = crate::core::control::Which::Worker(build.worker);
    harness.feed(Event::Control(Control::Recycle { which, mode: Mode::Drain }));
    harness.finish(build, Status::Passed);
    harness.gone(build.worker);
    let class = harness.log.iter().find_map(|action| match action {
        Action::WorkerEnded { class, .. } => Some(*class),
        _ => None,
    });
    assert_eq!(class, Some(WorkerEndClass::Ended));
}

#[test]
fn worker_killed_for_its_deadline_is_recorded_as_late() {
    let mut harness = Harness::new(plan(1));
    let build = harness.lease();
    harness.pass_time(Duration::from_secs(60));
    harness.gone(build.worker);
    let [AttemptEnd::Retried { why, .. }] = &harness.ends()[..] else { panic!("{:?}", harness.ends()) };
    assert!(why.contains("did not finish in time"), "{why}");
}

/// Including shared memory, the first verifier's runner owes 109 MiB, which is 1 MiB more than the lease's charge.
#[test]
fn smallest_excess_over_the_ceiling_counts() {
    let spec = Plan { verifiers: 2, ceilings: Ceilings::host(Bytes::mib(300)), ..plan(3) };
    let mut harness = Harness::new(spec);
    let baseline = harness.lease();
    harness.finish(baseline, Status::Passed);
    let (first, second): (Granted, Granted) = (harness.lease(), harness.lease());
    harness.runner(first, 7, Bytes::gib(1));
    harness.runner(second, 8, Bytes::gib(1));
    let seen = [
        (Process::Runner(first.worker, 7), Bytes::mib(108)),
        (Process::Runner(second.worker, 8), Bytes::mib(100)),
    ];
    assert!(kills(&harness.sample(&seen)).is_empty());
    // With 10 MiB for the supervisor and 1 MiB of shared memory for each runner, the sum is 220 MiB.
    harness.feed(Event::Control(Control::SetCeiling { ceiling: Bytes::mib(219) }));
    let killed = kills(&harness.sample(&seen));
    assert_eq!(killed.len(), 1);
    assert_eq!((killed[0].0, killed[0].1), (first.worker, Some(7)), "{:#?}", harness.log);
}

#[test]
fn runner_that_holds_little_is_not_ended_for_the_floor() {
    for (owed, ends) in [(63, false), (64, true)] {
        let mut harness = Harness::new(plan(1));
        let build = harness.lease();
        harness.runner(build, 7, Bytes::gib(1));
        let available = Bytes::gib(1) - Bytes::mib(1);
        harness.available = Some(available);
        // The 1 MiB of shared memory that the runner maps is added.
        let killed = kills(&harness.sample(&[(Process::Runner(build.worker, 7), Bytes::mib(owed))]));
        assert_eq!(!killed.is_empty(), ends, "{owed} MiB");
        if ends {
            let reason = KillReason::HostFloor { available, floor: Bytes::gib(1) };
            assert_eq!(killed, [(build.worker, Some(7), reason)]);
        }
    }
}

#[test]
fn worker_that_kept_too_much_for_its_next_lease_is_replaced() {
    for (kept, goes) in [(160, true), (150, false)] {
        let spec = Plan { ceilings: Ceilings::host(Bytes::mib(170)), ..plan(2) };
        let mut harness = Harness::new(spec);
        let build = harness.lease();
        let actions = harness.finish(build, Status::Passed);
        assert!(actions.iter().any(|it| matches!(it, Action::Start { .. })), "{actions:#?}");
        let second = harness.lease();
        harness.feed(Event::Control(Control::Pause));
        harness.finish(second, Status::Passed);
        harness.feed(sample_of(second.worker, Bytes::mib(kept), None));
        let before = harness.log.len();
        harness.feed(Event::Control(Control::Resume));
        let told_to_end = harness.log[before..].contains(&Action::Shutdown { worker: second.worker });
        assert_eq!(told_to_end, goes, "{kept} MiB: {:#?}", &harness.log[before..]);
        if goes {
            let row = harness.policies("recycle").pop().expect("a reason");
            assert!(row.reason.contains(RecycleReason::MakeRoom.name()), "{row:?}");
        }
        assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    }
}

#[test]
fn memory_of_a_dead_worker_is_charged_until_it_is_back() {
    let mut harness = Harness::new(plan(1));
    let build = harness.lease();
    harness.runner(build, 7, Bytes::mib(100));
    harness.feed(Event::WorkerGone { worker: build.worker, how: "signal 9".to_owned(), left_runners: true });
    assert!(harness.core.ledger.has_account(build.worker), "one of its runners is alive");
    harness.feed(Event::OrphansEnded { worker: build.worker });
    assert!(!harness.core.ledger.has_account(build.worker));
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
}

/// In each case, `available` MiB are available on the machine, and an idle profiler holds `held` MiB. The next lease
/// needs 108 MiB above the floor of 1024 MiB.
#[test]
fn idle_worker_is_ended_for_the_floor_only_if_that_is_enough() {
    for (held, available, goes) in [
        (50, 1024 + 108 - 50, true),
        (50, 1024 + 108 - 51, false),
        (50, 1024 + 108, false),
        (0, 1024 + 108 - 1, false),
    ] {
        let mut harness = Harness::new(two_jobs());
        for _ in 0..2 {
            let granted = harness.lease();
            harness.finish(granted, Status::Passed);
        }
        let profile = harness.lease();
        assert_eq!(profile.order.stage, Stage::Profile);
        harness.feed(sample_of(profile.worker, Bytes::mib(held), Some(Bytes::mib(available))));
        let actions = harness.finish(profile, Status::Passed);
        let told_to_end = actions.contains(&Action::Shutdown { worker: profile.worker });
        assert_eq!(told_to_end, goes, "{held} of {available}: {actions:#?}");
        let was_granted = actions.iter().any(|it| matches!(it, Action::Start { .. }));
        assert_eq!(was_granted, 1024 + 108 <= available, "{held} of {available}: {actions:#?}");
        if goes {
            // No other worker is told to end for the same reason, and no worker is told twice.
            let again =
                harness.feed(sample_of(profile.worker, Bytes::mib(held), Some(Bytes::mib(available))));
            assert!(!again.iter().any(|it| matches!(it, Action::Shutdown { .. })), "{again:#?}");
        }
    }
}
