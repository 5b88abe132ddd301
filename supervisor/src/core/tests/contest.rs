//! Tests which candidates are timed further, with speed-ups of screens, profiles and confirmations that each test
//! chooses.

use std::collections::BTreeMap;
use std::time::Duration;

use opt_shared::ids::UnitId;
use opt_shared::outcome::Status;
use proptest::prelude::*;

use super::harness::{Harness, plan};
use crate::core::event::{Action, Stage, StopReason};
use crate::core::testkit::reports;

/// A function that returns, for a step of a unit, its speed-up and the relative half-width of the interval, or the
/// status with which the step fails. The speed-up of the baseline, unit 0, is ignored.
type Figures<'a> = &'a dyn Fn(u32, Stage) -> Result<(f64, f64), Status>;

/// Runs a job with a baseline and other candidates to its end.
fn contest(candidates: u32, figures: Figures<'_>) -> Harness {
    let mut spec = plan(candidates);
    spec.jobs[0].contest = true;
    let mut harness = Harness::new(spec);
    while harness.stopped().is_none() {
        let Some(granted) = harness.try_lease() else {
            harness.answer();
            continue;
        };
        let (unit, stage) = (granted.order.unit.0, granted.order.stage);
        let report = match figures(unit, stage) {
            _ if !stage.is_timed() => reports::report(stage, Status::Passed),
            Err(status) => reports::report(stage, status),
            Ok(_) if unit == 0 => reports::report(stage, Status::Passed),
            Ok(figure) => reports::timed(stage, &[figure]),
        };
        harness.report(granted, report);
    }
    assert_eq!(harness.stopped(), Some(StopReason::Finished));
    harness
}

fn timed(harness: &Harness) -> String {
    let orders = harness.orders();
    orders.split(' ').filter(|order| !order.starts_with(['B', 'V'])).collect::<Vec<_>>().join(" ")
}

fn why(harness: &Harness, candidate: u32) -> &str {
    let done = harness.log.iter().find_map(|action| match action {
        Action::UnitDone { unit: UnitId(unit), detail, .. } if *unit == candidate => Some(detail),
        _ => None,
    });
    done.expect("the candidate has ended")
}

#[test]
fn clearly_slower_candidates_are_not_timed_after_their_screen() {
    let harness = contest(5, &|unit, _| Ok(([1.0, 0.9, 2.0, 1.1, 1.05][unit as usize], 0.1)));
    assert_eq!(timed(&harness), "P0 S1/0 S2/0 S3/0 S4/0 P2/0 C2/0");
    assert_eq!(
        why(&harness, 3),
        "timed briefly: it is at most 1.21 times as fast as the baseline, and the fastest kernel is at least 1.80 \
         times as fast"
    );
    for candidate in 0..5 {
        assert_eq!(harness.done(candidate), Some((Status::Passed, None)));
    }
}

#[test]
fn possible_winners_are_profiled_and_three_are_confirmed() {
    let harness = contest(6, &|unit, _| Ok((1.5 + f64::from(unit) / 100.0, 0.1)));
    assert_eq!(timed(&harness), "P0 S1/0 S2/0 S3/0 S4/0 S5/0 P5/0 P4/0 P3/0 P2/0 P1/0 C5/0 C4/0 C3/0");
    assert_eq!(why(&harness, 1), "", "it is not among the fastest");
}

#[test]
fn failed_leader_excludes_no_other_candidate() {
    // The first candidate cheats, and its profile detects the cheat.
    let cheat = |unit, stage| match (unit, stage) {
        (1, Stage::Screen) => Ok((50.0, 0.1)),
        (1, _) => Err(Status::Nondeterministic),
        (2, _) => Ok((1.5, 0.02)),
        _ => Ok((1.2, 0.02)),
    };
    let harness = contest(4, &cheat);
    assert_eq!(timed(&harness), "P0 S1/0 S2/0 S3/0 P1/0 P2/0 C2/0");
    // Here, only the confirmation detects the cheat.
    let late = |unit, stage| match (unit, stage) {
        (1, Stage::Confirm) => Err(Status::Nondeterministic),
        (1, _) => Ok((50.0, 0.1)),
        (2, _) => Ok((1.5, 0.02)),
        _ => Ok((1.2, 0.02)),
    };
    let harness = contest(4, &late);
    assert_eq!(timed(&harness), "P0 S1/0 S2/0 S3/0 P1/0 C1/0 P2/0 C2/0");
}

#[test]
fn next_candidate_is_confirmed_if_one_turns_out_slower() {
    let luck = |unit, stage| match (unit, stage) {
        (1, Stage::Confirm) => Ok((1.3, 0.1)),
        _ => Ok((2.0 - f64::from(unit) / 10.0, 0.3)),
    };
    assert_eq!(timed(&contest(5, &luck)), "P0 S1/0 S2/0 S3/0 S4/0 P1/0 P2/0 P3/0 P4/0 C1/0 C2/0 C3/0 C4/0");
}

#[test]
fn candidate_slower_than_the_baseline_is_not_confirmed() {
    let harness = contest(3, &|_, _| Ok((0.99, 0.05)));
    assert_eq!(timed(&harness), "P0 S1/0 S2/0 P1/0 P2/0");
    assert_eq!(why(&harness, 1), "");
    let harness = contest(2, &|_, _| Ok((0.9, 0.6)));
    assert_eq!(why(&harness, 1), "", "it is slower, and its interval is wide");
}

