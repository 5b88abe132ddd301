//! Tests verification with scripted sessions: every answer of a candidate, alone and in combination.

mod device;
mod recorded;
mod together;

use opt_shared::outcome::{Pattern, RunnerEnd, Status};
use opt_shared::units::Bytes;

use super::*;
use crate::session::scripted::{
    Asked, Play, Script, ScriptedBackend, callee, done, entries_of, verify_settings,
};
use crate::session::{Called, StrayWrite};
use crate::stage::POISONS;

const RELU: &str = "torch_nn_functional_relu";

fn task(numbers: &[u32]) -> VerifyTask {
    let (entries, signature) = entries_of(RELU, numbers);
    VerifyTask {
        callee: callee("fast", signature),
        entries,
        verify: verify_settings(),
        drop_cache: false,
        shared_runner: Bytes::ZERO,
        device_cap: Bytes::ZERO,
    }
}

struct Report {
    head: Head,
    body: Verified,
}

fn verify(backend: &ScriptedBackend, task: &VerifyTask) -> Report {
    let mut head = Head::passed();
    let body = run(backend, &|_, _, _| {}, task, &mut head).expect("the worker returned no error");
    assert!(backend.is_over(), "a session was not started: {:?}", backend.asked.borrow());
    Report { head, body }
}

fn one_entry(script: Script) -> Report {
    verify(&ScriptedBackend::playing(&[script]), &task(&[0]))
}

/// The first entries are opened while the artifact is opened and a runner starts.
#[test]
fn verify_prepares_its_first_session_while_its_entries_are_opened() {
    let backend = ScriptedBackend::playing(&[Script::of(&[Play::Right]), Script::of(&[Play::Right])]);
    verify(&backend, &task(&[0, 1]));
    assert_eq!(backend.asked.borrow()[..2], [Asked::Groups(2), Asked::Prepare("fast".to_owned())]);
    assert_eq!(
        backend.count(|it| matches!(it, Asked::Prepare(_))),
        1,
        "no other session is prepared while a candidate runs"
    );
}

/// The answers to up to four calls of one entry, and the status that follows from them.
#[test]
fn verify_maps_every_failure_of_a_candidate_to_a_status() {
    let returned = Called { returned_value: true, ..done(1) };
    let raised = Called { result: 7, raised: Some("only float64".to_owned()), ..Called::default() };
    let table: [(&str, &[Play], Status, &str); 17] = [
        ("right twice", &[Play::Right], Status::Passed, ""),
        ("wrong twice", &[Play::WrongFrom(0)], Status::IncorrectNumerical, "elements differ"),
        ("wrong at the end, twice", &[Play::WrongFrom(1)], Status::IncorrectNumerical, "elements differ"),
        ("never written", &[Play::UnwrittenFrom(0)], Status::UnwrittenOutput, "were never written"),
        ("a tail never written", &[Play::UnwrittenFrom(1)], Status::UnwrittenOutput, "were never written"),
        (
            "wrong, then right",
            &[Play::WrongFrom(0), Play::Right],
            Status::Nondeterministic,
            "wrong in its first call, right in call 2",
        ),
        (
            "right, then wrong",
            &[Play::Right, Play::WrongFrom(0)],
            Status::Nondeterministic,
            "right at first, wrong in call 2",
        ),
        (
            "right, then unwritten, then right with any poison",
            &[Play::Right, Play::UnwrittenFrom(0), Play::Right, Play::Right],
            Status::Nondeterministic,
            "call 2 left `output` unwritten",
        ),
        (
            "right, then unwritten, then wrong",
            &[Play::Right, Play::UnwrittenFrom(0), Play::WrongFrom(0)],
            Status::Nondeterministic,
            "call 2 left `output` unwritten",
        ),
        // The kernel writes nothing, and the recorded value equals the first poison. Therefore, only calls with the
        // first poison look right.
        (
            "unwritten where the first poison is right",
            &[Play::Right, Play::UnwrittenFrom(0), Play::Right, Play::UnwrittenFrom(0)],
            Status::UnwrittenOutput,
            "were never written",
        ),
        (
            "unwritten, then wrong",
            &[Play::UnwrittenFrom(0), Play::WrongFrom(0)],
            Status::IncorrectNumerical,
            "elements differ",
        ),
        (
            "a code",
            &[Play::Claims(raised)],
            Status::RuntimeError,
            "the call returned 7 (0 means done): only float64",
        ),
        ("a value returned", &[Play::Claims(returned)], Status::RuntimeError, "returned through `ret`"),
        ("a call that was not made", &[Play::Claims(done(0))], Status::RuntimeError, "the call was not made"),
        ("dies at once", &[Play::Dies], Status::Crashed, "ended by SIGSEGV"),
        ("dies in its second call", &[Play::Right, Play::Dies], Status::Crashed, "ended by SIGSEGV"),
        (
            "writes past the end",
            &[Play::WritesBeside(StrayWrite { output: 0, past: 0 })],
            Status::OutOfBounds,
            "wrote past the end of `output` (at its end + 0)",
        ),
    ];
    for (name, calls, status, detail) in table {
        let report = one_entry(Script::of(calls));
        assert_eq!(report.head.status, status, "{name}: {}", report.head.detail);
        assert!(report.head.detail.contains(detail), "{name}: {}", report.head.detail);
        assert_eq!(report.body.entries_run, 1, "{name}");
        assert_eq!(report.body.entries_passed, u32::from(status == Status::Passed), "{name}");
        assert_eq!(report.head.failures.len(), usize::from(status != Status::Passed), "{name}");
        assert_eq!(report.head.end.is_some(), status == Status::Crashed, "{name}: how it died is kept");
        let mismatched =
            matches!(status, Status::IncorrectNumerical | Status::UnwrittenOutput | Status::Nondeterministic);
        assert_eq!(
            report.head.failures.first().is_some_and(|it| it.mismatch.is_some()),
            mismatched,
            "{name}"
        );
    }
}

