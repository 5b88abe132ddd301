//! Tests the figures of an entry, and profiles that cannot compute figures.

use super::*;

#[test]
fn profile_reports_the_weight_of_each_entry_and_its_progress() {
    for batch_bytes in [Bytes::new(1), Bytes::gib(1)] {
        let mut task = task(&[0, 1, 2], false);
        task.profile.batch_bytes = batch_bytes;
        for (entry, weight) in task.entries.iter_mut().zip([3, 4, 5]) {
            entry.weight = weight;
            entry.numbers.inputs = Bytes::new(weight * 100);
        }
        let reported = std::cell::RefCell::new(Vec::new());
        let progress = |done, total, _| reported.borrow_mut().push((done, total));
        let body =
            run(&alone(honest(3000 * US)), &progress, &task, &mut Head::passed(), &mut Decisions::default())
                .expect("no error");
        let found: Vec<(&str, u64)> = body.entries.iter().map(|it| (it.entry.as_str(), it.weight)).collect();
        assert_eq!(found, [("entry_000000", 3), ("entry_000001", 4), ("entry_000002", 5)]);
        assert_eq!(*reported.borrow(), [(1, 3), (2, 3), (3, 3)]);
        // The footprint is the size of inputs and outputs.
        let outputs: Vec<u64> = body
            .entries
            .iter()
            .zip([300, 400, 500])
            .map(|(it, inputs)| it.footprint.get() - inputs)
            .collect();
        assert!(0 < outputs[0] && outputs.iter().all(|bytes| bytes % 4 == 0), "{outputs:?}");
    }
}

#[test]
fn profile_reports_how_many_captured_bytes_are_timed() {
    let mut task = task(&[0, 1], false);
    task.entries[1].numbers.inputs = Bytes::new(36);
    let reported = std::cell::RefCell::new(Vec::new());
    let progress = |_, _, bytes: Bytes| reported.borrow_mut().push(bytes.get());
    run(&alone(honest(3000 * US)), &progress, &task, &mut Head::passed(), &mut Decisions::default())
        .expect("no error");
    assert_eq!(*reported.borrow(), [64, 100]);
}

#[test]
fn runner_whose_blocks_take_no_time_is_replaced() {
    // The blocks of one runner are as long as its hand-off.
    let nothing = ("fast", instant(40 * US));
    let honest = ("fast", honest(100 * US));
    let backend = ScriptedBackend::playing_each(&[honest.clone(), nothing, honest.clone(), honest]);
    let report = profile(&backend, &task(&[0], false));
    assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
    let entry = &report.body.entries[0];
    assert_eq!((entry.runners, entry.times.samples), (3, 30), "{entry:?}");
    assert_eq!(entry.discarded_blocks, 40, "four times as many as wanted");
    assert!((entry.times.median_time_ms - 0.1).abs() < 1e-6, "{:?}", entry.times);
}

#[test]
fn profile_has_no_figures_if_no_block_takes_time() {
    let nothing = instant(40 * US);
    let found = worker_error(nothing.clone());
    assert!(matches!(found, SessionError::NoTime { .. }), "{found:?}");
    // A screen reports no error, because a full profile will report it.
    let report = profile(
        &with_baseline(nothing, Script { handoff: 40 * US, ..honest(200 * US) }),
        &super::screen::screen(),
    );
    assert_eq!(
        (report.head.status, report.body.entries.len()),
        (Status::Passed, 0),
        "{}",
        report.head.detail
    );
}

#[test]
fn handoff_is_measured_again_if_a_block_takes_no_longer() {
    let report = profile(&alone(Script { measured_first: Some(40 * US), ..honest(US) }), &task(&[0], false));
    assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
    let entry = &report.body.entries[0];
    assert!((entry.handoff_us - 1.0).abs() < 1e-9, "{}", entry.handoff_us);
    assert!((entry.times.median_time_ms - 1e-3).abs() < 1e-9, "{:?}", entry.times);
}

