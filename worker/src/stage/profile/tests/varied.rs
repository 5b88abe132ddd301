//! Tests of inputs that are new for every call, and of candidates that return remembered results.

use super::*;

/// A task over calls whose inputs may vary.
fn varying(paired: bool) -> ProfileTask {
    let mut task = task(&[0], paired);
    task.entries[0].numbers.varied = Bytes::mib(9);
    task
}

#[test]
fn profile_uses_new_inputs_in_every_call() {
    // One runner for the trial, then three pairs.
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
fn profile_does_not_vary_what_the_plan_keeps() {
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
        (once(|_| Play::code(3)), "the baseline refuses other values"),
        (once(|_| Play::Dies), "the baseline does not survive other values"),
        (once(|_| Play::Remembered), "an output, or a part of one, hardly depends on it"),
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
    // It computes in the trial and returns remembered results when it is timed. In a fresh runner it computes again,
    // and the results differ.
    let backend = ScriptedBackend::playing_each(&[
        ("fast", honest(100 * US)),
        ("fast", playing(|_| Play::Remembered)),
        ("fast", playing(|_| Play::Remembered)),
        ("fast", playing(|_| Play::Remembered)),
        ("fast", honest(100 * US)),
    ]);
    let report = profile(&backend, &varying(false));
    assert_eq!(report.head.status, Status::Nondeterministic, "{}", report.head.detail);
    assert!(report.head.detail.contains("than a fresh process does"), "{}", report.head.detail);
}

#[test]
fn profile_blames_a_baseline_that_a_fresh_runner_of_it_contradicts() {
    let backend = ScriptedBackend::playing_each(&[
        ("naive", honest(100 * US)),
        ("fast", honest(100 * US)),
        ("naive", playing(|_| Play::Remembered)),
        ("naive", honest(100 * US)),
    ]);
    let report = profile(&backend, &varying(true));
    assert_eq!((report.head.status, report.body.baseline_failed), (Status::Nondeterministic, true));
    assert!(report.head.detail.contains("a fresh process of it"), "{}", report.head.detail);
}
