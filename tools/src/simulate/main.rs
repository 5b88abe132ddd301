//! `simulate`: runs the supervisor's real core on a simulated machine.
//!
//! In these runs, workers fail to start, die, hang, report nonsense or do not end. Sources offer units, withdraw them
//! or never answer. Free memory changes, on the host and on a device. Users interrupt the run, and clocks jump. The
//! laws are checked after every step (`laws.rs`).
//!
//! Every choice is decided by the next byte of a *tape*. A byte of zero always chooses the case without a failure. The
//! tape is generated from a seed. If a run breaks a law, the seed and the step are printed, and `--seed` repeats the
//! run.

mod device;
mod disk;
mod laws;
mod machine;
mod outcome;
mod plan;
mod replays;
mod sources;
mod supply;
mod tape;
mod tasks;
#[cfg(test)]
mod tests;
mod user;

use clap::Parser;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use self::machine::{Broken, Machine};
use self::outcome::Outcome;
use self::tape::Tape;

/// The maximum number of steps. Simulated runs take fewer steps, so a run that reaches this number counts as endless.
const MAX_STEPS: usize = 8_000;
/// The limit for the length of a tape. After the end of its tape, a run has no more failures.
const MAX_TAPE: usize = 800;

#[derive(Parser)]
#[command(about = "Runs the supervisor's core on a simulated machine and checks its laws")]
struct Arguments {
    /// How many runs to make, each with the next seed
    #[arg(long, default_value_t = 2_000)]
    runs: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Make one run with this seed, and print its last steps
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> std::process::ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(broken) => {
            eprintln!("{broken}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    if let Some(seed) = arguments.seed {
        let (log, end) = run_tape(&tape_of(seed));
        println!("{log}");
        return end.map(|_| ()).map_err(|broken| format!("seed {seed}, {}", describe(&broken)));
    }
    let mut seen = Outcome::default();
    for seed in arguments.from..arguments.from.saturating_add(arguments.runs) {
        let tape = tape_of(seed);
        match simulate(&tape) {
            Ok(outcome) => seen.add(&outcome),
            Err(broken) => {
                let (log, _) = run_tape(&shrunk(tape));
                println!("{log}");
                return Err(format!(
                    "seed {seed}, {} (a simpler run that breaks a law is shown above; `simulate --seed {seed}` shows the end of this one)",
                    describe(&broken)
                ));
            }
        }
    }
    println!("{} runs from seed {}: every law held after every step", arguments.runs, arguments.from);
    println!("{seen}");
    Ok(())
}

fn describe(broken: &Broken) -> String {
    format!("step {}: {}", broken.step, broken.breach)
}

fn simulate(tape: &[u8]) -> Result<Outcome, Broken> {
    run_tape(tape).1
}

fn run_tape(tape: &[u8]) -> (String, Result<Outcome, Broken>) {
    let mut machine = Machine::new(Tape::new(tape));
    let end = machine.run(MAX_STEPS);
    (machine.log(), end)
}

/// Generates a tape. Depending on the seed, the tape causes few or very many failures.
fn tape_of(seed: u64) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let trouble = random.random_range(1..10);
    let length = random.random_range(0..MAX_TAPE);
    (0..length).map(|_| if random.random_range(0..10) < trouble { random.random() } else { 0 }).collect()
}

/// Simplifies a tape whose run breaks a law. Sets each piece to zeros if the run then still breaks some law, and
/// finally cuts off the zeros at the end.
fn shrunk(mut tape: Vec<u8>) -> Vec<u8> {
    let fails = |tape: &[u8]| simulate(tape).is_err();
    let mut piece = tape.len().next_power_of_two();
    while 0 < piece {
        let mut at = 0;
        while at < tape.len() {
            let end = (at + piece).min(tape.len());
            let mut zeroed = tape.clone();
            zeroed[at..end].fill(0);
            if zeroed != tape && fails(&zeroed) {
                tape = zeroed;
            }
            at = end;
        }
        piece /= 2;
    }
    while tape.last() == Some(&0) {
        tape.pop();
    }
    tape
}
