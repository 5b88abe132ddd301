//! Tests replays with scripted sessions: every answer of a step's candidate, and the resulting report.

use opt_shared::message::{ReplayCall, ReplayCallee};
use opt_shared::outcome::RunnerEnd;
use rustix::io::Errno;

use super::*;
use crate::judge::BytesSource;
use crate::recorded::{Recorded, allocated_bytes};
use crate::session::scripted::{
    Asked, Play, Script, ScriptedBackend, callee, done as called, entries_of, verify_settings,
};
use crate::session::{Answer, Called, Loaded, StrayWrite};

fn task(folder: &tempfile::TempDir, numbers: &[u32]) -> ReplayTask {
    task_over("torch_nn_functional_linear", folder, numbers)
}

fn task_over(op: &str, folder: &tempfile::TempDir, numbers: &[u32]) -> ReplayTask {
    let (entries, signature) = entries_of(op, numbers);
    ReplayTask {
        name: "all".to_owned(),
        steps: entries.into_iter().map(|entry| ReplayCall { callee: 0, entry }).collect(),
        callees: vec![ReplayCallee {
            job: "linear".to_owned(),
            callee: callee("fast", signature),
            verify: verify_settings(),
        }],
        budget: Bytes::mib(1),
        device_cap: Bytes::ZERO,
        pin: Vec::new(),
        prefetch: 1,
        recording: folder.path().join("replay/all.rec"),
        drop_cache: false,
    }
}

struct Report {
    head: Head,
    result: Option<Box<ReplayResult>>,
    asked: Vec<Asked>,
}

fn replay(task: &ReplayTask, scripts: &[Script]) -> Report {
    let backend = ScriptedBackend::playing(scripts);
    let mut head = Head::passed();
    let progress_reports = std::cell::RefCell::new(Vec::new());
    let Replayed { result } =
        run(&backend, &|done, total, _| progress_reports.borrow_mut().push((done, total)), task, &mut head);
    if result.is_some() {
        let all = u32::try_from(task.steps.len()).expect("few");
        let steps = &progress_reports.borrow()[progress_reports.borrow().len() - task.steps.len()..];
        assert!(steps.iter().copied().eq((1..=all).map(|step| (step, all))), "{progress_reports:?}");
    }
    assert!(backend.is_over(), "a session was not started: {:?}", backend.asked.borrow());
    let asked = backend.asked.borrow().clone();
    assert!(!asked.iter().any(|it| matches!(it, Asked::MakeAhead(_))), "this would disturb the times");
    Report { head, result, asked }
}

/// Returns a script with one right call.
fn right() -> Script {
    Script { end: RunnerEnd::default(), ..Script::of(&[Play::Right]) }
}

#[test]
fn replay_calls_every_step_once_and_reports_its_figures() {
    let folder = tempfile::tempdir().expect("a folder");
    let task = task(&folder, &[0, 0, 1]);
    let scripts = [right(), Script { peak_owed: Bytes::mib(6), ..right() }, right()];
    let report = replay(&task, &scripts);
    assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
    assert_eq!(report.head.peak_owed, Some(Bytes::mib(6)));
    let result = report.result.expect("every step succeeded");
    assert_eq!((result.step_count, result.steps.len()), (3, 3));
    assert_eq!(result.steps[2].entry, "entry_000001");
    assert!(result.steps.iter().all(|step| (step.call_ms - 0.003).abs() < 1e-9), "{:?}", result.steps);
    // The second step uses the same constants as the first.
    assert!(0 < result.hits && result.unique_bytes <= result.bytes_moved);
    let calls: Vec<&Asked> = report.asked.iter().filter(|it| matches!(it, Asked::Call(..))).collect();
    assert_eq!(calls, [&Asked::Call(0, 0, 0xff); 3]);
    // A replay that uses the recording of the first replay gets the same digest for the same bytes.
    let again = replay(&task, &scripts);
    assert_eq!(again.result.expect("right again").outputs_digest, result.outputs_digest);
    let other = replay(&task_of(&folder, &task, &[1]), &[right()]);
    assert_ne!(other.result.expect("right").outputs_digest, result.outputs_digest);
}

/// Returns a task with a different schedule, and therefore with a different recording.
fn task_of(folder: &tempfile::TempDir, like: &ReplayTask, numbers: &[u32]) -> ReplayTask {
    ReplayTask {
        recording: folder.path().join("other.rec"),
        ..ReplayTask { steps: task(folder, numbers).steps, ..like.clone() }
    }
}