/// Both repeated calls use the slot of the first call. One of them uses the poison of the first call, and the other a
/// different one.
#[test]
fn verify_repeats_the_first_call_before_an_output_counts_as_unwritten() {
    let plays = [Play::Right, Play::UnwrittenFrom(0), Play::Right, Play::UnwrittenFrom(0)];
    let backend = ScriptedBackend::playing(&[Script::of(&plays)]);
    verify(&backend, &task(&[0]));
    let asked = backend.asked.borrow();
    let calls: Vec<(u32, u8)> = asked
        .iter()
        .filter_map(|it| match it {
            Asked::Call(_, slot, poison) => Some((*slot, *poison)),
            _ => None,
        })
        .collect();
    assert_eq!(calls, [(0, POISONS[0]), (1, POISONS[1]), (0, POISONS[0]), (0, POISONS[2])]);
}

#[test]
fn verify_locates_writes_outside_an_output() {
    for (past, detail) in [
        (0, "wrote past the end of `output` (at its end + 0)"),
        (7, "wrote past the end of `output` (at its end + 7)"),
        (-1, "wrote before the start of `output` (at its start - 1)"),
        (-64, "wrote before the start of `output` (at its start - 64)"),
    ] {
        let report = one_entry(Script::of(&[Play::WritesBeside(StrayWrite { output: 0, past })]));
        assert_eq!(report.head.failures[0].detail, detail);
        assert_eq!(report.head.failures[0].status, Status::OutOfBounds);
    }
}

#[test]
fn verify_distinguishes_a_failed_load_from_a_death_while_loading() {
    let refused = Answer::Done(Loaded::Refused { text: "undefined symbol: run".to_owned() });
    let report = one_entry(Script { load: refused, ..Script::of(&[Play::Right]) });
    assert_eq!((report.head.status, report.head.end), (Status::LoadError, None));
    assert_eq!(report.head.detail, "entry_000000: undefined symbol: run");
    let died = Script {
        load: Answer::Died,
        death: (Status::LoadError, "exited with code 1 while it was being loaded"),
        end: RunnerEnd { exit_code: Some(1), ..RunnerEnd::default() },
        ..Script::of(&[Play::Right])
    };
    let report = one_entry(died);
    assert_eq!(report.head.status, Status::LoadError);
    assert_eq!(report.head.end.expect("kept").exit_code, Some(1));
}

