//! Benchmarks that print Markdown or JSON. Some also measure a reference or a limit in the same run.
//!
//! Most figures in `docs/explanation/benchmarks.md` come from this program. Build everything with `--release` first.

#![expect(clippy::cast_precision_loss, reason = "counts and sizes become figures for people")]

mod captures;
mod contest;
mod cycles;
mod eval;
mod exploits;
mod figures;
mod filler;
mod honest;
mod kill_storm;
mod load;
mod many;
mod monitor;
mod overshoot;
mod product;
mod python;
mod reads;
mod replay;
mod replay_twin;
mod residency;
mod scale;
mod spawn;
mod timing;
mod varied;
mod verify_large;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use opt_shared::device::Device;
use opt_shared::message::WORKER_ARGUMENT;

#[derive(Parser)]
#[command(name = "bench", about = "Benchmarks of opt-supervisor. Most print Markdown, or JSON with --json")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Verify a large embedding set: peak owed memory, bytes left in the page cache, time compared with `cat`
    VerifyLarge(verify_large::Arguments),
    /// Verify many prebuilt candidates with small entries: the cost of an entry, compared with a bare process
    Many(many::Arguments),
    /// Verify more and more candidates: how the supervisor's time, memory and longest turn grow
    Scale(scale::Arguments),
    /// Time a hundred candidates with one clear winner: the time to find it, compared with other builds
    Contest(contest::Arguments),
    /// In each of many runs, kill, end, replace or cancel something at random moments
    KillStorm(kill_storm::Arguments),
    /// Read captures by every method, cold and warm, compared with raw reads; run a sparse and a dense kernel on a
    /// large set
    Reads(reads::Arguments),
    /// Pack, check and unpack a capture store, compared with reading + BLAKE3 and with reading + writing
    Captures(captures::Arguments),
    /// Load tensors with the residency engine, lazily and all at once: peaks according to its ledger and to Linux
    Residency(residency::Arguments),
    /// Time two copies of one kernel and a faster kernel, many times
    Timing(timing::Arguments),
    /// Time kernels with known ratios under load: different kernels must be told apart, and equal ones must not
    Honest(honest::Arguments),
    /// Time kernels that cheat and can pass, beside an honest kernel: none may look clearly faster
    Exploits(exploits::Arguments),
    /// Time kernels with and without new inputs in every call: time, ratio, memory
    Varied(varied::Arguments),
    /// Measure a worker: start to ready, a message round trip, the notice of its death, teardown
    Spawn(spawn::Arguments),
    /// Fill memory: how far a process exceeds its limit with polling, with the product, and with a limit of Linux
    Overshoot(overshoot::Arguments),
    /// Verify, switch and profile repeatedly: what each process owes, and how long a switch takes
    Cycles(cycles::Arguments),
    /// Replay with budgets from the floor to everything: wall time against max(copy, compute) of the same run
    Replay(replay::Arguments),
    /// Replay on a simulated card with a virtual clock: wall time against max(copy, compute) of the same run
    ReplayTwin(replay_twin::Arguments),
    /// Start kernels in Python with and without a zygote, and verify many beside a plain Python pool
    Python(python::Arguments),
    /// Sample sixteen workers: CPU time and memory of the sampler
    Monitor(monitor::Arguments),
    /// Measure how long `eval` takes to answer, compared with the build and the calls
    Eval(eval::Arguments),
}

/// Does the work of a child process if the first argument is the hidden one of a filler, a spinning process, a reader
/// or a worker of the product. Returns the exit code, or `None` if there is no such argument or if the worker's other
/// arguments are invalid.
fn run_as_child() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next()?;
    if first.to_str() == Some(filler::ARGUMENT) {
        return Some(filler::main(arguments));
    }
    if first.to_str() == Some(load::ARGUMENT) {
        return Some(load::main());
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
    if let Some(code) = run_as_child() {
        return code;
    }
    let done = match Arguments::parse().command {
        Command::VerifyLarge(arguments) => verify_large::run(&arguments),
        Command::Many(arguments) => many::run(&arguments),
        Command::Scale(arguments) => scale::run(&arguments),
        Command::Contest(arguments) => contest::run(&arguments),
        Command::KillStorm(arguments) => kill_storm::run(&arguments),
        Command::Reads(arguments) => reads::run(&arguments),
        Command::Captures(arguments) => captures::run(&arguments),
        Command::Residency(arguments) => residency::run(&arguments),
        Command::Timing(arguments) => timing::run(&arguments),
        Command::Honest(arguments) => honest::run(&arguments),
        Command::Exploits(arguments) => exploits::run(&arguments),
        Command::Varied(arguments) => varied::run(&arguments),
        Command::Spawn(arguments) => spawn::run(&arguments),
        Command::Overshoot(arguments) => overshoot::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::ReplayTwin(arguments) => replay_twin::run(&arguments),
        Command::Cycles(arguments) => cycles::run(&arguments),
        Command::Python(arguments) => python::run(&arguments),
        Command::Monitor(arguments) => monitor::run(&arguments),
        Command::Eval(arguments) => eval::run(&arguments),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("the results do not meet the benchmark's requirements");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
