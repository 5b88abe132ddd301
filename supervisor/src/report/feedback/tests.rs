//! Tests that every status has feedback, that feedback stays within its limit, and that it has the figures that matter.

use opt_shared::capture::DType;
use opt_shared::outcome::{Built, Head, Profiled, ToleranceUsed, Verified};
use proptest::prelude::*;

use super::*;
use crate::snapshot;

fn mismatch_with(pattern: Pattern) -> Mismatch {
    Mismatch {
        output: "output[1]".to_owned(),
        dtype: DType::BFloat16,
        shape: vec![4, 33],
        index: vec![2, 32],
        expected: "1.25".to_owned(),
        actual: "NaN".to_owned(),
        absolute_error: f64::NAN,
        relative_error: f64::INFINITY,
        relative_l2: 0.25,
        elements: 132,
        failed: 4,
        actual_nan: 4,
        actual_inf: 0,
        expected_nan: 0,
        expected_inf: 0,
        expected_range: Some(["-1".to_owned(), "3".to_owned()]),
        actual_range: Some(["0".to_owned(), "2".to_owned()]),
        bad_indices: vec![vec![2, 32], vec![3, 1]],
        pattern,
        tolerance: ToleranceUsed { rtol: 0.02, atol: 0.001, rel_l2: 0.01 },
    }
}

fn failure(status: Status, detail: &str, mismatch: Option<Mismatch>) -> EntryFailure {
    EntryFailure {
        entry: "entry_000003".to_owned(),
        status,
        detail: detail.to_owned(),
        args: vec!["input: bfloat16[4, 33]".to_owned(), "eps: 1e-05".to_owned()],
        mismatch,
    }
}

fn verify(status: Status, detail: &str, failures: Vec<EntryFailure>, end: Option<RunnerEnd>) -> Report {
    let head = Head { failures, end, peak_owed: Some(Bytes::mib(300)), ..Head::failed(status, detail) };
    Report::new(head, Body::Verify(Verified { entries_run: 4, entries_passed: 3, ..Verified::default() }))
}

fn build(status: Status, log: &str) -> Report {
    let head = Head::failed(status, "the compiler ended with exit code 1");
    Report::new(head, Body::Build(Built { log_head: log.to_owned(), ..Built::default() }))
}

#[test]
fn feedback_of_every_status_begins_with_its_name() {
    for &status in Status::ALL {
        for report in [
            verify(status, "", vec![failure(status, "something", None)], None),
            verify(status, "what happened", vec![], None),
            build(status, "a.c:1: error: x"),
        ] {
            let text = feedback(Stage::Verify, &report);
            assert!(text.starts_with(status.name()), "{text}");
            assert!(text.lines().count() >= 2, "{status}: {text}");
            assert!(text.len() <= MAX_FEEDBACK, "{status}");
        }
        let text = feedback_without_report(Stage::Profile, status, "");
        assert!(text.starts_with(status.name()) && text.len() <= MAX_FEEDBACK, "{text}");
    }
}

#[test]
fn feedback_matches_its_snapshots() {
    let end = |signal: &str| RunnerEnd { signal: Some(signal.to_owned()), ..RunnerEnd::default() };
    let mut text = String::new();
    let mut show =
        |title: &str, feedback: &str| text.push_str(&format!("==== {title}\n{}\n\n", feedback.trim_end()));
    for &status in Status::ALL {
        show(status.name(), &feedback(Stage::Verify, &verify(status, "what happened", vec![], None)));
    }
    for pattern in [
        Pattern::All,
        Pattern::Tail { from: 128 },
        Pattern::FromRow { row: 3 },
        Pattern::StillPoisoned,
        Pattern::Scattered,
    ] {
        let found = failure(
            Status::IncorrectNumerical,
            "4 of 132 elements differ",
            Some(mismatch_with(pattern.clone())),
        );
        show(
            &format!("{pattern:?}"),
            &feedback(Stage::Verify, &verify(found.status, "", vec![found.clone()], None)),
        );
    }
    for signal in ["SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGSYS", "SIGKILL"] {
        let failures = vec![failure(Status::Crashed, "it ended inside the call", None)];
        show(signal, &feedback(Stage::Verify, &verify(Status::Crashed, "", failures, Some(end(signal)))));
    }
    show("a build", &feedback(Stage::Build, &build(Status::CompileError, "a.c:1: error: expected `;`")));
    snapshot::assert_snapshot(&snapshot::messages_folder(), &[("feedback", text)]);
}

#[test]
fn feedback_does_not_blame_the_candidate_for_faults_of_others() {
    for &status in Status::ALL {
        if !matches!(status.blame(), None | Some(opt_shared::outcome::Blame::Candidate)) {
            let text = feedback_without_report(Stage::Verify, status, "why");
            assert!(
                text.contains("not the candidate")
                    || text.contains("there is nothing to change")
                    || text.contains("so it has no verdict"),
                "{status}: {text}"
            );
        }
    }
    let report = Report::new(
        Head::failed(Status::Crashed, "the baseline crashed"),
        Body::Profile(Profiled { baseline_failed: true, ..Profiled::default() }),
    );
    assert!(feedback(Stage::Profile, &report).contains("The baseline failed"));
}

