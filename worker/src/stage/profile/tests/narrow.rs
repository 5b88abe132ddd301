//! Tests candidates that are wrong for new values of some inputs.

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

/// A candidate that is wrong for new values of the weight.
const WRONG: Kernel =
    |shown, output| if has_new_weight(shown) { add(output, 1.0, |_| true) } else { dense(shown, output) };

/// Returns a task with `count` entries that have the same captured values.
fn entries(count: usize) -> ProfileTask {
    let mut task = varying(LINEAR, &vec![2; count]);
    for (number, entry) in task.entries.iter_mut().enumerate() {
        entry.name = format!("call_{number}");
    }
    task
}

/// A baseline whose outputs change only with the weight.
fn of_weight(shown: &Shown<'_>, output: &mut [u8]) -> i32 {
    if has_new_weight(shown) { dense(shown, output) } else { 0 }
}

#[test]
fn inputs_whose_new_values_a_candidate_gets_wrong_keep_their_values() {
    let refuses: Kernel = |shown, output| if has_new_weight(shown) { 4 } else { dense(shown, output) };
    let unless_alone: Kernel = |shown, output| {
        if shown.inputs.len() == 3 { add(output, 1.0, |_| true) } else { dense(shown, output) }
    };
    let knows: Kernel = |shown, output| if has_new_weight(shown) { add(output, 1.0, |_| true) } else { 0 };
    let constant: Kernel = |_, output| add(output, 1.0, |_| true);
    for (name, candidate, baseline, expected) in [
        ("right", dense as Kernel, dense as Kernel, Ok((vec!["input", "weight", "bias"], None))),
        ("wrong", WRONG, dense, Ok((vec!["input", "bias"], Some("wrong for new values of `weight` (")))),
        ("refuses", refuses, dense, Ok((vec!["input", "bias"], Some("wrong for new values of `weight` (")))),
        // The largest inputs are tried first.
        (
            "unless alone",
            unless_alone,
            dense,
            Ok((vec!["input", "weight"], Some("wrong for new values of `bias` ("))),
        ),
        ("constant", constant, dense, Err(Status::Nondeterministic)),
        // The outputs do not depend on the other inputs, so a candidate that knows the outputs in advance would pass.
        ("of the weight", knows, of_weight, Err(Status::Nondeterministic)),
    ] {
        let backend = with_baseline(computing(candidate), computing(baseline));
        let report = profile(&backend, &varying(LINEAR, &[2]));
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
    let report = profile(&backend, &varying(LINEAR, &[2]));
    assert_eq!(report.head.status, Status::Nondeterministic, "{}", report.head.detail);
    assert_eq!(report.head.failures.len(), 1);
    // The sessions are: a trial, one session of each side, a fresh one of the baseline, and two that compare first
    // calls.
    assert_eq!(backend.count(|it| matches!(it, Asked::Start(..))), 6);
}

#[test]
fn all_entries_of_a_batch_are_narrowed_together() {
    let backend = with_baseline(computing(WRONG), computing(dense));
    let report = profile(&backend, &entries(2));
    assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
    let found: Vec<(&[String], bool)> =
        report.body.entries.iter().map(|it| (it.varied.as_slice(), it.narrowed)).collect();
    let names = ["input".to_owned(), "bias".to_owned()];
    assert_eq!(found, [(&names[..], true), (&names[..], true)]);
    // The sessions are: a trial, one session of each side, and a fresh one of the baseline. Then come, for each entry,
    // one session of each side for all inputs and for each of three choices, and one of the baseline. Finally there is
    // one of each side.
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

/// Returns the number of sessions that were started.
fn started(backend: &ScriptedBackend) -> usize {
    backend.count(|it| matches!(it, Asked::Start(..)))
}

/// Returns a script whose timed calls return an error code.
fn failing() -> Script {
    Script {
        kernel: dense,
        ..Script::timed(&[BlockPlay { play: |_| Play::code(9), ..BlockPlay::honest(CALL) }])
    }
}

#[test]
fn failures_that_new_values_do_not_explain_keep_their_verdict() {
    let right = || computing(dense);
    let early = BlockPlay { changed: Some(0), ..BlockPlay::honest(CALL) };
    let early = Script { kernel: dense, ..Script::timed(&[early]) };
    let dead = Script {
        kernel: dense,
        ..Script::timed(&[BlockPlay { play: |_| Play::Dies, ..BlockPlay::honest(CALL) }])
    };
    for (name, scripts, paired, lost_after, status, sessions) in [
        (
            "without a baseline",
            vec![("fast", right()), ("fast", failing())],
            false,
            99,
            Status::RuntimeError,
            2,
        ),
        (
            "of the baseline",
            vec![("naive", right()), ("naive", failing()), ("fast", right())],
            true,
            99,
            Status::RuntimeError,
            3,
        ),
        (
            "work after the block",
            vec![("naive", right()), ("fast", early)],
            true,
            99,
            Status::DeferredWork,
            3,
        ),
        // The sessions are: a trial, one session of each side, and a fresh one of the baseline. Then come both sides
        // for all inputs, and for three choices.
        (
            "lost at once",
            vec![("naive", right()), ("fast", computing(WRONG))],
            true,
            4,
            Status::Nondeterministic,
            4,
        ),
        (
            "lost after all inputs",
            vec![("naive", right()), ("fast", computing(WRONG))],
            true,
            6,
            Status::Nondeterministic,
            6,
        ),
        (
            "lost after the choices",
            vec![("naive", right()), ("fast", computing(WRONG))],
            true,
            12,
            Status::Nondeterministic,
            12,
        ),
        (
            "the baseline dies with all inputs",
            vec![
                ("naive", right()),
                ("naive", right()),
                ("naive", right()),
                ("naive", dead.clone()),
                ("fast", computing(WRONG)),
            ],
            true,
            99,
            Status::Nondeterministic,
            5,
        ),
        (
            "the baseline dies with a choice",
            [vec![("naive", right()); 4], vec![("naive", dead), ("fast", computing(WRONG))]].concat(),
            true,
            99,
            Status::Nondeterministic,
            7,
        ),
        // The candidate is right for every choice, so in the end the choice contains all inputs.
        (
            "right later",
            [vec![("naive", right())], vec![("fast", computing(WRONG)); 2], vec![("fast", right())]].concat(),
            true,
            99,
            Status::Nondeterministic,
            12,
        ),
    ] {
        let mut task = varying(LINEAR, &[2]);
        task.baseline = task.baseline.filter(|_| paired);
        let mut backend = ScriptedBackend::playing_each(&scripts);
        backend.lost_after = lost_after;
        let report = profile(&backend, &task);
        assert_eq!(
            (report.head.status, report.head.failures.len()),
            (status, 1),
            "{name}: {}",
            report.head.detail
        );
        assert_eq!(started(&backend), sessions, "{name}: sessions");
        assert_eq!(backend.count(|it| *it == Asked::Finish), sessions, "{name}: all sessions are ended");
    }
}

#[test]
fn entry_is_narrowed_once() {
    // The candidate is wrong for new values of the weight when it is timed, and in four comparisons. Afterwards, it
    // fails for another reason.
    let scripts =
        [vec![("naive", computing(dense))], vec![("fast", computing(WRONG)); 5], vec![("fast", failing())]];
    let backend = ScriptedBackend::playing_each(&scripts.concat());
    let report = profile(&backend, &varying(LINEAR, &[2]));
    assert_eq!(
        (report.head.status, report.head.failures.len()),
        (Status::RuntimeError, 1),
        "{}",
        report.head.detail
    );
    assert_eq!(started(&backend), 1 + 2 + 1 + 9 + 2);
}

#[test]
fn entry_that_cannot_be_narrowed_does_not_keep_later_ones_from_it() {
    let backend = with_baseline(computing(WRONG), computing(dense));
    let mut task = entries(3);
    task.entries[1].repeated = vec!["weight".to_owned(), "bias".to_owned()];
    let report = profile(&backend, &task);
    assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
    let found: Vec<(usize, bool)> =
        report.body.entries.iter().map(|it| (it.varied.len(), it.narrowed)).collect();
    assert_eq!(found, [(2, true), (1, false), (2, true)]);
    // The number is the same as for two entries, because the entry with a single varying input needs no sessions.
    assert_eq!(started(&backend), 1 + 2 + 1 + 2 * 9 + 2);
}

#[test]
fn no_entry_is_narrowed_if_the_failed_one_cannot_be() {
    // In the first entry, only the bias gets new values, and the candidate is wrong for them.
    let wrong: Kernel = |shown, output| match shown.inputs {
        [(2, _)] => add(output, 1.0, |_| true),
        _ => WRONG(shown, output),
    };
    let backend = with_baseline(computing(wrong), computing(dense));
    let mut task = entries(2);
    task.entries[0].repeated = vec!["input".to_owned(), "weight".to_owned()];
    let report = profile(&backend, &task);
    assert_eq!(report.head.status, Status::Nondeterministic, "{}", report.head.detail);
    assert_eq!(report.head.failures[0].entry, "call_0");
    assert_eq!(started(&backend), 1 + 2 + 1);
}

#[test]
fn figures_of_entries_that_are_done_are_kept_and_those_of_others_begin_again() {
    // The times of the second entry's candidate differ from runner to runner, so it needs more runners than the first.
    // In the fourth runner, the candidate turns out to be wrong. A runner makes three slow calls for each entry.
    let noisy = |ms: u64| {
        let slow = BlockPlay::honest(Duration::from_millis(ms));
        let blocks = [vec![BlockPlay::honest(CALL); 3], vec![slow; 3]].concat();
        ("fast", Script { kernel: dense, ..Script::timed(&blocks) })
    };
    let scripts =
        vec![noisy(120), noisy(150), noisy(190), ("fast", computing(WRONG)), ("naive", computing(dense))];
    let backend = ScriptedBackend::playing_each(&scripts);
    let mut task = entries(2);
    task.depth = Depth::Full;
    task.profile.entry_timeout = Duration::from_secs(60);
    let report = profile(&backend, &task);
    assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
    let found: Vec<(bool, u32, usize)> =
        report.body.entries.iter().map(|it| (it.narrowed, it.runners, it.times.samples as usize)).collect();
    assert_eq!(found, [(false, 3, 6), (true, 3, 6)]);
}

#[test]
fn peak_memory_and_cut_output_of_the_failed_runner_are_reported() {
    let noisy = Script {
        peak_owed: Bytes::mib(64),
        end: RunnerEnd { output_truncated: true, ..RunnerEnd::default() },
        ..computing(WRONG)
    };
    let backend = ScriptedBackend::playing_each(&[
        ("naive", computing(dense)),
        ("fast", noisy),
        ("fast", computing(WRONG)),
    ]);
    let report = profile(&backend, &varying(LINEAR, &[2]));
    assert_eq!((report.head.status, report.body.entries[0].narrowed), (Status::Passed, true));
    assert_eq!((report.head.peak_owed, report.head.output_truncated), (Some(Bytes::mib(64)), true));
}
