//! A whole machine, simulated: workers that do not start, die, hang, lie and linger; memory that comes and goes;
//! users that interrupt; clocks that jump. It drives the real core until it stops, and holds it to the laws.
//!
//! Every choice is the next byte of a tape, and zero is the dull one: a short tape is a quiet run, and shrinking a
//! tape removes trouble until only what breaks the law is left.

mod laws;
mod machine;
mod tape;
mod user;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

use self::machine::{Machine, Outcome};
use self::tape::Tape;

/// More than any run of these sizes needs; a run that takes more goes round in circles.
const MOST_STEPS: usize = 4_000;

fn simulate(bytes: &[u8]) -> Result<Outcome, TestCaseError> {
    let mut machine = Machine::new(Tape::new(bytes));
    machine.run(MOST_STEPS).map_err(|law| TestCaseError::fail(format!("{law}\n{}", machine.story())))
}

/// Tapes of every mood, from quiet to hopeless.
fn tapes() -> impl Strategy<Value = Vec<u8>> {
    (1u32..10).prop_flat_map(|trouble| {
        let byte = prop_oneof![10 - trouble => Just(0u8), trouble => any::<u8>()];
        proptest::collection::vec(byte, 0..800)
    })
}

proptest! {
    // PROPTEST_CASES asks for more.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(2_000),
        max_shrink_iters: 3_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_run_keeps_the_laws_and_ends(tape in tapes()) {
        simulate(&tape)?;
    }
}

/// The property is worth nothing if the machine never gets into trouble, or never out of it.
#[test]
fn the_machine_meets_every_kind_of_trouble() {
    let mut seen = Outcome::default();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..1_000 {
        let tape = tapes().new_tree(&mut runner).expect("a tape").current();
        match simulate(&tape) {
            Ok(outcome) => seen.add(&outcome),
            Err(error) => panic!("{error}"),
        }
    }
    for kind in [
        "finished",
        "interrupted",
        "host_trouble",
        "retried",
        "given_up",
        "abandoned",
        "stands",
        "worker_killed",
        "runner_killed",
        "recycled",
        "does_not_fit",
        "baseline_lost",
        "wait",
        "worker_fault",
        "unknown",
        "not_ready",
        "crashed_unknown",
        "paired",
        "pause",
        "resume",
        "cancel",
        "set_ceiling",
        "submit",
        "shutdown",
        "asked_to_recycle",
        "given_back",
        "cancelled",
        "already",
        "refused",
        "nothing_like_it",
    ] {
        assert!(0 < seen.of(kind), "never seen: {kind}\n{seen:?}");
    }
    assert_eq!(simulate(&[]).map(|outcome| outcome.of("finished")).unwrap_or(0), 1);
}
