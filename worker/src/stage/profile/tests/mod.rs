//! Tests profiles with scripted sessions: every answer of a candidate and of its baseline, and the resulting times.

mod blocks;
mod decisions;
mod figures;
mod idle;
mod narrow;
mod screen;
mod trial;
mod varied;

use std::time::Duration;

use opt_shared::message::Depth;
use opt_shared::outcome::{RunnerEnd, Status};
use opt_shared::settings::{
    CacheState, InputMemory, Parity, Priority, ProfileEntries, ProfileSettings, Protocol, Vary,
};
use opt_shared::units::Bytes;

use super::*;
use crate::session::Called;
use crate::session::scripted::{
    Asked, BlockPlay, Play, Script, ScriptedBackend, callee, done, entries_of, verify_settings,
};

const RELU: &str = "torch_nn_functional_relu";
const US: Duration = Duration::from_micros(1);

pub(super) fn task(numbers: &[u32], paired: bool) -> ProfileTask {
    let (entries, signature) = entries_of(RELU, numbers);
    ProfileTask {
        callee: callee("fast", signature.clone()),
        baseline: paired.then(|| callee("naive", signature)),
        entries,
        verify: verify_settings(),
        profile: ProfileSettings {
            protocol: Protocol::Paired,
            entries: ProfileEntries::Distinct,
            parity: Parity::None,
            batch_bytes: Bytes::gib(1),
            cache_state: CacheState::Auto,
            inputs: InputMemory::Mapped,
            max_noise: 0.01,
            entry_timeout: Duration::from_secs(10),
            budget: Duration::from_secs(300),
            min_improvement: 0.02,
            vary: Vary::Auto,
            priority: Priority::None,
        },
        depth: Depth::Full,
        device_cap: Bytes::ZERO,
        constant: Vec::new(),
        drop_cache: false,
        seed: [7; 32],
    }
}

/// Returns a candidate whose runners all play this script.
fn alone(script: Script) -> ScriptedBackend {
    ScriptedBackend::playing_each(&[("fast", script)])
}

/// Returns a candidate and a baseline whose runners all play these scripts.
fn with_baseline(candidate: Script, baseline: Script) -> ScriptedBackend {
    ScriptedBackend::playing_each(&[("fast", candidate), ("naive", baseline)])
}

struct Report {
    head: Head,
    body: Profiled,
}

fn profile(backend: &ScriptedBackend, task: &ProfileTask) -> Report {
    profile_after(&mut Decisions::default(), backend, task)
}

/// Profiles in a worker that may already have decided, in earlier tasks, which inputs vary.
fn profile_after(decisions: &mut Decisions, backend: &ScriptedBackend, task: &ProfileTask) -> Report {
    let mut head = Head::passed();
    let body = run(backend, &|_, _, _| {}, task, &mut head, decisions).expect("the worker returned no error");
    assert!(backend.is_over(), "a session was not started: {:?}", backend.asked.borrow());
    assert_eq!(backend.count(|it| matches!(it, Asked::MakeAhead(_))), 0, "this would disturb the times");
    Report { head, body }
}

/// Returns the error of a worker whose candidate plays this script.
fn worker_error(script: Script) -> SessionError {
    run(&alone(script), &|_, _, _| {}, &task(&[0], false), &mut Head::passed(), &mut Decisions::default())
        .expect_err("the worker returns an error")
}

fn honest(per_call: Duration) -> Script {
    Script::timed(&[BlockPlay::honest(per_call)])
}

/// Returns a script whose calls take no time after the warm-up.
fn instant(handoff: Duration) -> Script {
    let mut blocks = vec![BlockPlay::honest(20_000 * US); 3];
    blocks.push(BlockPlay::honest(Duration::ZERO));
    Script { handoff, ..Script::timed(&blocks) }
}

fn playing(play: fn(u32) -> Play) -> Script {
    Script::timed(&[BlockPlay { play, ..BlockPlay::honest(100 * US) }])
}

