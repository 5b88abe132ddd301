//! Tests which pairs are used for the figures of an entry, and how deciles and intervals are computed.

use super::*;

/// Returns pairs of a candidate and a baseline. The candidate was preempted in the first `candidate` pairs, and the
/// baseline in the last `baseline` pairs.
fn pairs(count: usize, candidate: usize, baseline: usize) -> Vec<Timed> {
    (0..count)
        .map(|at| Timed {
            elapsed: vec![Duration::from_millis(1); 2],
            claimed: Vec::new(),
            calls: 1,
            handoffs: 1,
            preempted: vec![at < candidate, count - baseline <= at],
            waited_ms: vec![0.0; 2],
            threads_waited: false,
            clocks: Vec::new(),
        })
        .collect()
}

#[test]
fn preempted_pairs_do_not_count_unless_the_candidate_waits_more_often() {
    for (count, candidate, baseline, used) in [
        (10, 0, 0, 10),
        (10, 2, 0, 8),
        // The candidate was preempted in more than 2 + 1.5 b pairs, where b is the number for the baseline. It may wait
        // on purpose in its slow blocks, so all pairs are used.
        (10, 3, 0, 10),
        (20, 5, 2, 13),
        (20, 6, 2, 20),
        (20, 8, 4, 8),
        (20, 9, 4, 20),
        (20, 0, 9, 11),
        // Three undisturbed pairs are enough, two are not.
        (6, 1, 2, 3),
        (6, 2, 2, 6),
    ] {
        let timed = pairs(count, candidate, baseline);
        assert_eq!(counted_pairs(&timed, None).len(), used, "{candidate} and {baseline} of {count}");
    }
    // Without a baseline, a candidate gains nothing by waiting.
    let alone: Vec<Timed> = pairs(10, 5, 0)
        .into_iter()
        .map(|pair| Timed {
            elapsed: vec![Duration::from_millis(1)],
            preempted: pair.preempted[..1].to_vec(),
            ..pair
        })
        .collect();
    assert_eq!(counted_pairs(&alone, None).len(), 5);
}

/// Returns pairs of a candidate and a baseline. The device ran at half of its clock rate in the candidate's blocks of
/// the first `candidate` pairs, and in the baseline's blocks of the last `baseline` pairs.
fn paced(count: usize, candidate: usize, baseline: usize) -> Vec<Timed> {
    let clock = |throttled| Some(if throttled { 990 } else { 1980 });
    (0..count)
        .map(|at| Timed {
            elapsed: vec![Duration::from_millis(1); 2],
            claimed: Vec::new(),
            calls: 1,
            handoffs: 1,
            preempted: vec![false; 2],
            waited_ms: vec![0.0; 2],
            threads_waited: false,
            clocks: vec![clock(at < candidate), clock(count - baseline <= at)],
        })
        .collect()
}

#[test]
fn pairs_with_a_throttled_block_do_not_count_unless_the_candidate_causes_them() {
    for (count, candidate, baseline, used) in [
        (10, 0, 0, 10),
        (10, 2, 0, 8),
        (10, 1, 3, 6),
        // The candidate's own blocks heat the device, so they are used.
        (10, 4, 0, 10),
        (20, 5, 2, 13),
        (20, 0, 9, 11),
        // Fewer than three undisturbed pairs prove nothing.
        (4, 1, 1, 4),
    ] {
        let timed = paced(count, candidate, baseline);
        let least = least_clock(timed.iter().flat_map(|pair| pair.clocks.iter().copied().flatten()));
        assert_eq!(counted_pairs(&timed, least).len(), used, "{candidate} and {baseline} of {count}");
    }
}

#[test]
fn deciles_are_eleven_from_the_shortest_to_the_longest() {
    let ms: Vec<f64> = (0..=100).map(f64::from).collect();
    let expected: Vec<f64> = (0..=10).map(|tenth| f64::from(tenth) * 10.0).collect();
    for (found, expected) in deciles(&ms).into_iter().zip(expected) {
        assert!((found - expected).abs() < 1e-9, "{found}");
    }
    assert_eq!((deciles(&ms).len(), deciles(&[]).len()), (11, 0));
}

#[test]
fn interval_includes_what_other_hand_offs_would_make_of_the_speed_up() {
    let timing = |by_handoff: &[[f64; 2]]| Timing {
        ratios: vec![2.0; by_handoff.len()],
        by_handoff: by_handoff.to_vec(),
        ..Timing::of(2)
    };
    for (by_handoff, low, high, is_vague) in [
        (&[[0.99, 1.02]; 3][..], 1.98, 2.04, false),
        // A speed-up below 1 becomes smaller with a longer hand-off.
        (&[[1.01, 0.98]; 3], 1.96, 2.02, false),
        // The factors are medians over the runners.
        (&[[1.0, 1.0], [0.99, 1.02], [0.9, 1.5]], 1.98, 2.04, false),
        (&[[0.99, 1.06]; 3], 1.98, 2.12, true),
        (&[[0.99, f64::INFINITY]; 3], 1.98, f64::INFINITY, true),
    ] {
        let timing = timing(by_handoff);
        let found = timing.speedup().expect("ratios");
        assert!((found.ci_low - low).abs() < 1e-9 && found.value.to_bits() == 2.0_f64.to_bits(), "{found:?}");
        assert!(found.ci_high.total_cmp(&high).is_eq() || (found.ci_high - high).abs() < 1e-9, "{found:?}");
        assert_eq!(timing.is_vague(), is_vague, "{by_handoff:?}");
        let noise = half_width(&timing.estimate().expect("ratios"));
        assert!(
            noise < 1e-9,
            "more runners do not make the hand-off more certain, so it is no reason for them: {noise}"
        );
    }
}

#[test]
fn profile_is_undecided_if_the_least_improvement_lies_within_the_interval() {
    let timing = Timing { ratios: vec![1.5, 1.6, 1.7], ..Timing::of(2) };
    let Estimate { ci_low, ci_high, .. } = timing.estimate().expect("ratios");
    assert!(1.0 < ci_low && ci_high < 2.0, "1 can be subtracted and added again without rounding");
    for (least, undecided) in
        [(ci_low - 0.01, false), (ci_low, false), (1.6, true), (ci_high, false), (ci_high + 0.01, false)]
    {
        assert_eq!(timing.is_undecided(least - 1.0), undecided, "{least} in {ci_low} to {ci_high}");
    }
    let alone = Timing { ratios: vec![1.5, 1.6, 1.7], medians: vec![vec![1.5, 1.6, 1.7]], ..Timing::of(1) };
    assert!(!alone.is_undecided(0.6), "there is no baseline");
}
