//! Tests of candidates that are wrong for new values of some inputs.

use super::trial::{Kernel, LINEAR, add, dense, varying};
use super::*;
use crate::session::scripted::Shown;

const CALL: Duration = Duration::from_millis(120);

/// Returns true if the second input, the weight, has new values.
fn has_new_weight(shown: &Shown<'_>) -> bool {
    shown.inputs.iter().any(|(tensor, _)| *tensor == 1)
}

fn computing(kernel: Kernel) -> Script {
    Script { kernel, ..honest(CALL) }
}

/// A baseline whose outputs change only with the weight.
fn of_weight(shown: &Shown<'_>, output: &mut [u8]) -> i32 {
    if has_new_weight(shown) { dense(shown, output) } else { 0 }
}

#[test]
fn inputs_whose_new_values_a_candidate_gets_wrong_keep_their_values() {
    let wrong: Kernel =
        |shown, output| if has_new_weight(shown) { add(output, 1.0, |_| true) } else { dense(shown, output) };
    let refuses: Kernel = |shown, output| if has_new_weight(shown) { 4 } else { dense(shown, output) };
    let unless_alone: Kernel = |shown, output| {
        if shown.inputs.len() == 3 { add(output, 1.0, |_| true) } else { dense(shown, output) }
    };
    let knows: Kernel = |shown, output| if has_new_weight(shown) { add(output, 1.0, |_| true) } else { 0 };
    let constant: Kernel = |_, output| add(output, 1.0, |_| true);
    for (name, candidate, baseline, expected) in [
        ("right", dense as Kernel, dense as Kernel, Ok((vec!["input", "weight", "bias"], None))),
        ("wrong", wrong, dense, Ok((vec!["input", "bias"], Some("wrong for new values of `weight` (")))),
        ("refuses", refuses, dense, Ok((vec!["input", "bias"], Some("wrong for new values of `weight` (")))),
        // The largest inputs are tried first.
        (
            "unless alone",
            unless_alone,
            dense,
            Ok((vec!["input", "weight"], Some("wrong for new values of `bias` ("))),
        ),
        ("constant", constant, dense, Err(Status::Nondeterministic)),
        // The outputs do not depend on the other inputs, so a candidate that knows them would pass.
        ("of the weight", knows, of_weight, Err(Status::Nondeterministic)),
    ] {
        let backend = with_baseline(computing(candidate), computing(baseline));
        let report = profile(&backend, &varying(LINEAR, &[0]));
        let found = match &report.body.entries[..] {
            [entry] => Ok((entry.varied.clone(), entry.unvaried_because.clone())),
            _ => Err(report.head.status),
        };
        match (&found, &expected) {
            (Ok((varied, why)), Ok((names, part))) => {
                assert_eq!(varied, names, "{name}");
                assert_eq!(why.is_some(), part.is_some(), "{name}: {why:?}");
                let says = |part: &str| why.as_ref().is_some_and(|why| why.contains(part));
                assert!(part.is_none_or(says), "{name}: {why:?}");
                let head = &report.head;
                assert_eq!(
                    (head.status, head.failures.len()),
                    (Status::Passed, 0),
                    "{name}: {}",
                    head.detail
                );
            }
            _ => assert_eq!(found.as_ref().err(), expected.as_ref().err(), "{name}: {}", report.head.detail),
        }
        let (started, ended) = (
            backend.count(|it| matches!(it, Asked::Start(..))),
            backend.count(|it| matches!(it, Asked::Finish)),
        );
        assert_eq!(started, ended, "{name}: all sessions are ended");
    }
}

#[test]
fn candidate_that_remembers_earlier_calls_keeps_its_verdict() {
    // The first call of each process is right.
    let remembers = Script::timed(&[
        BlockPlay::honest(CALL),
        BlockPlay { play: |_| Play::Remembered, ..BlockPlay::honest(CALL) },
    ]);
    let backend = with_baseline(Script { kernel: dense, ..remembers }, computing(dense));
    let report = profile(&backend, &varying(LINEAR, &[0]));
    assert_eq!(report.head.status, Status::Nondeterministic, "{}", report.head.detail);
    assert_eq!(report.head.failures.len(), 1);
    // A trial, one session of each side, a fresh one of the baseline, and two that compare first calls.
    assert_eq!(backend.count(|it| matches!(it, Asked::Start(..))), 6);
}

#[test]
fn all_entries_of_a_batch_are_narrowed_together() {
    let wrong: Kernel =
        |shown, output| if has_new_weight(shown) { add(output, 1.0, |_| true) } else { dense(shown, output) };
    let backend = with_baseline(computing(wrong), computing(dense));
    let mut task = varying(LINEAR, &[0, 0]);
    for (number, entry) in task.entries.iter_mut().enumerate() {
        entry.name = format!("call_{number}");
    }
    let report = profile(&backend, &task);
    assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
    let found: Vec<(&[String], bool)> =
        report.body.entries.iter().map(|it| (it.varied.as_slice(), it.narrowed)).collect();
    let names = ["input".to_owned(), "bias".to_owned()];
    assert_eq!(found, [(&names[..], true), (&names[..], true)]);
    // A trial, one session of each side, a fresh one of the baseline; for each entry, one of each side for all inputs and
    // for three choices, and one of the baseline; then one of each side.
    assert_eq!(backend.count(|it| matches!(it, Asked::Start(..))), 1 + 2 + 1 + 2 * 9 + 2);
}

#[test]
fn single_inputs_are_not_narrowed() {
    let constant = || computing(|_, output| add(output, 1.0, |_| true));
    let backend = with_baseline(constant(), computing(dense));
    let report = profile(&backend, &varying(RELU, &[0]));
    assert_eq!(report.head.status, Status::Nondeterministic, "{}", report.head.detail);
    // A trial, one session of each side, and a fresh one of the baseline.
    assert_eq!(backend.count(|it| matches!(it, Asked::Start(..))), 4);
}
