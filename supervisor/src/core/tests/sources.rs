//! Tests of the sources of units: when they are asked, what they may offer, and that they cannot hold up a run
//! indefinitely.

use std::time::Duration;

use opt_shared::formula::SUPERVISOR_PER_ITEM;
use opt_shared::ids::{JobId, UnitId};
use opt_shared::outcome::{Blame, Status};
use opt_shared::units::Bytes;

use super::harness::{Harness, Plan, STAGE, a_candidate, a_job, a_replay, plan, two_jobs};
use crate::core::control::Mode;
use crate::core::event::{Action, Answer, Control, Event, Offer, StopReason};
use crate::core::spec::{StageSpec, UnitSpec};
use crate::core::supply::SOURCE_TIMEOUT;

const SECOND: Duration = Duration::from_secs(1);

fn wanted(actions: &[Action]) -> Vec<(u32, u32)> {
    actions
        .iter()
        .filter_map(|action| match action {
            Action::Wanted { job, capacity } => Some((job.0, *capacity)),
            _ => None,
        })
        .collect()
}

fn jobs_over(harness: &Harness) -> Vec<u32> {
    harness
        .log
        .iter()
        .filter_map(|action| match action {
            Action::JobDone { job, .. } => Some(job.0),
            _ => None,
        })
        .collect()
}