#[test]
fn pair_with_a_block_that_takes_no_time_is_repeated() {
    // After the warm-up, every second block of the candidate is as short as an empty one.
    let mut blocks = vec![BlockPlay::honest(20_000 * US); 3];
    for _ in 0..100 {
        blocks.extend([BlockPlay::honest(Duration::ZERO), BlockPlay::honest(20_000 * US)]);
    }
    let report = profile(&with_baseline(Script::timed(&blocks), honest(40_000 * US)), &task(&[0], true));
    assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
    let entry = &report.body.entries[0];
    let speedup = entry.speedup.expect("paired");
    assert!((speedup.value - 2.0).abs() < 1e-3 && speedup.ci_high < 2.1, "{speedup:?}");
    assert!(0 < entry.discarded_blocks && 0.0 < entry.times.min_time_ms, "{entry:?}");
}

#[test]
fn profile_reports_that_a_candidates_output_was_cut() {
    let noisy = RunnerEnd { output_truncated: true, ..RunnerEnd::default() };
    let report = profile(&alone(Script { end: noisy, ..honest(100 * US) }), &task(&[0], false));
    assert!(report.head.output_truncated);
}

#[test]
fn profile_asks_for_memory_only_if_inputs_may_vary() {
    for (room, vary, asked) in [
        (Bytes::mib(9), Vary::Auto, vec![Asked::Variants(Bytes::mib(9))]),
        (Bytes::mib(9), Vary::None, vec![]),
        (Bytes::ZERO, Vary::Auto, vec![]),
    ] {
        let mut task = task(&[0, 1], false);
        task.entries[1].numbers.varied = room;
        task.profile.vary = vary;
        let backend = alone(honest(100 * US));
        profile(&backend, &task);
        let found: Vec<Asked> =
            backend.asked.borrow().iter().filter(|it| matches!(it, Asked::Variants(_))).cloned().collect();
        assert_eq!(found, asked);
    }
}

#[test]
fn disturbed_profile_widens_its_interval_to_the_shortest_blocks() {
    // Every block waits for a CPU for a tenth of its time. The candidate's blocks take 1 ms. The baseline's blocks take
    // 3 ms, except one that takes 1.2 ms. So a call of the baseline takes at least 1.08 ms.
    let waiting = |us: u32| BlockPlay { waited: us * US / 10, ..BlockPlay::honest(us * US) };
    let mut baseline = vec![waiting(3000); 30];
    baseline.extend([waiting(1200), waiting(3000)]);
    let backend = with_baseline(Script::timed(&[waiting(1000)]), Script::timed(&baseline));
    let report = profile(&backend, &task(&[0], true));
    let speedup = report.body.entries[0].speedup.expect("paired");
    assert!((speedup.value - 3.0).abs() < 1e-6, "{speedup:?}");
    assert!((speedup.ci_low - 1.08).abs() < 0.01 && (speedup.ci_high - 3.0).abs() < 1e-6, "{speedup:?}");
    // To test the upper bound, one block of the candidate is shorter instead. Its calls take at least 0.45 ms.
    let mut candidate = vec![waiting(1000); 30];
    candidate.extend([waiting(500), waiting(1000)]);
    let backend = with_baseline(Script::timed(&candidate), Script::timed(&[waiting(3000)]));
    let speedup = profile(&backend, &task(&[0], true)).body.entries[0].speedup.expect("paired");
    assert!((speedup.ci_low - 3.0).abs() < 1e-6 && (speedup.ci_high - 6.667).abs() < 0.01, "{speedup:?}");
}

#[test]
fn profile_with_several_threads_widens_its_interval_if_they_waited() {
    // Pairs of processes with several threads are always used. The baseline's blocks are three times as long as the
    // candidate's.
    let blocks = |us: u32, waited: u32| {
        Script::timed(&[BlockPlay { waited: waited * US, threads: 2, ..BlockPlay::honest(us * US) }])
    };
    for (waited, low) in [(1500, 1.5), (122, 2.878), (118, 3.0), (0, 3.0)] {
        let backend = with_baseline(blocks(1000, 0), blocks(3000, waited));
        let entry = profile(&backend, &task(&[0], true)).body.entries[0].clone();
        let speedup = entry.speedup.expect("paired");
        assert!((speedup.ci_low - low).abs() < 1e-3 && (speedup.ci_high - 3.0).abs() < 1e-6, "{speedup:?}");
        assert_eq!(entry.discarded_blocks, 0);
    }
}

