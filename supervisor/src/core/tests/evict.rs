//! Tests which workers are ended to make room for a lease, and which are kept.

use std::time::Duration;

use opt_shared::ids::{UnitId, WorkerId};
use opt_shared::outcome::Status;
use opt_shared::units::Bytes;

use super::harness::{Granted, Harness, Plan, a_candidate, plan, two_jobs};
use crate::core::DEATH_TIMEOUT;
use crate::core::control::{Mode, Which};
use crate::core::event::{Action, Control, Event, Process, Stage};

fn told_to_end(actions: &[Action]) -> Vec<WorkerId> {
    actions
        .iter()
        .filter_map(|action| match *action {
            Action::Shutdown { worker } => Some(worker),
            _ => None,
        })
        .collect()
}

/// Samples the workers with the memory that they hold, in MiB, sets the ceiling, and ends the pause. Returns the
/// workers that are then told to end.
fn after_a_pause(harness: &mut Harness, held: &[(WorkerId, u64)], ceiling: u64) -> Vec<WorkerId> {
    let seen: Vec<_> = held.iter().map(|&(worker, mib)| (Process::Worker(worker), Bytes::mib(mib))).collect();
    harness.sample(&seen);
    harness.feed(Event::Control(Control::SetCeiling { ceiling: Bytes::mib(ceiling) }));
    told_to_end(&harness.feed(Event::Control(Control::Resume)))
}

fn pause(harness: &mut Harness) {
    harness.feed(Event::Control(Control::Pause));
}

/// Returns a run in which both verifiers build for the second job, with their leases. The idle profiler, which is also
/// returned, has worked for the first job.
fn beside_an_idle_profiler() -> (Harness, [Granted; 2], WorkerId) {
    let mut spec = Plan { verifiers: 2, ..two_jobs() };
    spec.jobs[1].candidates.push(UnitId(2));
    spec.candidates.push(a_candidate());
    let mut harness = Harness::new(spec);
    for _ in 0..2 {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    let profile = harness.lease();
    assert_eq!(profile.order.stage, Stage::Profile);
    harness.finish(profile, Status::Passed);
    let both = [harness.lease(), harness.lease()];
    (harness, both, profile.worker)
}

/// In MiB, the supervisor is charged 20 and the next lease 108, and each of the two workers that do not get this lease
/// holds 60. The sum exceeds the ceiling of 200 by 48.
#[test]
fn only_as_many_workers_end_as_the_lease_needs() {
    let (mut harness, [first, second], profiler) = beside_an_idle_profiler();
    pause(&mut harness);
    harness.finish(first, Status::Passed);
    harness.finish(second, Status::Passed);
    let held = [(first.worker, 5), (second.worker, 60), (profiler, 60)];
    assert_eq!(after_a_pause(&mut harness, &held, 200), [profiler]);
    // Until that worker has ended, no other worker is told to end.
    let seen = held.map(|(worker, mib)| (Process::Worker(worker), Bytes::mib(mib)));
    for _ in 0..3 {
        assert_eq!(told_to_end(&harness.sample(&seen)), []);
    }
    let actions = harness.gone(profiler);
    assert!(actions.iter().any(|it| matches!(it, Action::Start { .. })), "{actions:#?}");
    assert_eq!(told_to_end(&actions), []);
}

#[test]
fn spare_is_ended_before_a_worker_that_has_worked() {
    let mut harness = Harness::new(Plan { verifiers: 2, spare: true, ..plan(2) });
    for _ in 0..2 {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    let (first, second) = (harness.lease(), harness.lease());
    assert_eq!([first, second].map(|it| it.order.stage), [Stage::Verify; 2]);
    harness.answer();
    let spare = WorkerId(3);
    let idle =
        harness.core.worker_views(harness.now).into_iter().find(|it| it.state == "idle").map(|it| it.id);
    assert_eq!(idle, Some(spare));
    pause(&mut harness);
    harness.finish(first, Status::InfraError);
    harness.finish(second, Status::InfraError);
    let others: Vec<_> = [first, second].iter().map(|it| it.worker).collect();
    assert!(others.iter().all(|&it| it < spare));
    // The worker that will get the lease holds little.
    let held = [(WorkerId(1), 5), (WorkerId(2), 60), (spare, 60)];
    assert_eq!(after_a_pause(&mut harness, &held, 200), [spare]);
}

#[test]
fn memory_of_a_dead_worker_is_expected_back_until_its_timeout() {
    let (mut harness, [first, second], profiler) = beside_an_idle_profiler();
    harness.runner(second, 7, Bytes::gib(1));
    let seen =
        [(Process::Worker(profiler), Bytes::mib(60)), (Process::Runner(second.worker, 7), Bytes::mib(59))];
    harness.sample(&seen);
    harness.feed(Event::WorkerGone { worker: second.worker, how: "signal 9".to_owned(), left_runners: true });
    let since = harness.now;
    harness.feed(Event::Control(Control::SetCeiling { ceiling: Bytes::mib(200) }));
    // 48 MiB are missing. No worker is ended, because the dead worker's memory will be enough once it is freed.
    assert_eq!(told_to_end(&harness.finish(first, Status::Passed)), []);
    harness.now = since + DEATH_TIMEOUT - Duration::from_millis(2);
    assert_eq!(told_to_end(&harness.sample(&seen)), []);
    assert_eq!(told_to_end(&harness.sample(&seen)), [profiler], "{:#?}", harness.log);
}

/// An idle worker kept more memory than its next lease reserves.
#[test]
fn worker_that_kept_too_much_for_its_lease_ends_only_if_that_is_enough() {
    // The supervisor, a running lease and the next lease are charged 20 + 108 + 108 = 236 MiB. Under a smaller ceiling,
    // the next lease would not fit even with a new worker.
    for (ceiling, goes) in [(235, false), (236, true)] {
        let (mut harness, [_, second], profiler) = beside_an_idle_profiler();
        let which = Which::Worker(profiler);
        harness.feed(Event::Control(Control::Recycle { which, mode: Mode::Drain }));
        harness.gone(profiler);
        pause(&mut harness);
        harness.finish(second, Status::Passed);
        let gone = after_a_pause(&mut harness, &[(second.worker, 150)], ceiling);
        assert_eq!(gone, if goes { vec![second.worker] } else { vec![] }, "{ceiling}: {:#?}", harness.log);
    }
    // Ending another worker frees enough memory, so this one stays.
    let (mut harness, [first, second], profiler) = beside_an_idle_profiler();
    pause(&mut harness);
    harness.finish(first, Status::Passed);
    harness.finish(second, Status::Passed);
    let held = [(first.worker, 150), (profiler, 60)];
    assert_eq!(after_a_pause(&mut harness, &held, 200), [profiler]);
}

/// The worker owes too much for its lease although it has not done any work, so its successor would owe the same.
#[test]
fn unused_worker_is_not_replaced_for_its_own_lease() {
    let mut harness = Harness::new(plan(1));
    pause(&mut harness);
    let worker = WorkerId(1);
    harness.feed(Event::WorkerReady { worker });
    assert_eq!(after_a_pause(&mut harness, &[(worker, 160)], 170), []);
    assert_eq!(harness.policies("wait").len(), 1);
}