/// The output is larger than one read, and its size is not a multiple of the size of a read.
#[test]
fn replay_digests_all_of_a_large_output() {
    let folder = tempfile::tempdir().expect("a folder");
    let task = task_over("torch_nn_functional_conv2d", &folder, &[0]);
    let recorded =
        Recorded::open(&task.steps[0].entry, &task.callees[0].callee.signature).expect("a capture");
    let tensor = &recorded.outputs[0].tensor;
    let mut output = vec![0; usize::try_from(allocated_bytes(tensor)).expect("small")];
    recorded.expected(tensor).read_at(0, &mut output).expect("recorded");
    assert_ne!(output.len() / (64 << 10), 0);
    assert_ne!(output.len() % (64 << 10), 0);
    let result = replay(&task, &[right()]).result.expect("right");
    assert_eq!(result.outputs_digest, blake3::hash(&output).to_hex().to_string());
}

#[test]
fn replay_reports_a_limited_number_of_steps_and_counts_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let max = opt_shared::outcome::MAX_REPORTED_STEPS;
    let task = task(&folder, &vec![0; max + 1]);
    let result = replay(&task, &vec![right(); max + 1]).result.expect("every step succeeded");
    assert_eq!((result.steps.len(), result.step_count), (max, max as u64 + 1));
}

#[test]
fn replay_reports_truncated_output_of_any_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let task = task(&folder, &[0, 0]);
    let noisy = Script { end: RunnerEnd { output_truncated: true, ..RunnerEnd::default() }, ..right() };
    for (scripts, cut) in [([noisy, right()], true), ([right(), right()], false)] {
        assert_eq!(replay(&task, &scripts).head.output_truncated, cut);
    }
}

/// A capture is not to blame if it cannot be read for lack of descriptors or memory.
#[test]
fn replay_blames_the_host_for_missing_resources() {
    for (errno, status) in [(Errno::MFILE, Status::InfraError), (Errno::IO, Status::CaptureError)] {
        let source = std::io::Error::from_raw_os_error(errno.raw_os_error());
        let error = CapturesError::Read { name: "`weight` of entry_000000".to_owned(), source };
        let mut head = Head::passed();
        record_error(error.into(), &mut head);
        assert_eq!(head.status, status, "{}", head.detail);
        assert!(head.detail.starts_with("reading the tensor `weight` of entry_000000: "), "{}", head.detail);
    }
}

#[test]
fn replay_maps_every_failure_of_a_step_to_a_status() {
    let refused = Answer::Done(Loaded::Refused { text: "undefined symbol: run".to_owned() });
    let ready = Answer::Done(Loaded::Ready { has_plan: true, returned: false });
    let planned = |plan| Script { load: ready.clone(), plan, ..right() };
    let returned = Called { returned_value: true, ..called(1) };
    let table: [(&str, Script, Status, &str); 12] = [
        ("refused", Script { load: refused, ..right() }, Status::LoadError, "undefined symbol: run"),
        (
            "dies while loading",
            Script { load: Answer::Died, ..Script::of(&[Play::Right]) },
            Status::Crashed,
            "ended by SIGSEGV",
        ),
        ("dies", Script::of(&[Play::Dies]), Status::Crashed, "ended by SIGSEGV"),
        (
            "a plan that fails",
            planned(Answer::Done(Called { result: 3, ..Called::default() })),
            Status::RuntimeError,
            "the plan call returned 3",
        ),
        (
            "a plan that dies",
            Script { end: Script::of(&[]).end, ..planned(Answer::Died) },
            Status::Crashed,
            "ended by SIGSEGV",
        ),
        ("wrong", Script::of(&[Play::WrongFrom(0)]), Status::IncorrectNumerical, "elements differ"),
        (
            "never written",
            Script::of(&[Play::UnwrittenFrom(0)]),
            Status::IncorrectNumerical,
            "elements differ",
        ),
        ("not this entry", Script::of(&[Play::code(-2)]), Status::Unsupported, "does not support this entry"),
        ("a code", Script::of(&[Play::code(5)]), Status::RuntimeError, "the call returned 5 (0 means done)"),
        (
            "a value returned",
            Script::of(&[Play::Claims(returned)]),
            Status::RuntimeError,
            "returned through `ret`",
        ),
        (
            "a call that was not made",
            Script::of(&[Play::Claims(called(0))]),
            Status::RuntimeError,
            "the call was not made",
        ),
        (
            "writes beside",
            Script::of(&[Play::WritesBeside(StrayWrite { output: 0, past: -1 })]),
            Status::OutOfBounds,
            "wrote before the start of `output` (at its start - 1)",
        ),
    ];
    for (name, script, status, detail) in table {
        let folder = tempfile::tempdir().expect("a folder");
        let report = replay(&task(&folder, &[0, 1]), &[right(), script]);
        assert_eq!(report.head.status, status, "{name}: {}", report.head.detail);
        assert!(report.head.detail.starts_with("step 1, entry_000001: "), "{name}: {}", report.head.detail);
        assert!(report.head.detail.contains(detail), "{name}: {}", report.head.detail);
        assert!(report.result.is_none(), "{name}: an unfinished replay has no result");
        assert_eq!(report.head.failures.len(), 1, "{name}");
        assert_eq!(report.head.end.is_some(), status == Status::Crashed, "{name}");
        let finished = report.asked.iter().filter(|it| **it == Asked::Finish).count();
        assert_eq!(finished, 2, "{name}: both sessions are ended");
    }
}

