//! Replays the fuzz corpora: every reader must handle the seeds and the inputs that once caused a failure.

use std::sync::mpsc;

use opt_tests::hostile::{TARGETS, corpus};
use opt_tests::waiting::LONG;

#[test]
fn readers_handle_every_input_of_the_corpora() {
    for target in &TARGETS {
        let inputs = corpus(target);
        assert!(!inputs.is_empty(), "{} has no corpus", target.name);
        let (answered, answers) = mpsc::channel();
        let asking = std::thread::spawn(move || {
            for (number, input) in inputs.iter().enumerate() {
                (target.run)(input);
                answered.send(number).expect("the receiver is alive");
            }
        });
        let mut next = 0;
        loop {
            match answers.recv_timeout(LONG) {
                Ok(number) => next = number + 1,
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("{}: no answer to input {next}", target.name),
            }
        }
        assert!(asking.join().is_ok(), "{}: the reader panicked on input {next}", target.name);
    }
}