/// If waiting widened a candidate's interval, a slow candidate that waits could not be ruled out, and the ranking of
/// its job could not be settled.
#[test]
fn candidate_does_not_widen_its_interval_upwards_by_waiting() {
    let blocks = |us: u32, waited: u32| {
        Script::timed(&[BlockPlay { waited: waited * US, threads: 2, ..BlockPlay::honest(us * US) }])
    };
    for (baseline_waited, high) in [(0, 3.0), (700, 3.0), (1600, 300.0), (3000, 300.0)] {
        let backend = with_baseline(blocks(1000, 1000), blocks(3000, baseline_waited));
        let speedup = profile(&backend, &task(&[0], true)).body.entries[0].speedup.expect("paired");
        assert!((speedup.ci_high - high).abs() < 1e-3, "{baseline_waited}: {speedup:?}");
    }
}

#[test]
fn undisturbed_profile_does_not_widen_its_interval_to_single_blocks() {
    let mut candidate = vec![BlockPlay::honest(1000 * US); 15];
    candidate.extend([BlockPlay::honest(500 * US), BlockPlay::honest(1000 * US)]);
    let backend = with_baseline(Script::timed(&candidate), honest(3000 * US));
    let speedup = profile(&backend, &task(&[0], true)).body.entries[0].speedup.expect("paired");
    assert!((speedup.ci_high - 3.0).abs() < 1e-6, "{speedup:?}");
}

#[test]
fn profile_has_deciles_of_both_sides() {
    let blocks: Vec<BlockPlay> = (0..4000).map(|at| BlockPlay::honest((3000 + at % 10) * US)).collect();
    let report = profile(&with_baseline(Script::timed(&blocks), honest(4000 * US)), &task(&[0], true));
    let entry = &report.body.entries[0];
    assert_eq!((entry.deciles.len(), entry.baseline_deciles.len()), (11, 11));
    assert!((entry.deciles[0] - entry.times.min_time_ms).abs() < 1e-9, "{:?}", entry.deciles);
    assert!((entry.deciles[5] - entry.times.median_time_ms).abs() < 1e-9, "{:?}", entry.deciles);
    assert!((entry.deciles[10] - entry.times.max_time_ms).abs() < 1e-9, "{:?}", entry.deciles);
    assert!(entry.times.min_time_ms < entry.times.max_time_ms);
    let report = profile(&alone(honest(3000 * US)), &task(&[0], false));
    assert!(report.body.entries[0].baseline_deciles.is_empty());
}

#[test]
fn profile_names_the_call_that_changed_after_done() {
    let early = BlockPlay { changed: Some(63), ..BlockPlay::honest(3000 * US) };
    let report = profile(&alone(Script::timed(&[early])), &task(&[0], false));
    let detail =
        "`output` of timed call 1 of a block of 1 changed after the block was reported as done (byte ";
    assert!(report.head.detail.contains(detail), "{}", report.head.detail);
}

#[test]
fn claim_must_exceed_our_clock_by_a_tenth_and_by_200_us() {
    for (per_call, claim, status) in [
        (1000 * US, 1.15, Status::Passed),
        (1000 * US, 1.25, Status::TimingMismatch),
        (10_000 * US, 1.09, Status::Passed),
        (10_000 * US, 1.11, Status::TimingMismatch),
    ] {
        let play = BlockPlay { claim, ..BlockPlay::honest(per_call) };
        let report = profile(&alone(Script::timed(&[play])), &task(&[0], false));
        assert_eq!(report.head.status, status, "{claim}: {}", report.head.detail);
    }
    // The limits apply to the whole block, not to each of its five calls.
    let play = BlockPlay { claim: 1.5, ..BlockPlay::honest(100 * US) };
    let report = profile(&alone(Script::timed(&[play])), &task(&[0], false));
    assert_eq!(report.head.status, Status::TimingMismatch, "{}", report.head.detail);
    assert!(report.head.detail.contains("the runner's own clock shows 150 % of"), "{}", report.head.detail);
}

#[test]
fn profile_reports_the_larger_share_of_waiting() {
    let waiting =
        |us: u32| Script::timed(&[BlockPlay { waited: us * US, threads: 2, ..BlockPlay::honest(2999 * US) }]);
    for (candidate, baseline) in [(300, 600), (600, 300)] {
        let report = profile(&with_baseline(waiting(candidate), waiting(baseline)), &task(&[0], true));
        let share = report.body.entries[0].wait_share.expect("known");
        assert!((share - 0.1).abs() < 1e-3, "{share}");
    }
}

