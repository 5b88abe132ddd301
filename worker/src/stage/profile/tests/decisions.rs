//! Tests the decisions about which inputs vary, which a worker keeps for the other candidates of a job.

use super::*;

type Change = fn(&mut ProfileTask);

/// Returns a task that screens one entry whose input may vary.
fn varying() -> ProfileTask {
    let mut task = ProfileTask { depth: Depth::Screen, ..task(&[0], true) };
    task.entries[0].numbers.varied = Bytes::mib(9);
    task
}

/// Returns a candidate and a baseline that both work for any values.
fn working() -> ScriptedBackend {
    with_baseline(honest(100 * US), honest(100 * US))
}

/// Profiles `before`, then `task`. Returns how many processes of the baseline `task` needed. One is timed, and there is
/// one more if a trial decided which inputs vary.
fn processes_of_the_baseline(before: &ProfileTask, task: &ProfileTask) -> usize {
    let mut decisions = Decisions::default();
    profile_after(&mut decisions, &working(), before);
    let backend = working();
    let report = profile_after(&mut decisions, &backend, task);
    assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
    assert_eq!(report.body.entries[0].varied, ["input"]);
    backend.count(|it| matches!(it, Asked::Start(candidate, _) if candidate == "naive"))
}

#[test]
fn decision_is_reused_for_the_next_candidate_of_the_job() {
    let mut next = varying();
    next.callee.candidate = "other".to_owned();
    next.callee.artifact = callee("other", next.callee.signature.clone()).artifact;
    next.seed = [9; 32];
    let mut decisions = Decisions::default();
    profile_after(&mut decisions, &working(), &varying());
    let backend = ScriptedBackend::playing_each(&[("other", honest(100 * US)), ("naive", honest(100 * US))]);
    let report = profile_after(&mut decisions, &backend, &next);
    assert_eq!(report.body.entries[0].varied, ["input"]);
    assert_eq!(backend.count(|it| matches!(it, Asked::Start(..))), 2, "no trial");
}

#[test]
fn decision_is_made_anew_if_anything_that_it_depends_on_differs() {
    assert_eq!(processes_of_the_baseline(&varying(), &varying()), 1);
    let changes: [(&str, Change); 6] = [
        ("the baseline", |task| {
            task.baseline.as_mut().expect("a baseline").limits.threads = Some(7);
        }),
        ("the capture's name", |task| task.entries[0].name = "entry_000009".to_owned()),
        ("repeated arguments", |task| task.entries[0].repeated = vec!["other".to_owned()]),
        ("constant arguments", |task| task.constant = vec!["other".to_owned()]),
        ("the time limit of calls", |task| task.verify.call_timeout *= 2),
        ("the settings", |task| task.profile.batch_bytes = Bytes::mib(64)),
    ];
    for (what, change) in changes {
        let mut changed = varying();
        change(&mut changed);
        assert_eq!(processes_of_the_baseline(&varying(), &changed), 2, "{what}");
    }
}

#[test]
fn only_the_decisions_of_the_last_job_are_kept() {
    let mut other = varying();
    other.constant = vec!["other".to_owned()];
    let mut decisions = Decisions::default();
    profile_after(&mut decisions, &working(), &varying());
    profile_after(&mut decisions, &working(), &other);
    let backend = working();
    profile_after(&mut decisions, &backend, &varying());
    assert_eq!(backend.count(|it| matches!(it, Asked::Start(..))), 3, "with a trial");
}

#[test]
fn input_that_a_rule_keeps_needs_no_trial() {
    let mut kept = varying();
    kept.constant = vec!["input".to_owned()];
    let mut decisions = Decisions::default();
    for _ in 0..2 {
        let backend = working();
        let report = profile_after(&mut decisions, &backend, &kept);
        let why = report.body.entries[0].unvaried_because.clone().expect("nothing varies");
        assert!(why.starts_with("`input`: "), "{why}");
        assert_eq!(backend.count(|it| matches!(it, Asked::Start(..))), 2);
    }
}

#[test]
fn trial_that_died_decides_nothing_for_the_next_candidate() {
    let mut decisions = Decisions::default();
    let dying = Script::timed(&[BlockPlay { play: |_| Play::Dies, ..BlockPlay::honest(100 * US) }]);
    let backend = ScriptedBackend::playing_each(&[
        ("naive", dying),
        ("naive", honest(100 * US)),
        ("fast", honest(100 * US)),
    ]);
    let report = profile_after(&mut decisions, &backend, &varying());
    assert_eq!(
        report.body.entries[0].unvaried_because.as_deref(),
        Some("the kernel that tries other values does not survive them")
    );
    let report = profile_after(&mut decisions, &working(), &varying());
    assert_eq!(report.body.entries[0].varied, ["input"]);
}

#[test]
fn decision_made_with_a_candidate_is_not_reused() {
    let alone_task = || ProfileTask { baseline: None, depth: Depth::Full, ..varying() };
    let mut decisions = Decisions::default();
    let starts = [(), ()].map(|()| {
        let backend = alone(honest(100 * US));
        profile_after(&mut decisions, &backend, &alone_task());
        backend.count(|it| matches!(it, Asked::Start(..)))
    });
    assert_eq!(starts[0], starts[1], "a trial each");
}
