//! `simulate`: the supervisor's real core against a simulated machine.
//!
//! Workers that do not start, die, hang, report nonsense or linger; sources that offer units, take them back or
//! never answer; memory that comes and goes, on the host and on a device; users who interrupt; clocks that jump. Every
//! choice is the next byte of a tape, and zero is the uneventful one. A tape is generated from a seed; a run that breaks a law prints its
//! seed and step, and `--seed` replays it.

mod device;
mod laws;
mod machine;
mod outcome;
mod plan;
mod replays;
mod sources;
mod supply;
mod tape;
#[cfg(test)]
mod tests;
mod user;

use clap::Parser;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use self::machine::{Broken, Machine};
use self::outcome::Outcome;
use self::tape::Tape;

/// More than any run of these sizes needs; a run with more goes round in circles.
const MOST_STEPS: usize = 8_000;
/// Largest number of choices on a tape; after the last one everything goes well.
const LONGEST_TAPE: usize = 800;

#[derive(Parser)]
#[command(about = "Runs the supervisor's core on a simulated machine and holds it to its laws")]
struct Arguments {
    /// How many runs, each with the next seed.
    #[arg(long, default_value_t = 2_000)]
    runs: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// One run of this seed, told step by step.
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
        let (story, end) = told(&tape_of(seed));
        println!("{story}");
        return end.map(|_| ()).map_err(|broken| format!("seed {seed}, {}", say(&broken)));
    }
    let mut seen = Outcome::default();
    for seed in arguments.from..arguments.from.saturating_add(arguments.runs) {
        let tape = tape_of(seed);
        match simulate(&tape) {
            Ok(outcome) => seen.add(&outcome),
            Err(broken) => {
                let (story, _) = told(&shrunk(tape));
                println!("{story}");
                return Err(format!(
                    "seed {seed}, {} (told above with the trouble that is not needed taken out; \
                    `simulate --seed {seed}` tells all)",
                    say(&broken)
                ));
            }
        }
    }
    println!("{} runs from seed {}: every law held after every step", arguments.runs, arguments.from);
    println!("{seen}");
    Ok(())
}

fn say(broken: &Broken) -> String {
    format!("step {}: {}", broken.step, broken.law)
}

fn simulate(tape: &[u8]) -> Result<Outcome, Broken> {
    told(tape).1
}

fn told(tape: &[u8]) -> (String, Result<Outcome, Broken>) {
    let mut machine = Machine::new(Tape::new(tape));
    let end = machine.run(MOST_STEPS);
    (machine.story(), end)
}

/// Tapes of every kind, from quiet to hopeless.
fn tape_of(seed: u64) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let trouble = random.random_range(1..10);
    let length = random.random_range(0..LONGEST_TAPE);
    (0..length).map(|_| if random.random_range(0..10) < trouble { random.random() } else { 0 }).collect()
}

/// The same failure with fewer events: bytes are removed from the tape or zeroed as long as a law is still
/// broken.
fn shrunk(mut tape: Vec<u8>) -> Vec<u8> {
    let fails = |tape: &[u8]| simulate(tape).is_err();
    let mut piece = tape.len().next_power_of_two();
    while 0 < piece {
        let mut at = 0;
        while at < tape.len() {
            let end = (at + piece).min(tape.len());
            let mut dull = tape.clone();
            dull[at..end].fill(0);
            if dull != tape && fails(&dull) {
                tape = dull;
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
