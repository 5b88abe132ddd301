//! Tests the core with the simulation: makes two thousand runs, and checks that every listed kind of event occurs.

use super::*;

/// The seeds of runs that once broke a law. There are none yet.
const PAST_FAILURES: &[u64] = &[];

fn run(seed: u64) -> Outcome {
    let tape = tape_of(seed);
    simulate(&tape).unwrap_or_else(|broken| {
        let (log, _) = run_tape(&shrunk(tape));
        panic!("{log}\nseed {seed}, {}", describe(&broken));
    })
}

/// This test would prove nothing if the simulated machine never caused problems, or never recovered from them. It
/// therefore also requires that each listed kind of event occurs.
#[test]
fn every_run_keeps_the_laws_and_all_kinds_of_events_occur() {
    let mut seen = Outcome::default();
    for seed in (0..2_000).chain(PAST_FAILURES.iter().copied()) {
        seen.add(&run(seed));
    }
    for kind in [
        "finished",
        "interrupted",
        "host_failure",
        "retried",
        "given_up",
        "abandoned",
        "accepted",
        "worker_killed",
        "runner_killed",
        "recycled",
        "does_not_fit",
        "baseline_lost",
        "wait",
        "worker_fault",
        "worker_end_unknown",
        "worker_end_not_ready",
        "crashed_unknown",
        "paired",
        "pause",
        "resume",
        "cancel",
        "set_ceiling",
        "submit",
        "shutdown",
        "recycled_on_request",
        "retried_for_user",
        "cancelled",
        "already",
        "refused",
        "unknown_target",
        "left_runners",
        "memory_not_returned",
        "shrink_batch",
        "serial",
        "no_spare",
        "raise_estimate",
        "quarantine",
        "pressure",
        "swapped",
        "attribution_gap",
        "offered_all",
        "offered_some",
        "offered_late",
        "never_offered",
        "offered_none",
        "source_silent",
        "withdraw",
        "replayed",
        "nonsense_replay_report",
        "kill_worker",
        "kill_runner",
        "store_stalled",
        "store_back",
        "kill_held",
        "room_short",
        "room_back",
        "build_without_room",
        "without_tasks",
        "tasks_short",
        "put_off",
        "second_pass",
        "device_lost",
        "device_not_returned",
        "device_returned",
        "device_in_use",
        "device_busy",
        "over_device_limit",
    ] {
        assert!(0 < seen.of(kind), "never seen: {kind}\n{seen:?}");
    }
    assert_eq!(simulate(&[]).map_or(0, |outcome| outcome.of("finished")), 1, "a quiet run");
}
