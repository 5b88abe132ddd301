//! Tests of the order of steps, and of the steps that are left out.

use opt_shared::ids::{JobId, UnitId};
use opt_shared::outcome::{Blame, Report, Status};

use super::harness::{Harness, Plan, plan};
use crate::core::event::{Action, Stage, StopReason};
use crate::core::spec::Resumed;
use crate::core::testkit::reports;

fn job_done(harness: &Harness) -> Vec<bool> {
    harness
        .log
        .iter()
        .filter_map(|action| match action {
            Action::JobDone { baseline_failed, .. } => Some(*baseline_failed),
            _ => None,
        })
        .collect()
}

/// Runs the plan to its end. The named steps fail (`V1` is candidate 1's verification).
fn run(spec: Plan, failing: &[&str]) -> Harness {
    let mut harness = Harness::new(spec);
    loop {
        if harness.stopped().is_some() {
            return harness;
        }
        let before = harness.orders();
        for _ in 0..12 {
            if harness.stopped().is_some() || harness.orders() != before {
                break;
            }
            harness.answer();
        }
        if harness.stopped().is_some() {
            return harness;
        }
        let granted = harness.lease();
        let last = harness.orders();
        let last = last.rsplit(' ').next().unwrap_or_default();
        let name = last.split(['/', '#']).next().unwrap_or_default();
        let status = if failing.contains(&name) { Status::Crashed } else { Status::Passed };
        harness.finish(granted, status);
    }
}

#[test]
fn stages_run_in_order_with_the_baseline_first() {
    let mut spec = plan(3);
    spec.jobs[0].baseline = Some(UnitId(1));
    let harness = run(spec, &[]);
    assert_eq!(harness.orders(), "B1 B0 B2 V1 V0 V2 P1 P0/1 P2/1");
    assert_eq!(harness.stopped(), Some(StopReason::Finished));
    assert_eq!(job_done(&harness), [false]);
    for candidate in 0..3 {
        assert_eq!(harness.done(candidate), Some((Status::Passed, None)));
    }
}

#[test]
fn failed_stage_is_the_candidates_last() {
    for (failing, orders) in [
        (&["B1"][..], "B0 B1 B2 V0 V2 P0 P2/0"),
        (&["V1"], "B0 B1 B2 V0 V1 V2 P0 P2/0"),
        (&["P1"], "B0 B1 B2 V0 V1 V2 P0 P1/0 P2/0"),
        (&["B0"], "B0 B1 B2 V1 V2 P1 P2"),
        (&["V0"], "B0 B1 B2 V0 V1 V2 P1 P2"),
        // Candidates are not timed beside a baseline that failed its profile.
        (&["P0"], "B0 B1 B2 V0 V1 V2 P0 P1 P2"),
        (&["B0", "B1", "B2"], "B0 B1 B2"),
    ] {
        let harness = run(plan(3), failing);
        assert_eq!(harness.orders(), orders, "{failing:?}");
        assert_eq!(harness.stopped(), Some(StopReason::Finished));
        for candidate in 0..3 {
            let failed = failing.iter().any(|name| name[1..] == candidate.to_string());
            let expected =
                if failed { (Status::Crashed, Some(Blame::Candidate)) } else { (Status::Passed, None) };
            assert_eq!(harness.done(candidate), Some(expected), "{failing:?}");
        }
        let baseline = failing.iter().any(|name| name.ends_with('0'));
        assert_eq!(job_done(&harness), [baseline], "{failing:?}");
    }
}

#[test]
fn unwanted_stages_are_left_out() {
    type Change = fn(&mut Plan);
    let table: [(Change, &str); 4] = [
        (|spec| spec.profile = false, "B0 B1 V0 V1"),
        (|spec| (spec.verify, spec.profile) = (false, false), "B0 B1"),
        // Unverified candidates are not timed.
        (|spec| spec.verify = false, "B0 B1"),
        (|spec| spec.jobs[0].timed = false, "B0 B1 V0 V1"),
    ];
    for (change, orders) in table {
        let mut spec = plan(2);
        change(&mut spec);
        let harness = run(spec, &[]);
        assert_eq!(harness.orders(), orders);
        assert_eq!(harness.done(1), Some((Status::Passed, None)));
        assert_eq!(job_done(&harness), [false], "a baseline that finished all its steps has not failed");
    }
}

#[test]
fn candidates_without_a_baseline_are_timed_alone() {
    let mut spec = plan(2);
    spec.jobs[0].baseline = None;
    let harness = run(spec, &[]);
    assert_eq!(harness.orders(), "B0 B1 V0 V1 P0 P1");
    assert_eq!(job_done(&harness), [false]);
}