fn answer(actions: &[Action]) -> Answer {
    let found = actions.iter().find_map(|action| match action {
        Action::Replied(answer) => Some(answer.clone()),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no answer: {actions:#?}"))
}

/// Returns candidates that go through all stages.
fn units(ids: std::ops::Range<u32>) -> Vec<UnitSpec> {
    ids.map(|id| plan(1).unit(UnitId(id), &a_candidate(), true, false)).collect()
}

fn offer(harness: &mut Harness, ids: std::ops::Range<u32>, more: bool) -> Vec<Action> {
    let by = Offer::Asked { more };
    harness.feed(Event::Offered { job: JobId(0), units: units(ids), by })
}

/// Returns a harness in which the test offers units in place of the source. The core has not asked for units yet.
fn with_a_silent_source(verifiers: u32) -> Harness {
    Harness::silent(&Plan { verifiers, ..plan(0) })
}

/// Returns a plan with a job of one candidate, and a job after it with a replay.
fn with_a_replay() -> Plan {
    let mut plan = plan(1);
    plan.candidates.push(a_replay(STAGE));
    plan.jobs.push(a_job(JobId(1)));
    plan.jobs[1].candidates = vec![UnitId(1)];
    plan.jobs[1].after = vec![JobId(0)];
    plan
}

#[test]
fn source_is_asked_again_only_when_its_job_runs_short() {
    let mut harness = with_a_silent_source(2);
    assert_eq!(wanted(&harness.feed(Event::Tick)), [(0, 4)]);
    assert_eq!(wanted(&harness.feed(Event::Tick)), [], "it has already been asked");
    // One unit per verifier is enough for now.
    assert_eq!(wanted(&offer(&mut harness, 0..2, true)), []);
    let granted = harness.lease();
    let actions = harness.finish(granted, Status::CompileError);
    assert_eq!(wanted(&actions), [(0, 3)], "one is left");
    assert_eq!(wanted(&offer(&mut harness, 2..2, false)), [], "it has no more units");
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(wanted(&harness.log), [(0, 4), (0, 3)]);
    assert_eq!(jobs_over(&harness), [0]);
}

#[test]
fn job_stays_open_while_its_source_may_have_more() {
    let mut harness = with_a_silent_source(1);
    harness.feed(Event::Tick);
    offer(&mut harness, 0..1, true);
    while harness.done(0).is_none() {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    assert_eq!(wanted(&harness.log), [(0, 2), (0, 2)]);
    harness.pass_time(SECOND);
    assert_eq!((jobs_over(&harness), harness.stopped()), (vec![], None));
    offer(&mut harness, 1..1, false);
    assert_eq!(jobs_over(&harness), [0]);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
}

#[test]
fn silent_source_does_not_hold_up_the_run() {
    let mut harness = with_a_silent_source(1);
    harness.feed(Event::Tick);
    let asked_at = harness.now;
    assert_eq!(harness.core.next_deadline(), Some(asked_at + SOURCE_TIMEOUT));
    harness.now = asked_at + SOURCE_TIMEOUT - Duration::from_millis(2);
    harness.feed(Event::Tick);
    assert_eq!(harness.stopped(), None);
    harness.feed(Event::Tick);
    assert_eq!(harness.policies("source_silent").len(), 1);
    assert_eq!((jobs_over(&harness), harness.stopped()), (vec![0], Some(StopReason::Finished)));
}

#[test]
fn source_with_nothing_yet_is_awaited_and_not_asked_again() {
    let mut harness = with_a_silent_source(1);
    harness.feed(Event::Tick);
    let asked_at = harness.now;
    for _ in 0..3 {
        assert_eq!(wanted(&offer(&mut harness, 0..0, true)), []);
    }
    assert_eq!(harness.core.next_deadline(), Some(asked_at + SOURCE_TIMEOUT), "its timeout continues");
    offer(&mut harness, 0..1, false);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 V0 P0");
}

#[test]
fn late_units_of_an_earlier_job_do_not_disturb_a_unit_that_runs_alone() {
    let mut harness = Harness::silent(&two_jobs());
    harness.feed(Event::Tick);
    let by = Offer::Asked { more: false };
    harness.feed(Event::Offered { job: JobId(1), units: units(0..1), by });
    for _ in 0..2 {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    let profile = harness.lease();
    assert_eq!(harness.orders(), "B0 V0 P0");
    offer(&mut harness, 1..2, false);
    for _ in 0..5 {
        harness.answer();
    }
    assert_eq!(harness.orders(), "B0 V0 P0");
    harness.finish(profile, Status::Passed);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    // The late unit must run alone.
    let mut harness = Harness::silent(&two_jobs());
    harness.feed(Event::Tick);
    harness.feed(Event::Offered { job: JobId(1), units: units(0..1), by });
    let build = harness.lease();
    let replay = two_jobs().unit(UnitId(1), &a_replay(STAGE), true, false);
    harness.feed(Event::Offered { job: JobId(0), units: vec![replay], by });
    for _ in 0..5 {
        harness.answer();
    }
    assert_eq!(harness.orders(), "B0");
    harness.finish(build, Status::Passed);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 R1 V0 P0");
}

#[test]
fn silent_source_does_not_stop_other_jobs_and_may_still_offer() {
    let mut harness = Harness::silent(&two_jobs());
    assert_eq!(wanted(&harness.feed(Event::Tick)), [(0, 2), (1, 2)]);
    let by = Offer::Asked { more: false };
    harness.feed(Event::Offered { job: JobId(1), units: units(0..1), by });
    let granted = harness.lease();
    assert_eq!(granted.order.unit, UnitId(0), "the unit of the second job");
    harness.pass_time(SOURCE_TIMEOUT);
    assert_eq!(jobs_over(&harness), [0], "{:#?}", harness.log);
    // A late offer is accepted.
    let actions = offer(&mut harness, 1..2, false);
    assert_eq!(answer(&actions), Answer::Done("accepted".to_owned()));
    // In the meantime, the worker of the second job has passed its deadline.
    harness.gone(granted.worker);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(
        (harness.done(0), harness.done(1)),
        (Some((Status::Passed, None)), Some((Status::Passed, None)))
    );
}

/// If later offers joined the current turn, a source that always has more units would prevent its first units from
/// being timed.
#[test]
fn later_offer_comes_in_a_later_turn() {
    let mut harness = with_a_silent_source(1);
    harness.feed(Event::Tick);
    offer(&mut harness, 0..2, true);
    let granted = harness.lease();
    harness.finish(granted, Status::Passed);
    let granted = harness.lease();
    assert_eq!(wanted(&harness.finish(granted, Status::CompileError)), []);
    for _ in 0..2 {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    offer(&mut harness, 2..4, false);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 B1 V0 P0 B2 B3 V2 V3 P2 P3");
}

#[test]
fn malformed_offer_is_refused() {
    let mut harness = with_a_silent_source(1);
    harness.feed(Event::Tick);
    let whole = || units(0..1).remove(0);
    let route = |change: fn(&mut Vec<crate::core::spec::Step>)| {
        let mut unit = whole();
        let mut route = unit.route.to_vec();
        change(&mut route);
        unit.route = route.into();
        unit
    };
    let table = [
        UnitSpec { id: UnitId(1), ..whole() },
        route(Vec::clear),
        route(|route| route[1].ways = [].into()),
        route(|route| route[2].paired = Some([].into())),
        route(|route| route.swap(0, 1)),
        route(|route| route[1] = route[0].clone()),
    ];
    for unit in table {
        let by = Offer::Asked { more: false };
        let actions = harness.feed(Event::Offered { job: JobId(0), units: vec![unit.clone()], by });
        assert!(matches!(answer(&actions), Answer::Unknown(_)), "{unit:?}");
    }
    for by in [Offer::Asked { more: false }, Offer::Unasked] {
        let actions = harness.feed(Event::Offered { job: JobId(7), units: units(0..1), by });
        assert!(matches!(answer(&actions), Answer::Unknown(_)), "{by:?}");
    }
    assert!(matches!(answer(&offer(&mut harness, 0..3, false)), Answer::Done(what) if what.starts_with('3')));
}

#[test]
fn waiting_unit_can_be_withdrawn_and_a_running_one_cannot() {
    let mut harness = Harness::new(plan(2));
    let granted = harness.lease();
    let withdraw = |harness: &mut Harness, id| answer(&harness.feed(Event::Withdrawn { unit: UnitId(id) }));
    assert!(matches!(withdraw(&mut harness, 0), Answer::Already(_)));
    assert!(matches!(withdraw(&mut harness, 1), Answer::Done(_)));
    assert_eq!(harness.done(1), Some((Status::Skipped, Some(Blame::Plan))));
    assert!(matches!(withdraw(&mut harness, 1), Answer::Already(_)));
    assert!(matches!(withdraw(&mut harness, 2), Answer::Unknown(_)));
    assert_eq!(harness.policies("withdraw").len(), 1);
    harness.finish(granted, Status::Passed);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 V0 P0");
}

#[test]
fn source_of_a_job_that_follows_others_is_asked_when_they_are_over() {
    let mut harness = Harness::new(with_a_replay());
    assert_eq!(wanted(&harness.log), [(0, 2)]);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 V0 P0 R1");
    let at = |wanted: &dyn Fn(&Action) -> bool| harness.log.iter().position(wanted);
    let over = at(&|it| matches!(it, Action::JobDone { job: JobId(0), .. }));
    let asked_at = at(&|it| matches!(it, Action::Wanted { job: JobId(1), .. }));
    assert!(over < asked_at, "{:#?}", harness.log);
    assert_eq!(jobs_over(&harness), [0, 1]);
}

/// The next grant must not wait for another event.
#[test]
fn next_unit_is_granted_as_soon_as_the_previous_one_ends() {
    // The next unit belongs to the next job.
    let mut harness = Harness::new(with_a_replay());
    for _ in 0..2 {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    let profile = harness.lease();
    assert_eq!(wanted(&harness.finish(profile, Status::Passed)), [(1, 2)]);
    let mut spec = plan(2);
    spec.candidates[1].build[0].reserved = Bytes::mib(400);
    let mut harness = Harness::new(spec);
    let build = harness.lease();
    harness.submit(0, 2);
    harness.feed(Event::Control(Control::Pause));
    harness.finish(build, Status::CompileError);
    harness.feed(Event::Control(Control::SetCeiling { ceiling: Bytes::mib(300) }));
    let actions = harness.feed(Event::Control(Control::Resume));
    assert_eq!(harness.done(1), Some((Status::DoesNotFit, Some(Blame::Plan))));
    assert!(actions.iter().any(|it| matches!(it, Action::Start { .. })), "{actions:#?}");
}

#[test]
fn wait_for_memory_ends_with_its_unit() {
    let mut harness = Harness::silent(&plan(1));
    harness.available = Some(Bytes::gib(1));
    harness.feed(Event::Tick);
    harness.sample(&[]);
    offer(&mut harness, 0..1, false);
    for _ in 0..3 {
        harness.answer();
    }
    assert!(harness.core.run_view().waiting.is_some(), "{:#?}", harness.log);
    harness.feed(Event::Withdrawn { unit: UnitId(0) });
    assert_eq!(harness.core.run_view().waiting, None);
}

#[test]
fn job_takes_no_more_units_once_its_follower_has_begun() {
    let mut harness = Harness::new(with_a_replay());
    for _ in 0..3 {
        assert_eq!(harness.core.may_offer(JobId(0)), Ok(()));
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    let replay = harness.lease();
    assert!(matches!(harness.core.may_offer(JobId(0)), Err(Answer::Refused(_))));
    assert!(matches!(answer(&harness.submit(0, 2)), Answer::Refused(_)));
    harness.finish(replay, Status::Passed);
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
}

#[test]
fn open_run_makes_its_replays_only_if_it_drains() {
    for drain in [true, false] {
        let mut harness = Harness::silent(&with_a_replay());
        harness.feed(Event::Control(Control::StayOpen));
        let by = Offer::Asked { more: false };
        harness.feed(Event::Offered { job: JobId(0), units: units(0..1), by });
        for _ in 0..3 {
            let granted = harness.lease();
            harness.finish(granted, Status::Passed);
        }
        harness.answer();
        assert_eq!(wanted(&harness.log), [(0, 2)], "its jobs may get more units");
        harness.feed(Event::Control(Control::Pause));
        let mode = if drain { Mode::Drain } else { Mode::Now };
        let actions = harness.feed(Event::Control(Control::Shutdown { mode }));
        if drain {
            assert_eq!(wanted(&actions), [(1, 2)]);
            let answered =
                Action::Answered(Answer::Done("the replays are run, then the run ends".to_owned()));
            assert!(actions.contains(&answered), "{actions:#?}");
            let unit = with_a_replay().unit(UnitId(1), &a_replay(STAGE), true, false);
            harness.feed(Event::Offered { job: JobId(1), units: vec![unit], by });
            assert_eq!(harness.pass_the_rest(), StopReason::Finished);
            assert_eq!(harness.done(1), Some((Status::Passed, None)));
        } else {
            assert_eq!(wanted(&actions), []);
            assert_eq!(harness.pass_the_rest(), StopReason::Interrupted, "its replay was not made");
        }
    }
}

#[test]
fn interrupt_during_replays_leaves_them_undone() {
    let mut harness = Harness::new(with_a_replay());
    for _ in 0..3 {
        let granted = harness.lease();
        harness.finish(granted, Status::Passed);
    }
    let replay = harness.lease();
    harness.feed(Event::Interrupt);
    harness.feed(Event::Interrupt);
    harness.gone(replay.worker);
    assert_eq!(harness.pass_the_rest(), StopReason::Interrupted);
    assert_eq!(harness.done(1), None);
}

/// The supervisor keeps rows about submitted units, so its charge grows.
#[test]
fn submitted_units_raise_the_supervisors_charge() {
    let mut harness = Harness::new(plan(1));
    let before = harness.core.run_view().charged;
    let reserved = harness.core.reserved_for_supervisor();
    harness.submit(0, 1);
    assert_eq!(harness.core.reserved_for_supervisor(), reserved + SUPERVISOR_PER_ITEM);
    assert_eq!(harness.core.run_view().charged, before + SUPERVISOR_PER_ITEM);
    let mut harness = Harness::new(plan(3));
    assert_eq!(harness.core.run_view().charged, before, "the initial figure includes the units of the plan");
    harness.feed(Event::Tick);
}

#[test]
fn verification_falls_back_to_a_smaller_way() {
    let way = |mib, batch| StageSpec { reserved: Bytes::mib(mib), batch, ..STAGE };
    let mut spec = plan(1);
    spec.candidates[0].verify = vec![way(5000, Some(Bytes::mib(64))), way(100, None)];
    let mut harness = Harness::new(spec);
    let build = harness.lease();
    let actions = harness.finish(build, Status::Passed);
    let batch = actions.iter().find_map(|action| match action {
        Action::Start { batch, .. } => Some(*batch),
        _ => None,
    });
    assert_eq!(batch, Some(None), "{actions:#?}");
    let [row] = &harness.policies("shrink_batch")[..] else { panic!("{:#?}", harness.log) };
    assert!(row.reason.starts_with("smaller batches are run: "), "{row:?}");
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
}