#[test]
fn profile_times_a_candidate_beside_its_baseline() {
    let backend = with_baseline(honest(100 * US), honest(250 * US));
    let report = profile(&backend, &task(&[0], true));
    assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
    let [entry] = report.body.entries.as_slice() else { panic!("one entry: {:?}", report.body.entries) };
    let speedup = entry.speedup.expect("paired");
    assert!((speedup.value - 2.5).abs() < 1e-6, "{speedup:?}");
    assert!((entry.times.median_time_ms - 0.1).abs() < 1e-6, "{:?}", entry.times);
    assert!((entry.baseline_times.expect("a baseline").median_time_ms - 0.25).abs() < 1e-6);
    assert!(entry.converged && entry.noise < 0.01);
    assert_eq!(
        (entry.times.samples, entry.runners),
        (30, 3),
        "as many pairs and runners as are needed, and no more"
    );
    assert_eq!((entry.weight, entry.entry.as_str()), (3, "entry_000000"));
    assert_eq!(entry.calls_per_block, 5, "a block fills half a millisecond, for both sides");
    assert_eq!((entry.plan_ms, entry.discarded_blocks), (None, 0));
    assert!((entry.handoff_us - 1.0).abs() < 1e-9);
    assert_eq!(report.body.cpus, [7]);
    assert!(!report.body.baseline_failed);
}

#[test]
fn profile_without_a_baseline_has_times_and_no_ratio() {
    let backend = alone(honest(3000 * US));
    let report = profile(&backend, &task(&[0], false));
    let entry = &report.body.entries[0];
    assert_eq!((entry.speedup, entry.baseline_times), (None, None));
    assert_eq!(entry.calls_per_block, 1);
    let rate = entry.footprint.as_f64() / 3e-3;
    assert!((entry.bytes_per_second - rate).abs() < rate * 1e-6);
}

#[test]
fn profile_maps_every_failure_of_a_timed_candidate_to_a_status() {
    let refused = Answer::Done(Loaded::Refused { text: "undefined symbol: run".to_owned() });
    let table: [(&str, Script, Status, &str); 10] = [
        ("refused", Script { load: refused, ..honest(US) }, Status::LoadError, "undefined symbol: run"),
        (
            "dies while loading",
            Script { load: Answer::Died, ..honest(US) },
            Status::Crashed,
            "ended by SIGSEGV",
        ),
        ("dies in a block", playing(|_| Play::Dies), Status::Crashed, "ended by SIGSEGV"),
        (
            "dies in an idle round",
            Script { idle: vec![None], ..honest(100 * US) },
            Status::Crashed,
            "ended by SIGSEGV",
        ),
        (
            "a code",
            playing(|_| Play::code(9)),
            Status::RuntimeError,
            "a timed call returned 9 (0 means done)",
        ),
        (
            "does not support a verified entry",
            playing(|_| Play::code(-2)),
            Status::RuntimeError,
            "a timed call returned -2",
        ),
        (
            "returns a value",
            playing(|_| Play::Claims(Called { returned_value: true, ..done(1) })),
            Status::RuntimeError,
            "returned through `ret`",
        ),
        (
            "makes half of the calls",
            playing(|call| if call < 1 { Play::Right } else { Play::Claims(done(0)) }),
            Status::RuntimeError,
            "calls of a block were made",
        ),
        (
            "wrong in every call",
            playing(|_| Play::WrongFrom(0)),
            Status::Nondeterministic,
            "verified, then wrong in timed call",
        ),
        (
            "writes nothing",
            playing(|_| Play::UnwrittenFrom(0)),
            Status::Nondeterministic,
            "verified, then wrong in timed call",
        ),
    ];
    for (name, script, status, detail) in table {
        let crashed = status == Status::Crashed;
        let backend = alone(script);
        let report = profile(&backend, &task(&[0], false));
        assert_eq!(report.head.status, status, "{name}: {}", report.head.detail);
        assert!(report.head.detail.contains(detail), "{name}: {}", report.head.detail);
        assert_eq!(report.head.failures.len(), 1, "{name}");
        assert_eq!(report.head.end.is_some(), crashed, "{name}: how it died is kept");
        assert!(report.body.entries.is_empty() && !report.body.baseline_failed, "{name}");
        assert_eq!(backend.count(|it| *it == Asked::Finish), 1, "{name}");
    }
}

