//! Tests how work in idle rounds is detected, and which side is blamed for it.

use super::*;

#[test]
fn profile_detects_work_in_idle_rounds() {
    let working = Script { idle: vec![Some(5_000 * US)], ..honest(100 * US) };
    let report = profile(&alone(working), &task(&[0], false));
    assert_eq!(report.head.status, Status::DeferredWork, "{}", report.head.detail);
    // Work in half of the rounds proves nothing, but the times are not reliable.
    let idle = (0..4000).map(|round| Some(if round % 2 == 0 { 5_000 * US } else { US })).collect();
    let error = worker_error(Script { idle, ..honest(100 * US) });
    assert!(matches!(error, SessionError::NeverIdle { .. }), "{error}");
}

/// Some machines charge a runner, when it is stopped, for time in which it does not run.
#[test]
fn profile_blames_no_side_that_is_charged_as_much_for_being_stopped() {
    let charged = || Script { idle: vec![Some(1_200 * US)], idle_wake: 1_100 * US, ..honest(100 * US) };
    let error = worker_error(charged());
    assert!(matches!(error, SessionError::NeverIdle { exceeded: 9.., .. }), "{error}");
    let report = profile(&with_baseline(charged(), honest(100 * US)), &task(&[0], true));
    assert_eq!(
        report.head.status,
        Status::DeferredWork,
        "the baseline is not charged: {}",
        report.head.detail
    );
    let backend = with_baseline(charged(), charged());
    let error =
        run(&backend, &|_, _, _| {}, &task(&[0], true), &mut Head::passed(), &mut Decisions::default())
            .expect_err("the worker returns an error");
    assert!(matches!(error, SessionError::NeverIdle { .. }), "{error}");
}

#[test]
fn profile_blames_the_side_whose_idle_rounds_alone_show_work() {
    // On a busy machine, a thread that works between calls does not get a CPU in every round.
    let busy_in = |is_busy: fn(u32) -> bool| {
        let idle = (0..4000).map(|round| Some(if is_busy(round) { 5_000 * US } else { US })).collect();
        Script { idle, ..honest(100 * US) }
    };
    let quiet: fn(u32) -> bool = |_| false;
    let most: fn(u32) -> bool = |round| round % 3 != 0;
    let half: fn(u32) -> bool = |round| round % 2 != 0;
    for (candidate, baseline, blamed) in
        [(quiet, quiet, None), (most, quiet, Some(CANDIDATE)), (quiet, most, Some(BASELINE))]
    {
        let report = profile(&with_baseline(busy_in(candidate), busy_in(baseline)), &task(&[0], true));
        let status = if blamed.is_some() { Status::DeferredWork } else { Status::Passed };
        assert_eq!(report.head.status, status, "{blamed:?}: {}", report.head.detail);
        assert_eq!(report.body.baseline_failed, blamed == Some(BASELINE));
        assert_eq!(
            report.head.detail.contains("timed beside it"),
            blamed.is_some(),
            "{}",
            report.head.detail
        );
    }
    // Both sides show work in their rounds, so the machine may be the cause.
    for (candidate, baseline) in [(most, most), (most, half)] {
        let backend = with_baseline(busy_in(candidate), busy_in(baseline));
        let error =
            run(&backend, &|_, _, _| {}, &task(&[0], true), &mut Head::passed(), &mut Decisions::default())
                .expect_err("the worker returns an error");
        assert!(matches!(error, SessionError::NeverIdle { .. }), "{error}");
    }
}

/// For blocks of five calls that take 20 ms each, a round may use 5 ms of CPU time. For a single call, it could use
/// only 1 ms.
#[test]
fn long_blocks_allow_more_cpu_time_in_idle_rounds() {
    let side = |per_call: Duration, idle: &[u32], idle_wake: Duration| Script {
        idle: (0..4000).map(|round| Some(idle[round % idle.len()] * US)).collect(),
        idle_wake,
        ..honest(per_call)
    };
    for (candidate, baseline, status) in [
        (side(100 * US, &[1], US), side(20_000 * US, &[3000], US), Status::Passed),
        // Only the candidate works, in two of three rounds.
        (side(100 * US, &[1, 5000, 5000], US), side(20_000 * US, &[3000], US), Status::DeferredWork),
    ] {
        let report = profile(&with_baseline(candidate, baseline), &task(&[0], true));
        assert_eq!(
            (report.head.status, report.body.baseline_failed),
            (status, false),
            "{}",
            report.head.detail
        );
        assert_eq!(report.head.detail.contains("timed beside it"), status == Status::DeferredWork);
    }
    // Stopping the runner takes 1 ms, which is less than the 6 ms that blocks of 24 calls of 5 ms allow. So the machine
    // is not the cause of the rest.
    let mut task = task(&[0], false);
    task.profile.protocol = Protocol::Kernelforge;
    for (cpu, status) in [(5000, Status::Passed), (20_000, Status::DeferredWork)] {
        let report = profile(&alone(side(5000 * US, &[cpu], 1000 * US)), &task);
        assert_eq!(report.head.status, status, "{}", report.head.detail);
    }
}