/// If a runner is alive when its candidate fails, the worker ends it, so its signal says nothing about the failure.
#[test]
fn verify_keeps_what_a_candidate_printed_before_it_failed() {
    let printing = |play| {
        let end = RunnerEnd {
            signal: Some("SIGKILL".to_owned()),
            stderr_tail: "tile is 0".to_owned(),
            ..RunnerEnd::default()
        };
        Script { end, ..Script::of(&[play]) }
    };
    let printed = RunnerEnd { stderr_tail: "tile is 0".to_owned(), ..RunnerEnd::default() };
    assert_eq!(one_entry(printing(Play::WrongFrom(0))).head.end, Some(printed.clone()));
    assert_eq!(one_entry(printing(Play::Right)).head.end, None, "the candidate passed");
    let returned = Called { result: 7, ..Called::default() };
    let scripts = [printing(Play::Claims(returned))];
    assert_eq!(verify(&ScriptedBackend::playing(&scripts), &task(&[0])).head.end, Some(printed));
    assert_eq!(
        one_entry(Script { end: RunnerEnd::default(), ..Script::of(&[Play::WrongFrom(0)]) }).head.end,
        None
    );
}

#[test]
fn verify_calls_a_plan_first_and_blames_it() {
    let ready = Answer::Done(Loaded::Ready { has_plan: true, returned: false });
    let planned = |plan| Script { load: ready.clone(), plan, ..Script::of(&[Play::Right]) };
    let backend = ScriptedBackend::playing(&[planned(Answer::Done(done(1)))]);
    assert_eq!(verify(&backend, &task(&[0])).head.status, Status::Passed);
    let order: Vec<Asked> = backend.asked.borrow().iter().skip(4).take(3).cloned().collect();
    assert_eq!(order, [Asked::Plan(0), Asked::Call(0, 0, POISONS[0]), Asked::Call(0, 1, POISONS[1])]);
    assert_eq!(backend.count(|it| matches!(it, Asked::MakeAhead(_))), 1, "nothing is timed here");
    let report = one_entry(planned(Answer::Done(Called { result: 5, ..Called::default() })));
    assert_eq!(
        (report.head.status, report.head.detail.as_str()),
        (Status::RuntimeError, "entry_000000: the plan call returned 5 (0 means done)")
    );
    assert_eq!(
        one_entry(planned(Answer::Done(Called { result: -2, ..Called::default() }))).head.status,
        Status::Unsupported
    );
    assert_eq!(one_entry(planned(Answer::Died)).head.status, Status::Crashed);
}

#[test]
fn verify_alternates_poisons_and_slots() {
    let backend = ScriptedBackend::playing(&[Script::of(&[Play::Right])]);
    let mut task = task(&[0]);
    task.verify.repeats = 5;
    assert_eq!(verify(&backend, &task).head.status, Status::Passed);
    let calls: Vec<Asked> =
        backend.asked.borrow().iter().filter(|it| matches!(it, Asked::Call(..))).cloned().collect();
    let expected: Vec<Asked> = [(0, 0), (1, 1), (0, 2), (1, 3), (0, 0)]
        .map(|(slot, poison)| Asked::Call(0, slot, POISONS[poison]))
        .to_vec();
    assert_eq!(calls, expected);
    // Fewer than two calls cannot show what was written.
    task.verify.repeats = 0;
    let backend = ScriptedBackend::playing(&[Script::of(&[Play::Right])]);
    verify(&backend, &task);
    assert_eq!(backend.count(|it| matches!(it, Asked::Call(..))), 2);
}

#[test]
fn verify_reports_figures_of_every_entry() {
    let noisy = RunnerEnd { output_truncated: true, ..RunnerEnd::default() };
    let quiet = Script { end: RunnerEnd::default(), ..Script::of(&[Play::Right]) };
    let scripts = [
        Script { peak_owed: Bytes::mib(3), end: noisy, ..quiet.clone() },
        Script { peak_owed: Bytes::mib(9), ..quiet.clone() },
        Script { peak_owed: Bytes::mib(2), ..quiet },
    ];
    let task = task(&[0, 1, 2]);
    let progress_reports = std::cell::RefCell::new(Vec::new());
    let backend = ScriptedBackend::playing(&scripts);
    let progress = |entries, total, bytes| progress_reports.borrow_mut().push((entries, total, bytes));
    let mut head = Head::passed();
    let body = run(&backend, &progress, &task, &mut head).expect("the worker returned no error");
    let report = Report { head, body };
    assert_eq!(
        (report.head.status, report.body.entries_run, report.body.entries_passed),
        (Status::Passed, 3, 3)
    );
    assert_eq!((report.head.peak_owed, report.head.output_truncated), (Some(Bytes::mib(9)), true));
    let sizes: Vec<Bytes> = task.entries.iter().map(|entry| entry.numbers.file).collect();
    assert_eq!(report.body.bytes_validated, sizes.iter().copied().sum());
    let so_far = |count: usize| sizes.iter().take(count).copied().sum::<Bytes>();
    assert_eq!(*progress_reports.borrow(), [(1, 3, so_far(1)), (2, 3, so_far(2)), (3, 3, so_far(3))]);
    assert_eq!(report.body.reads.page_by_page, 1, "the groups' report on reads");
    assert_eq!(report.body.max_absolute_error, 0.0);
}