#[test]
fn profile_keeps_what_a_candidate_printed_before_it_failed() {
    let mut wrong = playing(|_| Play::WrongFrom(0));
    wrong.end.stderr_tail = "tile is 0".to_owned();
    let report = profile(&alone(wrong), &task(&[0], false));
    assert_eq!(report.head.status, Status::Nondeterministic);
    let printed = RunnerEnd { stderr_tail: "tile is 0".to_owned(), ..RunnerEnd::default() };
    assert_eq!(report.head.end, Some(printed), "the worker has ended it, so its signal says nothing");
}

#[test]
fn profile_names_the_side_that_failed() {
    for (side, scripts) in [
        (CANDIDATE, [playing(|_| Play::Dies), honest(100 * US)]),
        (BASELINE, [honest(100 * US), playing(|_| Play::Dies)]),
    ] {
        let noisy =
            RunnerEnd { output_truncated: true, signal: Some("SIGFPE".to_owned()), ..RunnerEnd::default() };
        let [candidate, mut baseline] = scripts;
        baseline.end = noisy;
        let backend = with_baseline(candidate, baseline);
        let report = profile(&backend, &task(&[0], true));
        assert_eq!(report.head.status, Status::Crashed);
        assert_eq!(report.body.baseline_failed, side == BASELINE);
        let signal = report.head.end.expect("kept").signal;
        assert_eq!(signal.as_deref(), Some(if side == BASELINE { "SIGFPE" } else { "SIGSEGV" }));
        assert!(!report.head.output_truncated, "a baseline's output does not count as the candidate's");
        let started = backend.count(|it| matches!(it, Asked::Start(..)));
        assert_eq!(backend.count(|it| *it == Asked::Finish), started, "all sessions are ended");
        assert_eq!(started, 2);
    }
}

#[test]
fn profile_starts_no_baseline_for_a_candidate_that_does_not_load() {
    let backend = alone(Script { load: Answer::Died, ..honest(US) });
    let report = profile(&backend, &task(&[0], true));
    assert_eq!((report.head.status, report.body.baseline_failed), (Status::Crashed, false));
    let refused = Answer::Done(Loaded::Refused { text: "gone".to_owned() });
    let backend = with_baseline(honest(US), Script { load: refused, ..honest(US) });
    let report = profile(&backend, &task(&[0], true));
    assert_eq!((report.head.status, report.body.baseline_failed), (Status::LoadError, true));
}

#[test]
fn profile_times_the_plan_call_separately() {
    let plan = Called { ..done(1) };
    let planned = |plan| Script {
        load: Answer::Done(Loaded::Ready { has_plan: true, returned: false }),
        plan,
        handoff: 2 * US,
        ..honest(100 * US)
    };
    let backend = alone(planned(Answer::Done(plan.clone())));
    let report = profile(&backend, &task(&[0], false));
    // A scripted block takes as long as its call, plus a hand-off of 2 us.
    let plan_ms = report.body.entries[0].plan_ms.expect("timed");
    assert!((plan_ms - 0.102).abs() < 1e-9, "{plan_ms}");
    let refused = planned(Answer::Done(Called { result: 4, ..plan }));
    let report = profile(&alone(refused), &task(&[0], false));
    assert_eq!(report.head.detail, "entry_000000: the plan call returned 4 (0 means done)");
    let report = profile(&alone(planned(Answer::Died)), &task(&[0], false));
    assert_eq!(report.head.status, Status::Crashed);
}

