//! Tests the blocks that a profile requests: their number, calls, order and time limits.

use super::*;
use opt_shared::outcome::CacheStateReached;

use crate::session::scripted::AskedBlock;

fn blocks_of(script: Script, task: &ProfileTask) -> Vec<AskedBlock> {
    let backend = alone(script);
    profile(&backend, task);
    asked_blocks(&backend)
}

fn asked_blocks(backend: &ScriptedBackend) -> Vec<AskedBlock> {
    let asked = backend.asked.borrow();
    let blocks = asked.iter().filter_map(|it| match it {
        Asked::Block(block) => Some(block.clone()),
        _ => None,
    });
    blocks.collect()
}

fn calls(blocks: &[AskedBlock]) -> Vec<u32> {
    blocks.iter().map(|block| block.calls).collect()
}

#[test]
fn profile_warms_up_for_three_calls_and_ten_milliseconds() {
    let task = task(&[0], false);
    // One long call is enough for the warm-up. Shorter calls are made at least three times, and for at least ten
    // milliseconds.
    for (per_call, warm_up, pairs) in
        [(120_000 * US, 1, 2), (99_000 * US, 3, 10), (4000 * US, 3, 10), (2000 * US, 5, 10)]
    {
        let blocks = blocks_of(honest(per_call), &task);
        assert_eq!(blocks.len(), 3 * (warm_up + pairs), "{per_call:?}: three runners");
        assert!(blocks.iter().all(|block| block.calls == 1 && !block.plan && !block.cold));
    }
    // The first block has one call. The next ones have five, which take half a millisecond.
    assert_eq!(calls(&blocks_of(honest(100 * US), &task))[..24], [&[1; 1][..], &[5; 23]].concat());
}

#[test]
fn profile_warms_up_until_a_block_confirms_its_number_of_calls() {
    // Three calls are enough for the warm-up, but the third one is shorter than the others and shows that a block needs
    // five calls.
    let long = BlockPlay::honest(20_000 * US);
    let script = Script::timed(&[long.clone(), long, BlockPlay::honest(100 * US)]);
    let asked = calls(&blocks_of(script, &task(&[0], false)));
    assert_eq!(
        asked[..15],
        [&[1; 3][..], &[5; 11], &[1]].concat(),
        "the next runner starts again with one call"
    );
}

#[test]
fn time_limit_of_a_block_follows_the_known_time_of_its_calls() {
    let mut task = task(&[0], false);
    let blocks = blocks_of(honest(100 * US), &task);
    assert_eq!(
        (blocks[0].expected, blocks[0].limit),
        (Duration::ZERO, Duration::from_secs(60)),
        "nothing is known"
    );
    let of_five = blocks.iter().find(|block| block.calls == 5).expect("several calls");
    assert_eq!((of_five.expected, of_five.limit), (500 * US, Duration::from_millis(5010)));
    task.verify.call_timeout = Duration::from_millis(900);
    let blocks = blocks_of(honest(100 * US), &task);
    let of_five = blocks.iter().find(|block| block.calls == 5).expect("several calls");
    assert_eq!(of_five.limit, Duration::from_millis(4500), "never more than a call may take");
}

#[test]
fn profile_draws_the_order_of_sides_in_balanced_pairs() {
    let backend = with_baseline(honest(3000 * US), honest(3000 * US));
    profile(&backend, &task(&[0], true));
    let blocks = asked_blocks(&backend);
    let per_runner = blocks.len() / 3;
    let mut first_sides = Vec::new();
    for runner in blocks.chunks(per_runner) {
        let timed: Vec<&str> = runner[per_runner - 20..].iter().map(|it| it.candidate.as_str()).collect();
        for two_pairs in timed.chunks(4) {
            let [a, b, c, d] = two_pairs else { panic!("ten pairs") };
            assert!(a != b && c != d && a != c, "both sides in each pair, each first once: {two_pairs:?}");
            first_sides.push(*a);
        }
    }
    assert!(first_sides.contains(&"fast") && first_sides.contains(&"naive"), "{first_sides:?}");
}