#[test]
fn verify_keeps_the_worst_error_of_all_entries() {
    let (all, few, right) =
        (Script::of(&[Play::WrongFrom(0)]), Script::of(&[Play::WrongFrom(3)]), Script::of(&[Play::Right]));
    // Uses the same entry each time, so that errors are comparable.
    for (order, expected) in [([all.clone(), right.clone(), few.clone()], 0), ([few, right, all], 2)] {
        let mut task = task(&[0, 0, 0]);
        for (number, entry) in task.entries.iter_mut().enumerate() {
            entry.name = format!("call_{number}");
        }
        let report = verify(&ScriptedBackend::playing(&order), &task);
        let worst = report.body.worst.expect("compared");
        assert_eq!((worst.entry, worst.output.as_str()), (format!("call_{expected}"), "output"));
        assert!(0.0 < worst.relative_l2 && 0.0 < report.body.max_absolute_error);
        assert!(0.0 < report.body.max_relative_error);
        assert_eq!(report.head.failures[expected / 2].mismatch.as_ref().expect("one").pattern, Pattern::All);
    }
}

#[test]
fn verify_keeps_the_worst_of_all_calls_of_an_entry() {
    let worst =
        |calls: &[Play]| one_entry(Script::of(calls)).body.worst.map_or(f64::NAN, |worst| worst.relative_l2);
    let all = worst(&[Play::WrongFrom(0)]);
    let few = worst(&[Play::WrongFrom(5)]);
    assert!(0.0 < few && few < all, "{few} {all}");
    for order in [[Play::WrongFrom(5), Play::WrongFrom(0)], [Play::WrongFrom(0), Play::WrongFrom(5)]] {
        assert_eq!(worst(&order), all);
    }
    assert_eq!(worst(&[Play::Right]), 0.0);
}

/// Copies a capture and changes a byte of its input.
fn damaged(task: &mut VerifyTask, folder: &tempfile::TempDir) {
    let entry = &mut task.entries[0];
    let mut bytes = std::fs::read(&entry.path).expect("a capture");
    let capture = opt_shared::capture::CaptureFile::open(&entry.path).expect("a capture");
    let at = usize::try_from(capture.storages()[0].file_offset).expect("small");
    bytes[at] ^= 0x40;
    entry.path = folder.path().join("entry_000000.pt");
    std::fs::write(&entry.path, bytes).expect("written");
}