#[test]
fn replay_prepares_the_session_of_every_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut task = task(&folder, &[0, 1]);
    let slow = ReplayCallee {
        callee: callee("slow", task.callees[0].callee.signature.clone()),
        ..task.callees[0].clone()
    };
    task.callees.push(slow);
    task.steps[1].callee = 1;
    let report = replay(&task, &[right(), right()]);
    let start = |candidate: &str, entry: &str| Asked::Start(candidate.to_owned(), vec![entry.to_owned()]);
    let (fast, slow) = ("fast".to_owned(), "slow".to_owned());
    let expected = [
        Asked::Prepare(fast.clone()),
        start(&fast, "entry_000000"),
        Asked::PrepareBeside(slow.clone()),
        Asked::Finish,
        Asked::Prepare(slow.clone()),
        start(&slow, "entry_000001"),
        Asked::Finish,
    ];
    let of_interest = |it: &&Asked| {
        matches!(it, Asked::Prepare(_) | Asked::PrepareBeside(_) | Asked::Start(..) | Asked::Finish)
    };
    assert!(report.asked.iter().filter(of_interest).eq(&expected), "{:?}", report.asked);
}

#[test]
fn replay_calls_a_plan_before_the_call() {
    let folder = tempfile::tempdir().expect("a folder");
    let planned = Script { load: Answer::Done(Loaded::Ready { has_plan: true, returned: false }), ..right() };
    let report = replay(&task(&folder, &[0]), &[planned]);
    assert_eq!(report.head.status, Status::Passed);
    assert_eq!(report.asked[2..4], [Asked::Plan(0), Asked::Call(0, 0, 0xff)]);
}

#[test]
fn replay_blames_the_worker_for_its_own_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = replay(&task(&folder, &[0]), &[Script::of(&[Play::Fails])]);
    assert_eq!(report.head.status, Status::InfraError);
    assert!(report.head.detail.contains("running scripted"), "{}", report.head.detail);
    assert!(report.head.failures.is_empty() && report.result.is_none());
}

#[test]
fn replay_refuses_a_budget_below_its_floor() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut task = task(&folder, &[0]);
    task.budget = Bytes::new(1);
    let report = replay(&task, &[]);
    assert_eq!(report.head.status, Status::DoesNotFit, "{}", report.head.detail);
    assert!(report.asked.is_empty(), "nothing was started");
}

#[test]
fn replay_blames_an_unreadable_capture_and_blames_the_host_for_an_unusable_recording() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut task = task(&folder, &[0]);
    task.steps[0].entry.path = folder.path().join("nowhere.pt");
    assert_eq!(replay(&task, &[]).head.status, Status::CaptureError);
    // The host is to blame for an unusable recording.
    let mut task = task_of(&folder, &self::task(&folder, &[0]), &[0]);
    task.recording = folder.path().join("torn.rec");
    std::fs::write(&task.recording, b"torn").expect("written");
    let report = replay(&task, &[]);
    assert_eq!(report.head.status, Status::InfraError);
    assert!(report.head.detail.contains("remove it"), "{}", report.head.detail);
}

#[test]
fn replay_reports_times_in_milliseconds() {
    assert_eq!(ms(Duration::from_micros(1_500)), 1.5);
}

#[test]
fn context_is_lost_if_no_session_can_start_or_if_the_pool_of_a_device_failed() {
    let folder = tempfile::tempdir().expect("a folder");
    for (lost_after, lost) in [(1, true), (2, false), (usize::MAX, false)] {
        let mut backend = ScriptedBackend::playing(&[right()]);
        backend.lost_after = lost_after;
        let mut head = Head::passed();
        run(&backend, &|_, _, _| {}, &task(&folder, &[0]), &mut head);
        assert_eq!(head.context_lost, lost, "{lost_after}");
    }
    for (can_start, pool_failed, is_device, lost) in [
        (true, false, false, false),
        (true, false, true, false),
        (true, true, false, false),
        (true, true, true, true),
        (false, false, true, true),
    ] {
        assert_eq!(is_context_lost(can_start, pool_failed, is_device), lost);
    }
}