#[test]
fn profile_from_cold_caches_requests_cold_blocks_but_a_warm_plan_call() {
    let mut task = task(&[0], false);
    task.profile.cache_state = CacheState::Cold;
    let ready = Answer::Done(Loaded::Ready { has_plan: true, returned: false });
    let blocks = blocks_of(Script { load: ready, ..honest(100 * US) }, &task);
    assert!(blocks.iter().any(|block| block.plan));
    assert!(blocks.iter().all(|block| block.cold != block.plan && block.calls == 1), "{blocks:?}");
}

#[test]
fn kernelforges_protocol_makes_25_calls_and_then_100() {
    let mut task = task(&[0], false);
    task.profile.protocol = Protocol::Kernelforge;
    // Even if runners differ, no further runners are started, because the protocol has three for each side.
    let runners = [20_000, 40_000, 80_000].map(|us| ("fast", honest(us * US)));
    let backend = ScriptedBackend::playing_each(&runners);
    let report = profile(&backend, &task);
    assert_eq!((report.body.entries[0].runners, report.body.entries[0].times.samples), (3, 3));
    let blocks = asked_blocks(&backend);
    assert_eq!(calls(&blocks[..30]), [&[1; 25][..], &[24, 24, 24, 24, 4]].concat());
    assert_eq!(blocks.len(), 90);
    let rounds = backend.count(|it| matches!(it, Asked::Idle(_)));
    assert!((9..=9 + 27 + 90).contains(&rounds), "at most nine before a runner's blocks: {rounds}");
}

#[test]
fn profile_checks_one_slot_of_most_blocks_and_all_of_some() {
    let backend = alone(honest(100 * US));
    let report = profile(&backend, &task(&[0], false));
    let blocks = asked_blocks(&backend);
    let (made, calls) = (blocks.len() as u64, blocks.iter().map(|block| u64::from(block.calls)).sum::<u64>());
    let checked = report.body.entries[0].slots_checked;
    assert!(made < checked && checked < made + (calls - made) / 4, "{checked} of {calls} in {made} blocks");
}

#[test]
fn profile_looks_into_every_call_of_a_block() {
    // One of five calls has one wrong element. 64 elements of the block are looked at, so this call is compared.
    let backend = alone(playing(|call| if call == 3 { Play::WrongFrom(0) } else { Play::Right }));
    let report = profile(&backend, &task(&[0], false));
    assert_eq!(report.head.status, Status::Nondeterministic);
    let detail = "verified, then wrong in timed call 4 of a block of 5: ";
    assert!(report.head.detail.contains(detail), "{}", report.head.detail);
    assert_eq!(calls(&asked_blocks(&backend)), [1, 5], "in the first block that has such a call");
}

#[test]
fn profile_doubles_the_calls_of_a_block_that_is_too_short() {
    // Calls take 1 ms in the warm-up and 10 us in the timed blocks.
    let mut blocks = vec![BlockPlay::honest(1000 * US); 10];
    blocks.push(BlockPlay::honest(10 * US));
    let asked = calls(&blocks_of(Script::timed(&blocks), &task(&[0], false)));
    // A timed block of one call shows that calls are short. The next blocks have as many calls as the ring has slots.
    assert_eq!(asked[..13], [&[1; 11][..], &[24, 24]].concat(), "{asked:?}");
}

#[test]
fn profile_makes_at_most_four_times_the_wanted_pairs_if_all_are_disturbed() {
    let waiting = BlockPlay { waited: 50_000 * US, ..BlockPlay::honest(3000 * US) };
    let backend = alone(Script::timed(&[waiting]));
    let report = profile(&backend, &task(&[0], false));
    let entry = &report.body.entries[0];
    assert_eq!(
        (entry.times.samples, entry.discarded_blocks),
        (120, 0),
        "every pair was preempted, so all count"
    );
}

/// Returns the candidate and the entry of each timed block, in the order in which the blocks were made.
fn order_of(blocks: &[AskedBlock]) -> Vec<(String, usize)> {
    blocks.iter().map(|block| (block.candidate.clone(), block.entry)).collect()
}