#[test]
fn verify_blames_a_damaged_capture_for_failures_that_damage_can_cause() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut task = task(&[0]);
    damaged(&mut task, &folder);
    for (play, status, seen_as) in [
        (Play::WrongFrom(0), Status::CaptureError, Some("INCORRECT_NUMERICAL")),
        (Play::code(3), Status::CaptureError, Some("RUNTIME_ERROR")),
        (Play::Dies, Status::CaptureError, Some("CRASHED")),
        // A scatter kernel with wrong indices does this.
        (Play::UnwrittenFrom(0), Status::CaptureError, Some("UNWRITTEN_OUTPUT")),
        (Play::WritesBeside(StrayWrite { output: 0, past: 0 }), Status::CaptureError, Some("OUT_OF_BOUNDS")),
        (Play::code(crate::session::UNSUPPORTED), Status::Unsupported, None),
    ] {
        let report = verify(&ScriptedBackend::playing(&[Script::of(std::slice::from_ref(&play))]), &task);
        assert_eq!(report.head.status, status, "{play:?}: {}", report.head.detail);
        if let Some(seen_as) = seen_as {
            let expected = format!("(seen after the candidate ended as {seen_as})");
            assert!(report.head.detail.ends_with(&expected), "{}", report.head.detail);
            assert_eq!(report.head.failures[0].mismatch, None, "{play:?}");
            assert_eq!(report.head.failures[0].status, Status::CaptureError);
        }
    }
    // A damaged index can make a kernel read beyond an input and die.
    let death = (Status::OutOfBounds, "reached beyond the input `input`, in a call (address 0x10)");
    let report = verify(&ScriptedBackend::playing(&[Script { death, ..Script::of(&[Play::Dies]) }]), &task);
    assert_eq!(report.head.status, Status::CaptureError, "{}", report.head.detail);
    assert!(report.head.detail.ends_with("(seen after the candidate ended as OUT_OF_BOUNDS)"));
    let report = verify(&ScriptedBackend::playing(&[Script::of(&[Play::Right])]), &task);
    assert_eq!(report.head.status, Status::Passed, "right outputs are not checked for damage");
}

#[test]
fn verify_stops_after_enough_failures_and_keeps_three() {
    let wrong = Script::of(&[Play::WrongFrom(0)]);
    let crashed = Script {
        end: RunnerEnd { signal: Some("SIGBUS".to_owned()), ..RunnerEnd::default() },
        ..Script::of(&[Play::Dies])
    };
    let mut task = task(&[0, 1, 2, 3]);
    task.verify.stop_after = 2;
    let backend = ScriptedBackend::playing(&[crashed.clone(), wrong.clone()]);
    let report = verify(&backend, &task);
    assert_eq!(
        (report.head.status, report.body.entries_run, report.head.failures.len()),
        (Status::Crashed, 2, 2)
    );
    assert_eq!(report.head.end.expect("of the first failure").signal.as_deref(), Some("SIGBUS"));
    // With a limit of zero, all entries run. The report shows three failures.
    task.verify.stop_after = 0;
    let backend = ScriptedBackend::playing(&[wrong.clone(), wrong.clone(), crashed, wrong]);
    let report = verify(&backend, &task);
    assert_eq!(
        (report.head.status, report.body.entries_run, report.head.failures.len()),
        (Status::IncorrectNumerical, 4, 3)
    );
    assert_eq!(report.head.end, None, "the candidate survived the first failure");
}

#[test]
fn verify_is_unsupported_only_if_nothing_failed() {
    let unsupported = Script::of(&[Play::code(-2)]);
    let backend = ScriptedBackend::playing(&[unsupported.clone(), Script::of(&[Play::Right])]);
    let task = task(&[0, 1]);
    let report = verify(&backend, &task);
    assert_eq!(
        (report.head.status, report.body.entries_unsupported, report.body.entries_passed),
        (Status::Unsupported, 1, 1)
    );
    assert_eq!(report.body.unsupported, [task.entries[0].id]);
    assert!(report.head.detail.starts_with("1 of 2 entries are not supported"), "{}", report.head.detail);
    assert!(report.head.failures.is_empty());
    let backend = ScriptedBackend::playing(&[unsupported, Script::of(&[Play::WrongFrom(0)])]);
    let report = verify(&backend, &task);
    assert_eq!((report.head.status, report.body.entries_unsupported), (Status::IncorrectNumerical, 1));
}

#[test]
fn verify_blames_a_capture_that_cannot_be_opened_and_continues() {
    let mut backend = ScriptedBackend::playing(&[Script::of(&[Play::Right])]);
    backend.broken = vec![0];
    let report = verify(&backend, &task(&[0, 1]));
    assert_eq!(
        (report.head.status, report.body.entries_run, report.body.entries_passed),
        (Status::CaptureError, 2, 1)
    );
    assert_eq!(report.head.failures[0].entry, "entry_000000");
}

#[test]
fn verify_ends_at_an_error_of_the_worker() {
    let backend = ScriptedBackend::playing(&[Script::of(&[Play::Fails])]);
    let error = run(&backend, &|_, _, _| {}, &task(&[0]), &mut Head::passed()).expect_err("the worker fails");
    assert!(matches!(error, SessionError::Run { .. }), "{error:?}");
}
