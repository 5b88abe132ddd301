//! The order of steps, and the steps that are left out.

use opt_shared::ids::{JobId, UnitId};
use opt_shared::outcome::{Blame, Report, Status};

use super::desk::{Desk, Plan, plan};
use crate::core::event::{Action, Stage, StopReason};
use crate::core::spec::Resumed;
use crate::core::testkit::reports;

fn job_done(desk: &Desk) -> Vec<bool> {
    desk.log
        .iter()
        .filter_map(|action| match action {
            Action::JobDone { baseline_failed, .. } => Some(*baseline_failed),
            _ => None,
        })
        .collect()
}

/// Runs the plan to its end. The named steps fail (`V1` is candidate 1's verification).
fn run(spec: Plan, failing: &[&str]) -> Desk {
    let mut desk = Desk::new(spec);
    loop {
        if desk.stopped().is_some() {
            return desk;
        }
        // Answers until a lease is granted or the run is over.
        let before = desk.orders();
        for _ in 0..12 {
            if desk.stopped().is_some() || desk.orders() != before {
                break;
            }
            desk.answer();
        }
        if desk.stopped().is_some() {
            return desk;
        }
        let given = desk.lease();
        let last = desk.orders();
        let last = last.rsplit(' ').next().unwrap_or_default();
        let name = last.split(['/', '#']).next().unwrap_or_default();
        let status = if failing.contains(&name) { Status::Crashed } else { Status::Passed };
        desk.finish(given, status);
    }
}

#[test]
fn stages_run_in_order_with_the_baseline_first() {
    let mut spec = plan(3);
    spec.jobs[0].baseline = Some(UnitId(1));
    let desk = run(spec, &[]);
    assert_eq!(desk.orders(), "B1 B0 B2 V1 V0 V2 P1 P0/1 P2/1");
    assert_eq!(desk.stopped(), Some(StopReason::Finished));
    assert_eq!(job_done(&desk), [false]);
    for candidate in 0..3 {
        assert_eq!(desk.done(candidate), Some((Status::Passed, None)));
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
        let desk = run(plan(3), failing);
        assert_eq!(desk.orders(), orders, "{failing:?}");
        assert_eq!(desk.stopped(), Some(StopReason::Finished));
        for candidate in 0..3 {
            let failed = failing.iter().any(|name| name[1..] == candidate.to_string());
            let expected =
                if failed { (Status::Crashed, Some(Blame::Candidate)) } else { (Status::Passed, None) };
            assert_eq!(desk.done(candidate), Some(expected), "{failing:?}");
        }
        let baseline = failing.iter().any(|name| name.ends_with('0'));
        assert_eq!(job_done(&desk), [baseline], "{failing:?}");
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
        let desk = run(spec, &[]);
        assert_eq!(desk.orders(), orders);
        assert_eq!(desk.done(1), Some((Status::Passed, None)));
        assert_eq!(job_done(&desk), [false], "a baseline that finished all its steps has not failed");
    }
}

#[test]
fn candidates_without_a_baseline_are_timed_alone() {
    let mut spec = plan(2);
    spec.jobs[0].baseline = None;
    let desk = run(spec, &[]);
    assert_eq!(desk.orders(), "B0 B1 V0 V1 P0 P1");
    assert_eq!(job_done(&desk), [false]);
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
        let mut desk = Desk::new(spec);
        let build = desk.lease();
        desk.finish(build, Status::Passed);
        let verify = desk.lease();
        let Report { head, .. } = reports::report(Stage::Verify, Status::Unsupported);
        desk.report(verify, Report::new(head, reports::verified(entries_passed)));
        assert_eq!(desk.pass_the_rest(), StopReason::Finished);
        assert_eq!(desk.done(0), Some(expected));
    }
    // An entry that was supported in the verification must be supported in the profile.
    let mut spec = plan(1);
    spec.candidates[0].partial = true;
    let mut desk = Desk::new(spec);
    for status in [Status::Passed, Status::Passed, Status::Unsupported] {
        let given = desk.lease();
        desk.finish(given, status);
    }
    assert_eq!(desk.done(0), Some((Status::Unsupported, Some(Blame::Candidate))));
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
    let desk = run(spec, &[]);
    assert_eq!(desk.done(0), Some((Status::CaptureError, Some(Blame::Capture))));
    assert_eq!(desk.orders(), "B1 B2 V1 V2 P1 P2/1");
    assert_eq!(job_done(&desk), [true, false]);
}

#[test]
fn units_finished_by_an_earlier_run_are_kept() {
    let mut spec = plan(4);
    let done = |status, verified| Some(Resumed { status, verified, speedup: None });
    spec.candidates[0].resumed = done(Status::Passed, true);
    spec.candidates[1].resumed = done(Status::Crashed, false);
    spec.candidates[2].resumed = done(Status::Skipped, false);
    let desk = run(spec, &[]);
    assert_eq!(desk.orders(), "B3 V3 P3/0");
    assert_eq!(desk.done(0), None, "an earlier run ended it");
    // In a resumed run, too, candidates are not timed beside a baseline that does not support all entries.
    let mut spec = plan(2);
    spec.candidates[0].resumed = done(Status::Unsupported, true);
    let desk = run(spec, &[]);
    assert_eq!(desk.orders(), "B1 V1 P1");
    // No step is left to do.
    let mut spec = plan(1);
    spec.candidates[0].resumed = done(Status::Passed, true);
    let desk = run(spec, &[]);
    let [Action::Wanted { .. }, Action::Replied(_), Action::JobDone { .. }, Action::Stop { .. }] =
        &desk.log[..]
    else {
        panic!("{:?}", desk.log)
    };
}
