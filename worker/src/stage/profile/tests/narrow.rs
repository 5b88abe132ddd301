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
    let constant: Kernel = |_, output| add(output, 1.0, |_| true);
    for (name, candidate, baseline, expected) in [
        ("right", dense as Kernel, dense as Kernel, Ok((vec!["input", "weight", "bias"], None))),
        ("wrong", wrong, dense, Ok((vec!["input", "bias"], Some("new values of `weight` differ")))),
        ("refuses", refuses, dense, Ok((vec!["input", "bias"], Some("new values of `weight` differ")))),
        // The largest inputs are tried first.
        ("unless alone", unless_alone, dense, Ok((vec!["weight", "input"], Some("of `bias` differ")))),
        ("constant", constant, dense, Err(Status::Nondeterministic)),
        // The outputs do not depend on the other inputs, so a candidate that knows them would pass.
        ("of the weight", wrong, of_weight, Err(Status::Nondeterministic)),
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
    // The last sessions compare the first calls, with new values of all inputs.
    let asked = backend.asked.borrow();
    let last = asked.iter().rev().find_map(|it| match it {
        Asked::Inputs(inputs) => Some(inputs.used.len()),
        _ => None,
    });
    assert_eq!(last, Some(3));
}

#[test]
fn candidate_without_a_baseline_and_single_inputs_are_not_narrowed() {
    let constant = || computing(|_, output| add(output, 1.0, |_| true));
    let backend = with_baseline(constant(), computing(dense));
    let report = profile(&backend, &varying(RELU, &[0]));
    assert_eq!(report.head.status, Status::Nondeterministic, "{}", report.head.detail);
    // A trial, one session of each side, and a fresh one of the baseline.
    assert_eq!(backend.count(|it| matches!(it, Asked::Start(..))), 4);
}