#[test]
fn only_partial_candidates_may_have_unsupported_entries() {
    for (partial, entries_passed, expected) in [
        (true, 1, (Status::Passed, None)),
        (true, 0, (Status::Unsupported, Some(Blame::Candidate))),
        (false, 1, (Status::Unsupported, Some(Blame::Candidate))),
    ] {
        let mut spec = plan(1);
        spec.candidates[0].partial = partial;
        let mut harness = Harness::new(spec);
        let build = harness.lease();
        harness.finish(build, Status::Passed);
        let verify = harness.lease();
        let Report { head, .. } = reports::report(Stage::Verify, Status::Unsupported);
        harness.report(verify, Report::new(head, reports::verified(entries_passed)));
        assert_eq!(harness.pass_the_rest(), StopReason::Finished);
        assert_eq!(harness.done(0), Some(expected));
    }
    let mut spec = plan(1);
    spec.candidates[0].partial = true;
    let mut harness = Harness::new(spec);
    for status in [Status::Passed, Status::Passed, Status::Unsupported] {
        let granted = harness.lease();
        harness.finish(granted, status);
    }
    assert_eq!(harness.done(0), Some((Status::Unsupported, Some(Blame::Candidate))));
}

#[test]
fn broken_job_runs_nothing_and_leaves_the_others_alone() {
    let mut spec = plan(3);
    let mut broken = spec.jobs[0].clone();
    broken.candidates = vec![UnitId(0)];
    broken.broken = Some("entry_000001.pt: not a zip".to_owned());
    spec.jobs[0].id = JobId(1);
    spec.jobs[0].baseline = Some(UnitId(1));
    spec.jobs[0].candidates = vec![UnitId(1), UnitId(2)];
    spec.jobs.insert(0, broken);
    let harness = run(spec, &[]);
    assert_eq!(harness.done(0), Some((Status::CaptureError, Some(Blame::Capture))));
    assert_eq!(harness.orders(), "B1 B2 V1 V2 P1 P2/1");
    assert_eq!(job_done(&harness), [true, false]);
}

#[test]
fn units_built_before_a_resume_are_not_built_again() {
    let mut spec = plan(3);
    spec.candidates[0].resumed = Some(Resumed::Built);
    spec.candidates[2].resumed = Some(Resumed::Built);
    let harness = run(spec, &[]);
    assert_eq!(harness.orders(), "B1 V0 V1 V2 P0 P1/0 P2/0");
    // If the build is the unit's only step, it is repeated, because the unit's end was not recorded.
    let mut spec = plan(1);
    (spec.verify, spec.profile) = (false, false);
    spec.candidates[0].resumed = Some(Resumed::Built);
    assert_eq!(run(spec, &[]).orders(), "B0");
    let mut spec = plan(1);
    spec.candidates[0].resumed = Some(Resumed::Built);
    spec.jobs[0].broken = Some("entry_000001.pt: not a zip".to_owned());
    let harness = run(spec, &[]);
    assert_eq!(harness.done(0), Some((Status::CaptureError, Some(Blame::Capture))));
}

#[test]
fn units_finished_before_a_resume_are_kept() {
    let mut spec = plan(4);
    let done =
        |status, verified| Some(Resumed::Ended { status, verified, speedup: None, failed_beside: false });
    spec.candidates[0].resumed = done(Status::Passed, true);
    spec.candidates[1].resumed = done(Status::Crashed, false);
    spec.candidates[2].resumed = done(Status::Skipped, false);
    let harness = run(spec, &[]);
    assert_eq!(harness.orders(), "B3 V3 P3/0");
    assert_eq!(harness.done(0), None, "an earlier part of the run ended it");
    let mut spec = plan(2);
    spec.candidates[0].resumed =
        Some(Resumed::Ended { status: Status::Passed, verified: true, speedup: None, failed_beside: true });
    let harness = run(spec, &[]);
    assert_eq!(harness.orders(), "B1 V1 P1", "the baseline failed beside another candidate");
    assert_eq!(job_done(&harness), [true]);
    let mut spec = plan(2);
    spec.candidates[0].resumed = done(Status::Unsupported, true);
    let harness = run(spec, &[]);
    assert_eq!(harness.orders(), "B1 V1 P1");
    // No step is left to do.
    let mut spec = plan(1);
    spec.candidates[0].resumed = done(Status::Passed, true);
    let harness = run(spec, &[]);
    let [Action::Wanted { .. }, Action::Replied(_), Action::JobDone { .. }, Action::Stop { .. }] =
        &harness.log[..]
    else {
        panic!("{:?}", harness.log)
    };
}