#[test]
fn profile_leaves_out_preempted_pairs_unless_only_the_candidate_is_preempted() {
    let clean = BlockPlay::honest(100 * US);
    let waiting = BlockPlay { waited: 50_000 * US, per_call: 400 * US, ..clean.clone() };
    let mixed = |every: usize| {
        let blocks: Vec<BlockPlay> =
            (0..4000).map(|at| if at % every == 0 { waiting.clone() } else { clean.clone() }).collect();
        Script::timed(&blocks)
    };
    // Both sides waited because the machine was busy. These pairs are not used.
    let report = profile(&with_baseline(mixed(3), mixed(4)), &task(&[0], true));
    let entry = &report.body.entries[0];
    assert!(entry.times.max_time_ms < 0.11, "{:?}", entry.times);
    assert!(0 < entry.discarded_blocks);
    assert!(0.3 < entry.wait_share.expect("known"), "{:?}", entry.wait_share);
    // Only the candidate waited. These pairs are used, so it gains nothing by waiting when it is slow.
    let report = profile(&with_baseline(mixed(2), honest(100 * US)), &task(&[0], true));
    let entry = &report.body.entries[0];
    assert!(0.3 < entry.times.max_time_ms, "{:?}", entry.times);
    // If the candidate has several threads, waiting proves nothing, because threads can wait for each other.
    let threads = BlockPlay { threads: 4, ..waiting.clone() };
    let report = profile(&alone(Script::timed(&[threads])), &task(&[0], false));
    assert_eq!(report.body.entries[0].times.samples, 30, "no pair is taken again");
}

#[test]
fn profile_makes_equal_numbers_of_calls_and_revises_them() {
    // The first calls are so slow that every block would have a single call.
    let mut blocks = vec![BlockPlay::honest(1000 * US); 8];
    blocks.push(BlockPlay::honest(10 * US));
    let backend = ScriptedBackend::playing_each(&[
        ("fast", Script::timed(&blocks)),
        ("fast", honest(10 * US)),
        ("naive", honest(400 * US)),
    ]);
    let report = profile(&backend, &task(&[0], true));
    let entry = &report.body.entries[0];
    assert_eq!(entry.calls_per_block, 24, "as many as the ring holds");
    assert!((entry.speedup.expect("paired").value - 40.0).abs() < 0.1, "{:?}", entry.speedup);
}

#[test]
fn profile_waits_in_the_same_way_for_both_sides() {
    for (candidate, baseline, spin) in [(true, true, true), (false, true, false), (true, false, false)] {
        let script = |leaves_room| Script { leaves_room, ..honest(100 * US) };
        let backend = with_baseline(script(candidate), script(baseline));
        profile(&backend, &task(&[0], true));
        assert_eq!(backend.count(|it| matches!(it, Asked::Spin(other) if *other != spin)), 0);
        // There are three pairs of runners with two sides each.
        assert_eq!(backend.count(|it| *it == Asked::Spin(spin)), 6);
    }
}

#[test]
fn profile_ends_an_entry_that_never_settles() {
    let runner = |noise: u32| ("fast", honest((100 + (noise * 7919) % 97) * US));
    let runners: Vec<_> = (0..12).map(runner).collect();
    let mut task = task(&[0], false);
    task.profile.max_noise = 0.0;
    let report = profile(&ScriptedBackend::playing_each(&runners), &task);
    let entry = &report.body.entries[0];
    assert_eq!((report.head.status, entry.converged, entry.runners), (Status::Passed, false, 12));
    assert!(0.05 < entry.noise, "runners that differ make a wide interval: {}", entry.noise);
    task.profile.entry_timeout = Duration::ZERO;
    let report = profile(&ScriptedBackend::playing_each(&runners[..3]), &task);
    let entry = &report.body.entries[0];
    assert_eq!(
        (entry.runners, entry.times.samples),
        (3, 15),
        "three runners and five pairs of each, whatever the limit"
    );
}

#[test]
fn profile_takes_fewer_pairs_of_slow_calls() {
    let report = profile(&alone(honest(120_000 * US)), &task(&[0], false));
    let entry = &report.body.entries[0];
    assert_eq!((entry.times.samples, entry.converged, entry.calls_per_block), (6, true, 1));
}

