//! Tests profiles in which inputs get new values for every call, and candidates that return remembered results.

use super::*;
use crate::session::scripted::AskedInputs;
use opt_shared::capture::DType;
use opt_shared::settings::ToleranceOverride;

/// Returns a task with an entry whose input may vary.
fn varying(paired: bool) -> ProfileTask {
    let mut task = task(&[0], paired);
    task.entries[0].numbers.varied = Bytes::mib(9);
    task
}

#[test]
fn profile_varies_inputs_with_and_without_a_baseline() {
    // One runner makes the trial, and then three pairs of runners are timed.
    let report = profile(&with_baseline(honest(100 * US), honest(200 * US)), &varying(true));
    let entry = &report.body.entries[0];
    assert_eq!((report.head.status, entry.varied.as_slice()), (Status::Passed, &["input".to_owned()][..]));
    assert_eq!(entry.unvaried_because, None);
    assert_eq!(entry.calls_per_block, 5, "a block fills half a millisecond, for both sides");
    assert!((entry.speedup.expect("paired").value - 2.0).abs() < 1e-6);
    // Without a baseline, a fresh runner repeats some of the blocks.
    let backend = alone(honest(100 * US));
    let report = profile(&backend, &varying(false));
    assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
    assert_eq!(report.body.entries[0].varied, ["input"]);
    assert_eq!(backend.count(|it| matches!(it, Asked::Start(..))), 1 + 3 + 1);
}

#[test]
fn profile_from_cold_caches_has_blocks_of_one_call() {
    let mut task = varying(true);
    task.profile.cache_state = CacheState::Cold;
    let report = profile(&with_baseline(honest(100 * US), honest(200 * US)), &task);
    let entry = &report.body.entries[0];
    assert_eq!((report.head.status, entry.calls_per_block), (Status::Passed, 1), "{}", report.head.detail);
    assert_eq!(entry.cache_state, opt_shared::outcome::CacheStateReached::Cold);
}

#[test]
fn profile_does_not_vary_inputs_that_a_rule_keeps() {
    for (change, why) in [
        (
            Box::new(|task: &mut ProfileTask| task.constant = vec!["input".to_owned()])
                as Box<dyn Fn(&mut ProfileTask)>,
            "`input`: the plan says that it is constant",
        ),
        (
            Box::new(|task: &mut ProfileTask| task.entries[0].repeated = vec!["input".to_owned()]),
            "`input`: other entries have the same values",
        ),
        (Box::new(|task: &mut ProfileTask| task.profile.vary = Vary::None), "the plan says vary = \"none\""),
        (
            Box::new(|task: &mut ProfileTask| task.profile.vary = Vary::Only(vec!["weight".to_owned()])),
            "`input`: the plan's `vary` does not name it",
        ),
    ] {
        let mut task = varying(true);
        change(&mut task);
        let report = profile(&with_baseline(honest(100 * US), honest(200 * US)), &task);
        let entry = &report.body.entries[0];
        assert_eq!((entry.varied.as_slice(), entry.unvaried_because.as_deref()), (&[][..], Some(why)));
    }
}

#[test]
fn profile_keeps_inputs_if_the_baseline_fails_with_new_ones() {
    let once = |play| Script::timed(&[BlockPlay { play, ..BlockPlay::honest(100 * US) }]);
    for (play, why) in [
        (once(|_| Play::code(3)), "the kernel that tries other values refuses them"),
        (once(|_| Play::Dies), "the kernel that tries other values does not survive them"),
        (once(|_| Play::Remembered), "an output, or a part of one, hardly depends on the inputs' values"),
    ] {
        let backend = ScriptedBackend::playing_each(&[
            ("naive", play),
            ("fast", honest(100 * US)),
            ("naive", honest(200 * US)),
        ]);
        let report = profile(&backend, &varying(true));
        let entry = &report.body.entries[0];
        assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
        assert_eq!((entry.varied.len(), entry.unvaried_because.as_deref()), (0, Some(why)));
    }
}

