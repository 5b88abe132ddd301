//! Tests screens, which are short profiles that only rule out candidates that are clearly slower.

use super::*;

pub(super) fn screen() -> ProfileTask {
    ProfileTask { depth: Depth::Screen, ..task(&[0], true) }
}

#[test]
fn screen_uses_one_process_per_side_and_widens_its_interval() {
    let backend = with_baseline(honest(100 * US), honest(200 * US));
    let report = profile(&backend, &screen());
    let entry = &report.body.entries[0];
    assert_eq!((report.head.status, entry.runners), (Status::Passed, 1), "{}", report.head.detail);
    assert_eq!(backend.count(|it| matches!(it, Asked::Start(..))), 2);
    assert_eq!(backend.count(|it| matches!(it, Asked::Idle(..))), 0, "a few idle rounds would prove nothing");
    let speedup = entry.speedup.expect("paired");
    assert!(
        (speedup.value - 2.0).abs() < 1e-6 && speedup.ci_low <= 1.82 && 2.2 <= speedup.ci_high,
        "{speedup:?}"
    );
}

#[test]
fn screen_warms_up_briefly() {
    let blocks = |task: &ProfileTask| {
        let backend = with_baseline(honest(500 * US), honest(500 * US));
        profile(&backend, task);
        backend.count(|it| matches!(it, Asked::Block(block) if block.candidate == "fast"))
    };
    // Six blocks of half a millisecond fill the warm-up, and five are timed.
    assert_eq!(blocks(&screen()), 11);
    // Twenty blocks fill the warm-up of each of three processes, and ten are timed.
    assert_eq!(blocks(&task(&[0], true)), 90);
}

#[test]
fn screen_has_no_figures_for_a_doubtful_candidate() {
    let late = Script::timed(&[BlockPlay { claim: 2.0, ..BlockPlay::honest(100 * US) }]);
    let report = profile(&with_baseline(late, honest(200 * US)), &screen());
    assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
    assert!(report.body.entries.is_empty(), "{:?}", report.body.entries);
}

/// A screen does not measure the hand-off among its blocks. With the hand-off that was measured before them, it could
/// rule out the best candidate.
#[test]
fn screen_has_no_figures_if_its_blocks_are_not_long_beside_the_hand_off() {
    let script = |per_call: Duration| Script { handoff: 16 * US, slots: 1, ..honest(per_call) };
    for (candidate, baseline, figures) in [(20, 60, 0), (20, 20, 1), (2000, 6000, 1)] {
        let backend = with_baseline(script(candidate * US), script(baseline * US));
        let report = profile(&backend, &screen());
        assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
        assert_eq!(report.body.entries.len(), figures, "{candidate} {baseline}");
    }
}