#[test]
fn failure_in_a_timed_call_may_come_from_new_inputs() {
    for (stage, status, told) in [
        (Stage::Profile, Status::Nondeterministic, true),
        (Stage::Profile, Status::OutOfBounds, true),
        (Stage::Profile, Status::TooFast, false),
        (Stage::Verify, Status::Nondeterministic, false),
    ] {
        let text = feedback_without_report(stage, status, "why");
        assert_eq!(text.contains("[job] constant"), told, "{stage} {status}: {text}");
    }
}

#[test]
fn mismatch_has_location_values_and_a_hint() {
    for (pattern, hint) in [
        (Pattern::All, "Every element is wrong"),
        (Pattern::Tail { from: 128 }, "before element 128 is right"),
        (Pattern::FromRow { row: 2 }, "rows before row 2 are right"),
        (Pattern::StillPoisoned, "never written"),
        (Pattern::Scattered, "scattered ([2, 32], [3, 1])"),
    ] {
        let status = Status::IncorrectNumerical;
        let failures = vec![failure(status, "output[1] differs", Some(mismatch_with(pattern)))];
        let text = feedback(Stage::Verify, &verify(status, "", failures, None));
        for wanted in [
            "entry_000003(input: bfloat16[4, 33], eps: 1e-05)",
            "output[1] bfloat16[4, 33] at [2, 32]: expected 1.25, got NaN",
            "4 of 132 elements fail",
            "rtol 0.020, atol 0.001",
            "NaN: 4 (expected 0)",
            "Range: 0 to 2, expected -1 to 3",
            "3 of 4 entries",
            hint,
        ] {
            assert!(text.contains(wanted), "`{wanted}` is not in:\n{text}");
        }
    }
}

#[test]
fn crash_has_signal_arguments_and_output() {
    let end = RunnerEnd {
        signal: Some("SIGSEGV".to_owned()),
        exit_code: None,
        stderr_tail: "loading weights\n\x1b[31mboom".to_owned(),
        stdout_tail: "tile 3".to_owned(),
        output_truncated: false,
        unknown_sender: false,
    };
    let failures = vec![failure(Status::Crashed, "died in call 1", None)];
    let text = feedback(Stage::Verify, &verify(Status::Crashed, "", failures, Some(end)));
    for wanted in [
        "SIGSEGV",
        "input: bfloat16[4, 33]",
        "not mapped",
        "error:\nloading weights\n",
        "output:\ntile 3",
        "died in call 1",
    ] {
        assert!(text.contains(wanted), "`{wanted}` is not in:\n{text}");
    }
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn feedback_has_the_end_of_a_long_output() {
    let end = RunnerEnd {
        exit_code: Some(1),
        stderr_tail: format!("{}the cause", "a line\n".repeat(280)),
        ..RunnerEnd::default()
    };
    let text = feedback(Stage::Verify, &verify(Status::Crashed, "", vec![], Some(end)));
    assert!(text.trim_end().ends_with("the cause") && text.contains("--- standard error:\n…"), "{text}");
}

#[test]
fn memory_limit_has_its_figures_and_compile_error_its_log() {
    let detail = "owed 300 MiB, 256 MiB allowed";
    let text = feedback(Stage::Verify, &verify(Status::HostMemoryLimit, detail, vec![], None));
    assert!(text.contains(detail) && text.contains("300 MiB") && text.contains("limits.memory"), "{text}");

    let log = format!("a.c:3:5: error: expected ';'\n{}", "note: more\n".repeat(1000));
    let text = feedback(Stage::Build, &build(Status::CompileError, &log));
    assert!(text.contains("a.c:3:5: error: expected ';'"), "{text}");
    assert!(text.len() <= MAX_FEEDBACK);
}

proptest! {
    #[test]
    fn feedback_never_exceeds_its_limit(
        which in 0..Status::ALL.len(),
        stranger in "(\\PC|\n){0,1500}",
        repeated in 1usize..5,
    ) {
        let status = Status::ALL[which];
        let long = stranger.repeat(repeated);
        let end = RunnerEnd { signal: Some(long.clone()), exit_code: None, stderr_tail: long.clone(), stdout_tail: long.clone(), output_truncated: true, unknown_sender: false };
        let mut failed = failure(status, &long, Some(mismatch_with(Pattern::Scattered)));
        failed.args = vec![long.clone(); 3];
        for report in [verify(status, &long, vec![failed], Some(end)), build(status, &long)] {
            prop_assert!(feedback(Stage::Verify, &report).len() <= MAX_FEEDBACK);
        }
    }
}

#[test]
fn feedback_names_entries_whose_results_could_be_remembered() {
    let of = |count: usize| {
        unvaried((0..count).map(|number| (format!("entry_{number}"), "it is sorted".to_owned())))
    };
    assert_eq!(of(0), None);
    assert_eq!(of(1).as_deref(), Some("A kernel could remember the results of entry_0: it is sorted."));
    let two = "A kernel could remember the results of entry_0 and 1 more entry: it is sorted.";
    assert_eq!(of(2).as_deref(), Some(two));
}

#[test]
fn feedback_of_a_failed_timed_call_says_that_inputs_can_be_new() {
    let of = |stage| {
        let report =
            Report::new(Head::failed(Status::Nondeterministic, "wrong"), Body::Profile(Profiled::default()));
        feedback(stage, &report).contains("new input values")
    };
    for stage in [Stage::Screen, Stage::Profile, Stage::Confirm] {
        assert!(of(stage), "{stage}");
    }
    assert!(!of(Stage::Verify));
}