#[test]
fn profile_catches_a_candidate_that_answers_from_memory() {
    let report = profile(&with_baseline(playing(|_| Play::Remembered), honest(100 * US)), &varying(true));
    assert_eq!(report.head.status, Status::Nondeterministic, "{}", report.head.detail);
    assert!(!report.body.baseline_failed);
    assert!(report.head.detail.contains("verified, then wrong in timed call"), "{}", report.head.detail);
    // The candidate computes in the trial, but returns remembered results when it is timed. In a fresh runner it
    // computes again, and the results differ.
    let remembering = || {
        ScriptedBackend::playing_each(&[
            ("fast", honest(100 * US)),
            ("fast", playing(|_| Play::Remembered)),
            ("fast", playing(|_| Play::Remembered)),
            ("fast", playing(|_| Play::Remembered)),
            ("fast", honest(100 * US)),
        ])
    };
    // A few outliers are allowed, but not remembered results.
    for (ratio, status) in
        [(1.0, Status::Nondeterministic), (0.99, Status::Nondeterministic), (0.5, Status::Passed)]
    {
        let mut task = varying(false);
        task.verify.required_matched_ratio = ratio;
        let report = profile(&remembering(), &task);
        assert_eq!(report.head.status, status, "{ratio}: {}", report.head.detail);
        let expected = status == Status::Passed || report.head.detail.contains("than a fresh process does");
        assert!(expected, "{}", report.head.detail);
    }
}

#[test]
fn profile_blames_a_baseline_that_its_own_fresh_runner_contradicts() {
    let backend = ScriptedBackend::playing_each(&[
        ("naive", honest(100 * US)),
        ("fast", honest(100 * US)),
        ("naive", playing(|_| Play::Remembered)),
        ("naive", honest(100 * US)),
    ]);
    let report = profile(&backend, &varying(true));
    assert_eq!((report.head.status, report.body.baseline_failed), (Status::Nondeterministic, true));
    assert!(report.head.detail.contains("a fresh process of the baseline"), "{}", report.head.detail);
}

/// Returns the requests to one session. Sessions are numbered backwards from the last one, which is 0.
fn session(backend: &ScriptedBackend, from_the_end: usize) -> Vec<Asked> {
    let asked = backend.asked.borrow();
    let starts: Vec<usize> = (0..asked.len()).filter(|&at| matches!(asked[at], Asked::Start(..))).collect();
    let from = starts[starts.len() - 1 - from_the_end];
    asked[from + 1..].iter().take_while(|it| !matches!(it, Asked::Start(..))).cloned().collect()
}

fn calls_of(asked: &[Asked]) -> Vec<(bool, u32)> {
    let blocks = asked.iter().filter_map(|it| match it {
        Asked::Block(block) => Some((block.plan, block.calls)),
        _ => None,
    });
    blocks.collect()
}

#[test]
fn profile_gives_both_sides_the_same_inputs_and_hides_them_until_a_block_starts() {
    let backend = with_baseline(honest(100 * US), honest(200 * US));
    profile(&backend, &varying(true));
    let asked = backend.asked.borrow();
    // The first session is the trial's.
    let from = asked.iter().rposition(|it| matches!(it, Asked::Start(candidate, _) if candidate == "fast"));
    let timed: Vec<&AskedInputs> = asked[from.expect("timed")..]
        .iter()
        .filter_map(|it| match it {
            Asked::Inputs(inputs) => Some(inputs),
            _ => None,
        })
        .collect();
    assert!(20 <= timed.len());
    for pair in timed.chunks(2) {
        let [first, second] = pair else { panic!("two sides") };
        assert_ne!(first.candidate, second.candidate);
        assert_eq!(first.used, second.used);
        assert_ne!(first.before, first.used);
        assert_ne!(second.before, second.used, "the second side cannot read its inputs early");
    }
    assert!(timed.chunks(2).is_sorted_by(|one, next| one[0].used != next[0].used), "each pair has others");
}

#[test]
fn profile_counts_the_slots_that_it_checked() {
    let backend = with_baseline(honest(100 * US), honest(200 * US));
    let entry = profile(&backend, &varying(true)).body.entries.remove(0);
    let blocks: Vec<(bool, u32)> = (0..6).flat_map(|number| calls_of(&session(&backend, number))).collect();
    let pairs = blocks.len() as u64 / 2;
    let calls = blocks.iter().map(|(_, calls)| u64::from(*calls)).sum::<u64>() / 2;
    let checked = entry.slots_checked;
    assert!(
        pairs <= checked && checked < pairs + (calls - pairs) / 2,
        "{checked} of {calls} in {pairs} pairs"
    );
    // Without a baseline, an element of each call is compared with that of a fresh runner.
    let backend = alone(honest(100 * US));
    let entry = profile(&backend, &varying(false)).body.entries.remove(0);
    let blocks: Vec<(bool, u32)> = (1..4).flat_map(|number| calls_of(&session(&backend, number))).collect();
    assert_eq!(entry.slots_checked, blocks.iter().map(|(_, calls)| u64::from(*calls)).sum::<u64>());
}

/// Changes a task so that elements may be off by 0.1.
fn tolerating(mut task: ProfileTask) -> ProfileTask {
    let tolerance = ToleranceOverride { rtol: Some(0.0), atol: Some(0.1), rel_l2: Some(f64::INFINITY) };
    task.verify.dtype.insert(DType::Float32, tolerance);
    task
}