#[test]
fn interval_of_a_time_contains_the_differences_between_runners() {
    let runners = [3000, 3030, 2970].map(|us| ("fast", honest(us * US)));
    let mut task = task(&[0], false);
    task.profile.entry_timeout = Duration::ZERO;
    let times = profile(&ScriptedBackend::playing_each(&runners), &task).body.entries[0].times;
    // The bounds are those of Student's interval over three runners that differ by one percent.
    assert!((times.ci_low - 2.894).abs() < 0.002 && (times.ci_high - 3.109).abs() < 0.002, "{times:?}");
}

#[test]
fn more_runners_are_used_while_it_is_open_whether_the_candidate_is_faster() {
    // Runners differ by an eighth of a percent, so the interval is always narrower than `max_noise`. The speed-ups are
    // about 1.05, 1.02 (which `min_improvement` asks for) and 1.
    let task = task(&[0], true);
    for (tenths_of_us, expected) in [(19_050, 3), (19_583, 12), (20_000, 3)] {
        let of = |number: u32| honest((tenths_of_us + number % 3 * 25) * US / 10);
        let runners: Vec<(&str, Script)> = (0..expected)
            .flat_map(|number: u32| [("fast", of(number)), ("naive", honest(2000 * US))])
            .collect();
        let report = profile(&ScriptedBackend::playing_each(&runners), &task);
        assert_eq!(report.body.entries[0].runners, expected, "{tenths_of_us}");
    }
}

#[test]
fn profile_of_an_entry_that_waits_for_cpus_ends_soon_after_its_limit() {
    // Calls take 100 us, but in nearly every block each of them waits 200 ms for a CPU.
    let busy = |runners: usize, waits: u32| -> Vec<(&'static str, Script)> {
        let wait = move |number: u32| if number.is_multiple_of(8) { Duration::ZERO } else { waits * US };
        let blocks: Vec<BlockPlay> = (0..200)
            .map(|number| BlockPlay {
                waited: 4 * wait(number),
                ..BlockPlay::honest(100 * US + wait(number))
            })
            .collect();
        (0..runners)
            .flat_map(|_| [("fast", Script::timed(&blocks)), ("naive", Script::timed(&blocks))])
            .collect()
    };
    let mut task = task(&[0], true);
    task.profile.entry_timeout = Duration::from_secs(1);
    let of = |runners: usize, waits: u32| {
        let report = profile(&ScriptedBackend::playing_each(&busy(runners, waits)), &task);
        assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
        let entry = report.body.entries[0].clone();
        (entry.runners, entry.times.samples)
    };
    assert_eq!(of(3, 0), (3, 30));
    assert_eq!(of(2, 200_000), (2, 4));
}

#[test]
fn profile_of_long_calls_is_not_late() {
    // Five pairs alone take 600 ms in each runner, far more than the entry's limit.
    let mut task = task(&[0], true);
    task.profile.entry_timeout = Duration::from_millis(100);
    let report = profile(&with_baseline(honest(60_000 * US), honest(60_000 * US)), &task);
    let entry = &report.body.entries[0];
    assert_eq!((report.head.status, entry.runners, entry.times.samples), (Status::Passed, 3, 15));
}

#[test]
fn warm_up_of_an_entry_that_is_late_is_shorter() {
    // Each runner has a third of the limit of 500 ms. Calls take 90 ms, and wait for half of that time.
    let waiting = BlockPlay { waited: 45_000 * US, ..BlockPlay::honest(90_000 * US) };
    let mut task = task(&[0], false);
    task.profile.entry_timeout = Duration::from_millis(500);
    for (play, protocol, blocks) in [
        // In the first runner, three calls and two pairs show that the entry is late. Two calls and two pairs of the
        // next runner are then enough.
        (waiting.clone(), Protocol::Paired, 3 + 2 + 2 + 2),
        (BlockPlay::honest(90_000 * US), Protocol::Paired, 3 * (3 + 5)),
        // Each runner makes 25 calls, then four blocks of 24 calls, and a block of four calls.
        (waiting, Protocol::Kernelforge, 3 * (25 + 5)),
    ] {
        task.profile.protocol = protocol;
        let backend = alone(Script::timed(&[play]));
        let report = profile(&backend, &task);
        assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
        assert_eq!(backend.count(|it| matches!(it, Asked::Block(_))), blocks, "{protocol:?}");
    }
}
