//! Inputs that once did harm, and those that fuzzing begins with: every reader answers each of them at once.

use std::time::{Duration, Instant};

use opt_tests::hostile::{TARGETS, corpus};

/// On a machine with other work.
const AT_ONCE: Duration = Duration::from_secs(10);

#[test]
fn every_input_of_every_corpus_is_answered_at_once() {
    for target in &TARGETS {
        let inputs = corpus(target);
        assert!(!inputs.is_empty(), "{} has a corpus", target.name);
        for (number, input) in inputs.iter().enumerate() {
            let started = Instant::now();
            (target.run)(input);
            let took = started.elapsed();
            assert!(took < AT_ONCE, "{}: input {number} of {} bytes took {took:?}", target.name, input.len());
        }
    }
}
