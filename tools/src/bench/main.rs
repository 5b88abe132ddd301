//! Benchmarks that print Markdown: ratios inside one run, against the physical limit measured beside.
//!
//! Not part of the test command: this is where figures for `docs/benchmarks.md` come from. Build everything with
//! `--release` first; each subcommand says what it needs.

mod kill_storm;
mod product;
mod reads;
mod timing;
mod verify_large;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "bench", about = "Benchmarks of opt-supervisor, as Markdown")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Verify a large embedding set: peak owed memory, cache left behind, time beside `cat`
    VerifyLarge(verify_large::Arguments),
    /// Kill a verifier, a profiler or a runner at a random moment of each of many runs
    KillStorm(kill_storm::Arguments),
    /// Cold and warm reads by every way there is, beside raw ones; a sparse and a dense kernel over a large set
    Reads(reads::Arguments),
    /// Two copies of one kernel and a faster one, timed again and again
    Timing(timing::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::VerifyLarge(arguments) => verify_large::run(&arguments),
        Command::KillStorm(arguments) => kill_storm::run(&arguments),
        Command::Reads(arguments) => reads::run(&arguments),
        Command::Timing(arguments) => timing::run(&arguments),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("the figures are not what they must be");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