#[test]
fn profile_detects_work_after_done() {
    let early = BlockPlay { changed: Some(0), ..BlockPlay::honest(100 * US) };
    for (side, scripts) in [
        (CANDIDATE, (Script::timed(std::slice::from_ref(&early)), honest(100 * US))),
        (BASELINE, (honest(100 * US), Script::timed(std::slice::from_ref(&early)))),
    ] {
        let report = profile(&with_baseline(scripts.0, scripts.1), &task(&[0], true));
        assert_eq!(report.head.status, Status::DeferredWork, "{}", report.head.detail);
        assert!(
            report.head.detail.contains("changed after the block was reported as done"),
            "{}",
            report.head.detail
        );
        assert_eq!(report.body.baseline_failed, side == BASELINE);
    }
}

#[test]
fn profile_rejects_impossible_times() {
    let long = BlockPlay { claim: 1.5, ..BlockPlay::honest(1000 * US) };
    let report = profile(&alone(Script::timed(&[long])), &task(&[0], false));
    assert_eq!(report.head.status, Status::TimingMismatch, "{}", report.head.detail);
    assert!(report.head.detail.contains("the runner's own clock shows"), "{}", report.head.detail);
    // A busy machine explains a claim below the worker's time, or slightly above it.
    for claim in [0.5, 1.05] {
        let play = BlockPlay { claim, ..BlockPlay::honest(1000 * US) };
        let report = profile(&alone(Script::timed(&[play])), &task(&[0], false));
        assert_eq!(report.head.status, Status::Passed, "{claim}: {}", report.head.detail);
    }
    let report = profile(&alone(instant(Duration::ZERO)), &task(&[0], false));
    assert_eq!(report.head.status, Status::TooFast, "{}", report.head.detail);
    // If the hand-off is as long as the whole block, the time proves nothing.
    let error = worker_error(instant(40 * US));
    assert!(matches!(error, SessionError::NoTime { .. }), "{error}");
}

#[test]
fn profile_subtracts_the_shorter_hand_off_from_both_sides() {
    // The candidate slows down its empty blocks. Its calls take as long as the baseline's.
    let delaying = Script { handoff: 90 * US, ..honest(1000 * US) };
    let report = profile(&with_baseline(delaying, honest(1000 * US)), &task(&[0], true));
    let entry = &report.body.entries[0];
    assert!((entry.handoff_us - 1.0).abs() < 1e-6, "{}", entry.handoff_us);
    assert!(entry.speedup.expect("paired").value < 1.0, "its delay is not subtracted");
}

#[test]
fn profile_subtracts_the_hand_off_of_the_idle_rounds_among_its_blocks() {
    // Blocks take 21 us longer than their calls. Before the first call, empty blocks took only 1 us.
    let script = |per_call: Duration, idle_us: &[u32]| Script {
        handoff: 21 * US,
        measured_first: Some(US),
        idle_handoffs: idle_us.iter().map(|&us| us * US).collect(),
        ..honest(per_call)
    };
    let profiled = |candidate: &Script, baseline: &Script| {
        let report = profile(&with_baseline(candidate.clone(), baseline.clone()), &task(&[0], true));
        let entry = &report.body.entries[0];
        (entry.handoff_us, entry.speedup.expect("paired"))
    };
    let (handoff_us, speedup) = profiled(&script(300 * US, &[21]), &script(600 * US, &[30]));
    assert!((handoff_us - 21.0).abs() < 1e-9, "{handoff_us}");
    for it in [speedup.value, speedup.ci_low, speedup.ci_high] {
        assert!((it - 2.0).abs() < 1e-6, "{speedup:?}");
    }

    // The rounds took longer than a block, so the hand-off that was measured before the blocks is used.
    let long = Script { slots: 1, ..script(5 * US, &[99]) };
    let (handoff_us, speedup) = profiled(&long, &long);
    assert!((handoff_us - 1.0).abs() < 1e-9, "{handoff_us}");
    assert!((speedup.value - 1.0).abs() < 1e-6, "{speedup:?}");
}