#[test]
fn profile_allows_one_tolerance_from_the_recorded_output_and_two_from_the_baselines() {
    // In one call of 24, all elements are off by one and a half tolerances.
    let one_of_many = |play| Script::timed(&[BlockPlay { play, ..BlockPlay::honest(20 * US) }]);
    let off = one_of_many(|call| if call == 17 { Play::OffBy(0.15) } else { Play::Right });
    let backend = alone(off.clone());
    let report = profile(&backend, &tolerating(task(&[0], false)));
    assert_eq!(report.head.status, Status::Nondeterministic, "{}", report.head.detail);
    assert_eq!(calls_of(&session(&backend, 0)), [(false, 1), (false, 24)], "noticed in the first such block");
    let all_off = one_of_many(|_| Play::OffBy(0.15));
    let backend = with_baseline(all_off, honest(20 * US));
    let report = profile(&backend, &tolerating(varying(true)));
    assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
    let calls: u32 = calls_of(&session(&backend, 0)).iter().map(|(_, calls)| calls).sum();
    let checked = report.body.entries[0].slots_checked;
    assert!(checked < 3 * u64::from(calls) / 2, "no more slots than of equal outputs: {checked} of {calls}");
    let wrong = one_of_many(|_| Play::OffBy(0.25));
    let report = profile(&with_baseline(wrong, honest(20 * US)), &tolerating(varying(true)));
    assert_eq!(report.head.status, Status::Nondeterministic, "{}", report.head.detail);
}

#[test]
fn fresh_baseline_that_fails_is_blamed() {
    let ready = Answer::Done(Loaded::Ready { has_plan: true, returned: false });
    let planning = |plan| Script { load: ready.clone(), plan, ..honest(100 * US) };
    let working = || planning(Answer::Done(done(1)));
    let refused = Answer::Done(Loaded::Refused { text: "gone".to_owned() });
    let wrong = "verified, then wrong in timed call";
    for (name, fresh, status, detail, blocks) in [
        ("right", working(), Status::Nondeterministic, wrong, &[true, false][..]),
        ("without a plan call", honest(100 * US), Status::Nondeterministic, wrong, &[false]),
        (
            "dies",
            Script { load: ready.clone(), ..playing(|_| Play::Dies) },
            Status::Crashed,
            "SIGSEGV",
            &[true, false],
        ),
        ("dies in its plan call", planning(Answer::Died), Status::Crashed, "SIGSEGV", &[true]),
        (
            "its plan call fails",
            planning(Answer::Done(Called { result: 4, ..done(1) })),
            Status::RuntimeError,
            "the plan call returned 4",
            &[true],
        ),
        ("a call fails", playing(|_| Play::code(6)), Status::RuntimeError, "returned 6", &[false]),
        ("refused", Script { load: refused, ..honest(US) }, Status::LoadError, "gone", &[]),
    ] {
        let backend = ScriptedBackend::playing_each(&[
            ("naive", working()),
            ("naive", working()),
            ("naive", fresh),
            ("fast", playing(|_| Play::Remembered)),
        ]);
        let report = profile(&backend, &varying(true));
        assert_eq!(report.head.status, status, "{name}: {}", report.head.detail);
        assert!(report.head.detail.contains(detail), "{name}: {}", report.head.detail);
        assert_eq!(report.body.baseline_failed, status != Status::Nondeterministic, "{name}");
        let made: Vec<bool> = calls_of(&session(&backend, 0)).iter().map(|(plan, _)| *plan).collect();
        assert_eq!(made, blocks, "{name}: plan calls and blocks of the fresh runner");
        assert_eq!(backend.count(|it| matches!(it, Asked::Finish)), 4, "{name}: all sessions are ended");
    }
}

#[test]
fn fresh_runner_of_a_candidate_that_fails_is_blamed() {
    for (name, fresh, status, detail) in [
        ("dies", playing(|_| Play::Dies), Status::Crashed, "SIGSEGV"),
        ("fails", playing(|_| Play::code(6)), Status::RuntimeError, "returned 6"),
    ] {
        let runner = || ("fast", honest(100 * US));
        let backend =
            ScriptedBackend::playing_each(&[runner(), runner(), runner(), runner(), ("fast", fresh)]);
        let report = profile(&backend, &varying(false));
        assert_eq!((report.head.status, report.body.baseline_failed), (status, false), "{name}");
        assert!(report.head.detail.contains(detail), "{name}: {}", report.head.detail);
        assert_eq!(report.head.end.is_some(), status == Status::Crashed, "{name}");
    }
}