#[test]
fn candidate_with_a_very_wide_interval_is_not_confirmed() {
    let figures = |unit, _| Ok(if unit == 1 { (3.0, 0.6) } else { (2.0, 0.4) });
    let harness = contest(3, &figures);
    assert_eq!(timed(&harness), "P0 S1/0 S2/0 P1/0 P2/0 C2/0");
    assert_eq!(why(&harness, 1), "not confirmed: its speed-up is only known to lie between 1.20 and 4.80");
    // Such a candidate does not count among the fastest, so another candidate is confirmed.
    let figures = |unit, _| Ok(if unit <= 3 { (3.0, 0.6) } else { (2.0, 0.4) });
    assert!(timed(&contest(5, &figures)).ends_with(" C4/0"));
    // A confirmed candidate whose second interval is wide keeps its place.
    let figures =
        |unit, stage| Ok((3.0 - f64::from(unit) / 10.0, if stage == Stage::Confirm { 0.6 } else { 0.4 }));
    assert!(timed(&contest(5, &figures)).ends_with(" C1/0 C2/0 C3/0"));
}

#[test]
fn job_whose_baseline_failed_is_neither_screened_nor_confirmed() {
    let harness = contest(3, &|unit, _| if unit == 0 { Err(Status::Crashed) } else { Ok((2.0, 0.1)) });
    assert_eq!(timed(&harness), "P0 P1 P2");
    assert_eq!(harness.done(1), Some((Status::Passed, None)));
}

#[test]
fn lost_confirmation_keeps_the_first_times_and_a_lost_screen_is_left_out() {
    let harness = contest(2, &|_, stage| {
        if stage == Stage::Confirm { Err(Status::InfraError) } else { Ok((2.0, 0.01)) }
    });
    assert_eq!(harness.done(1), Some((Status::Passed, None)));
    assert!(why(&harness, 1).starts_with("not confirmed: "), "{}", why(&harness, 1));
    let harness = contest(2, &|_, stage| {
        if stage == Stage::Screen { Err(Status::InfraError) } else { Ok((2.0, 0.01)) }
    });
    assert!(timed(&harness).ends_with("P1/0 C1/0"), "{}", timed(&harness));
}

#[test]
fn remaining_candidates_share_the_remaining_budget() {
    let mut spec = plan(4);
    spec.jobs[0].budget = Duration::from_secs(40);
    let mut harness = Harness::new(spec);
    let mut shares = Vec::new();
    while harness.stopped().is_none() {
        let Some(granted) = harness.try_lease() else {
            harness.answer();
            continue;
        };
        if granted.order.stage == Stage::Profile {
            let share = harness.log.iter().rev().find_map(|action| match action {
                Action::Start { share, .. } => Some(*share),
                _ => None,
            });
            shares.push(share.expect("granted").as_millis());
            // The second candidate takes more than its share.
            harness.pass_time(Duration::from_secs(if shares.len() == 2 { 15 } else { 5 }));
        }
        harness.finish(granted, Status::Passed);
    }
    // The remaining budget is 40 s for four units, 35 s for three, 20 s for two and 15 s for the last, less the time
    // that passes in the test itself.
    let expected = [10_000, 11_666, 10_000, 15_000];
    for (share, expected) in shares.iter().zip(expected) {
        assert!(*share <= expected && expected < share + 100, "{shares:?}");
    }
    assert_eq!(shares.len(), expected.len());
}

proptest! {
    #[test]
    fn parked_candidate_is_slower_even_at_its_upper_bound(
        seed in prop::collection::vec((0.3_f64..3.0, 0.0_f64..0.3, 0_u8..10), 21),
    ) {
        let figures = |unit: u32, stage: Stage| {
            let at = match stage { Stage::Screen => 0, Stage::Profile => 7, _ => 14 };
            let (value, half, fate) = seed[at + unit as usize];
            if fate == 0 && unit != 0 { Err(Status::Crashed) } else { Ok((value, half)) }
        };
        let harness = contest(7, &figures);
        let orders = timed(&harness);
        let reached: BTreeMap<u32, Stage> = (1..7)
            .map(|unit| {
                let had = |letter: char| orders.split(' ').any(|order| order == format!("{letter}{unit}/0"));
                let last = if had('C') { Stage::Confirm } else if had('P') { Stage::Profile } else { Stage::Screen };
                (unit, last)
            })
            .collect();
        let passed = |unit: &u32| harness.done(*unit) == Some((Status::Passed, None));
        let figure = |unit: u32| figures(unit, reached[&unit]).expect("it passed");
        let highest_lower_bound = (1..7).filter(passed).map(&figure).map(|(value, half)| value * (1.0 - half));
        let highest_lower_bound = highest_lower_bound.fold(1.0, f64::max);
        for unit in (1..7).filter(passed) {
            let (value, half) = figure(unit);
            if reached[&unit] == Stage::Screen {
                prop_assert!(value * (1.0 + half) < highest_lower_bound, "{unit} was left out: {orders}");
            }
        }
        // The best candidate is confirmed, if it was profiled and is faster than the baseline.
        let best = (1..7).filter(passed).max_by(|one, other| figure(*one).0.total_cmp(&figure(*other).0));
        if let Some(best) = best.filter(|&best| 1.0 < figure(best).0 && reached[&best] != Stage::Screen) {
            prop_assert_eq!(reached[&best], Stage::Confirm, "{} {}", best, orders);
        }
    }
}