#[test]
fn profile_follows_kernelforges_protocol() {
    let mut task = task(&[0], true);
    task.profile.protocol = Protocol::Kernelforge;
    let report = profile(&with_baseline(honest(100 * US), honest(200 * US)), &task);
    let entry = &report.body.entries[0];
    assert_eq!(
        (entry.times.samples, entry.converged),
        (3, false),
        "a mean of a hundred calls of each runner"
    );
    assert!((entry.speedup.expect("paired").value - 2.0).abs() < 1e-6);
    // Without the warm-up, there are 100 calls in each of three runners of two sides.
    assert!(600 <= entry.slots_checked, "all calls are checked: {}", entry.slots_checked);
    assert!((entry.times.mean_time_ms - 0.1).abs() < 1e-6);
    assert_eq!(entry.calls_per_block, 24, "as many of the hundred as the ring holds");
    let report = profile(&with_baseline(playing(|_| Play::Dies), honest(US)), &task);
    assert_eq!(report.head.status, Status::Crashed);
}

#[test]
fn profile_times_one_batch_after_another_and_stops_at_the_first_failure() {
    let mut task = task(&[0, 1, 2], false);
    task.profile.batch_bytes = Bytes::new(1);
    let reported = std::cell::RefCell::new(Vec::new());
    let progress = |done, total, _| reported.borrow_mut().push((done, total));
    let first = ("fast", Script { peak_owed: Bytes::mib(4), ..honest(100 * US) });
    let failing = ("fast", Script { peak_owed: Bytes::mib(8), ..playing(|_| Play::code(1)) });
    let backend = ScriptedBackend::playing_each(&[first.clone(), first.clone(), first, failing]);
    let mut head = Head::passed();
    let body = run(&backend, &progress, &task, &mut head, &mut Decisions::default()).expect("no error");
    assert_eq!((head.status, body.entries.len()), (Status::RuntimeError, 1));
    assert_eq!(head.peak_owed, Some(Bytes::mib(8)));
    assert_eq!(*reported.borrow(), [(1, 3)]);
    assert_eq!(backend.count(|it| matches!(it, Asked::GiveBack(1))), 2);
    assert_eq!(body.reads.page_by_page, 1, "the groups' report on reads");
    assert!(head.detail.starts_with("entry_000001: "), "{}", head.detail);
}

#[test]
fn profile_reports_every_entry_of_a_batch() {
    let backend = alone(honest(100 * US));
    let report = profile(&backend, &task(&[0, 1], false));
    let names: Vec<&str> = report.body.entries.iter().map(|entry| entry.entry.as_str()).collect();
    assert_eq!(names, ["entry_000000", "entry_000001"]);
}

#[test]
fn profile_blames_a_capture_that_cannot_be_opened() {
    let mut backend = ScriptedBackend::playing(&[]);
    backend.broken = vec![1];
    let report = profile(&backend, &task(&[0, 1], false));
    assert_eq!(report.head.status, Status::CaptureError);
    assert_eq!(report.head.failures[0].entry, "entry_000001");
}

#[test]
fn profile_lets_only_a_first_call_take_long() {
    let of = |calls_us: &[u32]| {
        let blocks: Vec<BlockPlay> = calls_us.iter().map(|&us| BlockPlay::honest(US * us)).collect();
        Script::timed(&blocks)
    };
    let mut task = task(&[0], true);
    task.verify.call_timeout = Duration::from_secs(60);
    // Each process compiles in its first call.
    let report = profile(&with_baseline(of(&[8_000_000, 100]), honest(200 * US)), &task);
    assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
    // A candidate that slows down later would take time away from all other candidates.
    let report = profile(&with_baseline(of(&[100, 100, 100, 8_000_000]), honest(200 * US)), &task);
    assert_ne!(report.head.status, Status::Passed);
}
