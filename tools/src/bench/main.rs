//! Benchmarks that print Markdown or JSON: ratios within one run, compared with physical limits measured in the
//! same run.
//!
//! Not part of the test command; the figures in `docs/explanation/benchmarks.md` come from here. Build everything
//! with `--release` first; each subcommand states what it needs.

#![expect(clippy::cast_precision_loss, reason = "counts and sizes become figures for people")]

mod captures;
mod contest;
mod cycles;
mod eval;
mod figures;
mod filler;
mod honest;
mod kill_storm;
mod many;
mod monitor;
mod overshoot;
mod product;
mod reads;
mod replay;
mod residency;
mod spawn;
mod timing;
mod varied;
mod verify_large;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use opt_shared::device::Device;
use opt_shared::message::WORKER_ARGUMENT;

#[derive(Parser)]
#[command(name = "bench", about = "Benchmarks of opt-supervisor, as Markdown")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Verify a large embedding set: peak owed memory, cache left behind, time compared with `cat`
    VerifyLarge(verify_large::Arguments),
    /// Many prebuilt candidates with small entries: the cost of an entry compared with a bare process
    Many(many::Arguments),
    /// A hundred candidates with one clear winner: the time to find it, compared with other builds
    Contest(contest::Arguments),
    /// Kill a verifier, a profiler or a runner at a random moment of each of many runs
    KillStorm(kill_storm::Arguments),
    /// Cold and warm reads by every method, compared with raw ones; a sparse and a dense kernel over a large set
    Reads(reads::Arguments),
    /// Packing, checking and unpacking a capture store, compared with reading + BLAKE3 and with reading + writing
    Captures(captures::Arguments),
    /// Loads of the residency engine, lazily and all at once: peaks by its ledger and by the kernel
    Residency(residency::Arguments),
    /// Two copies of one kernel and a faster one, timed again and again
    Timing(timing::Arguments),
    /// Kernels with known ratios under load: they must be told apart if they differ, and only then
    Honest(honest::Arguments),
    /// Kernels timed with and without new inputs in every call: time, ratio, memory
    Varied(varied::Arguments),
    /// A worker: start to ready, a message round trip, noticing its death, teardown
    Spawn(spawn::Arguments),
    /// A process that fills memory: how far it exceeds its limit with polling, with the product, with a kernel limit
    Overshoot(overshoot::Arguments),
    /// Verify, switch, profile, repeatedly: what each process owes, and how long a switch takes
    Cycles(cycles::Arguments),
    /// Replays with budgets from the floor to everything: wall time against max(copy, compute) of the same run
    Replay(replay::Arguments),
    /// The CPU time and memory of watching sixteen workers
    Monitor(monitor::Arguments),
    /// How long `eval` takes to answer, compared with the build and the calls
    Eval(eval::Arguments),
}

/// Runs this program as one of the product's workers, if it was started as one.
fn entered() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next()?;
    if first.to_str() == Some(filler::ARGUMENT) {
        return Some(filler::main(arguments));
    }
    if first.to_str() == Some(reads::STREAM_ARGUMENT) {
        return Some(reads::stream_main(arguments));
    }
    if first.to_str() != Some(WORKER_ARGUMENT) {
        return None;
    }
    let supervisor = arguments.nth(1)?.to_str()?.parse().ok()?;
    let device = Device::from_name(arguments.next()?.to_str()?)?;
    Some(match opt_worker::serve::main(supervisor, device) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{:#}", anyhow::Error::new(error));
            ExitCode::FAILURE
        }
    })
}

fn main() -> ExitCode {
    if let Some(code) = entered() {
        return code;
    }
    let done = match Arguments::parse().command {
        Command::VerifyLarge(arguments) => verify_large::run(&arguments),
        Command::Many(arguments) => many::run(&arguments),
        Command::Contest(arguments) => contest::run(&arguments),
        Command::KillStorm(arguments) => kill_storm::run(&arguments),
        Command::Reads(arguments) => reads::run(&arguments),
        Command::Captures(arguments) => captures::run(&arguments),
        Command::Residency(arguments) => residency::run(&arguments),
        Command::Timing(arguments) => timing::run(&arguments),
        Command::Honest(arguments) => honest::run(&arguments),
        Command::Varied(arguments) => varied::run(&arguments),
        Command::Spawn(arguments) => spawn::run(&arguments),
        Command::Overshoot(arguments) => overshoot::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Cycles(arguments) => cycles::run(&arguments),
        Command::Monitor(arguments) => monitor::run(&arguments),
        Command::Eval(arguments) => eval::run(&arguments),
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