#[test]
fn profile_in_rotation_calls_every_entry_of_one_side_before_the_other_side() {
    let mut task = task(&[0, 1, 2], true);
    task.profile.cache_state = CacheState::Rotate;
    let backend = with_baseline(honest(3000 * US), honest(6000 * US));
    let report = profile(&backend, &task);
    assert_eq!(report.head.status, Status::Passed, "{}", report.head.detail);
    assert_eq!(report.body.entries.len(), 3);
    for entry in &report.body.entries {
        assert_eq!((entry.cache_state, entry.calls_per_block), (CacheStateReached::Rotate, 1));
        assert!((entry.speedup.expect("paired").value - 2.0).abs() < 1e-6);
        assert_eq!((entry.times.samples, entry.runners), (30, 3));
    }
    let blocks = asked_blocks(&backend);
    for runner in blocks.chunks(blocks.len() / 3) {
        // Ten rounds of three entries and two sides come after the warm-up.
        let timed = order_of(&runner[runner.len() - 60..]);
        let cycle: Vec<usize> = timed[..3].iter().map(|(_, entry)| *entry).collect();
        let mut sorted = cycle.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2]);
        for half in timed.chunks(3) {
            assert!(half.iter().all(|(side, _)| *side == half[0].0), "one side at a time: {half:?}");
            assert_eq!(half.iter().map(|(_, entry)| *entry).collect::<Vec<_>>(), cycle);
        }
        let sides: Vec<&str> = timed.chunks(3).map(|half| half[0].0.as_str()).collect();
        assert!(sides.chunks(2).all(|round| round[0] != round[1]), "both sides in every round: {sides:?}");
    }
}

#[test]
fn profile_of_a_single_entry_cannot_rotate() {
    let mut task = task(&[0], true);
    task.profile.cache_state = CacheState::Rotate;
    let report = profile(&with_baseline(honest(100 * US), honest(200 * US)), &task);
    let entry = &report.body.entries[0];
    assert_eq!((entry.cache_state, entry.calls_per_block), (CacheStateReached::Warm, 5));
}

#[test]
fn profile_in_rotation_stops_at_a_wrong_output() {
    let mut task = task(&[0, 1], true);
    task.profile.cache_state = CacheState::Rotate;
    let report = profile(&with_baseline(playing(|_| Play::WrongFrom(0)), honest(100 * US)), &task);
    assert_eq!(report.head.status, Status::Nondeterministic);
    assert!(!report.body.baseline_failed && report.body.entries.is_empty());
}

#[test]
fn profile_in_rotation_gives_each_runner_an_equal_share_of_an_entrys_time() {
    let mut task = task(&[0, 1], true);
    task.profile.cache_state = CacheState::Rotate;
    // Each runner gets a third of this, that is, 40 ms. This is enough for 12 ms of warm-up and seven pairs.
    task.profile.entry_timeout = Duration::from_millis(120);
    let report = profile(&with_baseline(honest(4000 * US), honest(4000 * US)), &task);
    for entry in &report.body.entries {
        assert_eq!((entry.times.samples, entry.runners), (21, 3));
    }
}

#[test]
fn profile_in_rotation_counts_idle_rounds_as_time_of_their_entry() {
    for (idle_takes, runners) in [(Duration::ZERO, 12), (Duration::from_secs(4), 3)] {
        let mut task = task(&[0, 1], true);
        task.profile.cache_state = CacheState::Rotate;
        task.profile.max_noise = 0.0;
        let noisy: Vec<(&str, Script)> = (0..12)
            .flat_map(|number: u32| {
                let of = |us: u32| Script { idle_takes, ..honest((us + (number * 7919) % 97) * US) };
                [("fast", of(3000)), ("naive", of(5000))]
            })
            .collect();
        let report = profile(&ScriptedBackend::playing_each(&noisy[..2 * runners]), &task);
        for entry in &report.body.entries {
            assert_eq!(entry.runners as usize, runners, "{idle_takes:?}");
        }
    }
}
