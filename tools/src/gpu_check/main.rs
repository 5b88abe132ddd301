//! `gpu-check`: checks on a machine with a card what this project assumes about cards, and compares the card with the
//! emulated device.
//!
//! The built program is a single file that contains its kernels. Copy it to a machine with a driver and run it there;
//! it needs no toolkit, compiler or network. Each step is a separate process with a time limit, so a step that hangs or
//! crashes loses at most its own rows.

mod bus;
mod cap;
mod cases;
mod confined;
mod context;
mod cuda;
mod faults;
mod host;
mod kernels;
mod nvml;
mod pinned;
mod pool;
mod reads;
mod report;
mod row;
mod steps;
mod timer;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::faults::Attempted;
use crate::report::Report;
use crate::row::Row;
use crate::steps::{STEPS, Step};

/// The factor by which most time limits are longer in a dry run, because the CPU then does the work of the card.
const DRY_RUN_FACTOR: u32 = 3;
/// The exit code if a check failed or could not be completed.
const FAILED: u8 = 1;
/// The exit code if there is no driver or no such device, or if `--dry-run` does not match the driver.
const NO_DRIVER: u8 = 3;

/// Check a card and its driver: kernels, faults, memory limits and times, beside the emulated device. Exits with status
/// 3 if there is no driver or no such device, or if --dry-run does not match the driver
#[derive(Parser)]
#[command(name = "gpu-check", version)]
struct Arguments {
    /// The number of the device
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// A folder with 1 GiB of free space, for a test file of 512 MiB, which is removed afterwards
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results to this file as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Run only these steps
    #[arg(long, value_enum, value_delimiter = ',', value_name = "STEP,…")]
    steps: Vec<Step>,
    /// Run with small sizes on the twin of a driver, a library that imitates one, to show that the steps work. Refused
    /// on a card
    #[arg(long)]
    dry_run: bool,
    #[arg(long, hide = true)]
    run_step: Option<Step>,
    #[arg(long, hide = true)]
    attempt: Option<Attempted>,
    #[arg(long, hide = true)]
    hold: Option<context::Hold>,
    #[arg(long, hide = true)]
    under: Option<confined::Under>,
}

impl Arguments {
    fn ordinal(&self) -> Result<i32> {
        i32::try_from(self.device).context("the number of the device")
    }

    /// Returns the time limit for this run, computed from the limit for a card.
    fn limit(&self, card: Duration) -> Duration {
        if self.dry_run { card * DRY_RUN_FACTOR } else { card }
    }

    /// Returns the size or count for this run: `card` on a card, `twin` in a dry run.
    fn size(&self, card: usize, twin: usize) -> usize {
        if self.dry_run { twin } else { card }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match child(&arguments) {
        Ok(false) => check(&arguments),
        Ok(true) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Does the work of a child process, if the arguments request it. Returns false if this process is not a child.
fn child(arguments: &Arguments) -> Result<bool> {
    let is_child = arguments.run_step.is_some()
        || arguments.attempt.is_some()
        || arguments.hold.is_some()
        || arguments.under.is_some();
    if !is_child {
        return Ok(false);
    }
    set_parent_process_death_signal(Some(Signal::KILL)).context("asking to end with the parent")?;
    if let Some(step) = arguments.run_step {
        perform(step, arguments)?.iter().try_for_each(Row::send)?;
    } else if let Some(attempt) = arguments.attempt {
        faults::attempt(attempt, arguments)?;
    } else if let Some(hold) = arguments.hold {
        context::hold(hold, arguments)?;
    } else if let Some(under) = arguments.under {
        confined::start_under(under, arguments)?;
    }
    Ok(true)
}

fn perform(step: Step, arguments: &Arguments) -> Result<Vec<Row>> {
    match step {
        Step::Embedding
        | Step::Linear
        | Step::LayerNorm
        | Step::Softmax
        | Step::Gelu
        | Step::Relu
        | Step::ReluF16
        | Step::Matmul
        | Step::Digest => kernels::rows(step, arguments),
        Step::PastTheEnd => faults::past_the_end(arguments),
        Step::IllegalAddress => faults::rows(Attempted::IllegalAddress, arguments),
        Step::Misaligned => faults::rows(Attempted::Misaligned, arguments),
        Step::Trap => faults::rows(Attempted::Trap, arguments),
        Step::Assert => faults::rows(Attempted::Assert, arguments),
        Step::Endless => faults::endless(arguments),
        Step::OutOfMemory => faults::out_of_memory(arguments),
        Step::Cap => cap::rows(arguments),
        Step::Context => context::rows(arguments),
        Step::Pool => pool::rows(arguments),
        Step::Pinned => pinned::rows(arguments),
        Step::Reads => reads::rows(arguments),
        Step::Nvml => nvml::rows(arguments),
        Step::Kill => context::kill_rows(arguments),
        Step::Confined => confined::rows(arguments),
        Step::BusCopies => bus::bus_rows(arguments),
        Step::DeviceCopies => bus::device_rows(arguments),
        Step::Launches => timer::launch_rows(arguments),
        Step::Timer => timer::rows(arguments),
    }
}

fn check(arguments: &Arguments) -> ExitCode {
    let device = match cuda::Description::of(arguments) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("gpu-check: there is no CUDA driver, or no device {}: {error:#}", arguments.device);
            return ExitCode::from(NO_DRIVER);
        }
    };
    if device.is_twin != arguments.dry_run {
        let why = if device.is_twin {
            "this driver is a twin, not a card's (add --dry-run to show that the steps work)"
        } else {
            "--dry-run is for the twin of a driver, and this driver is a card's (omit it)"
        };
        eprintln!("gpu-check: {why}");
        return ExitCode::from(NO_DRIVER);
    }
    let mut report = Report::new(device);
    print!("{}", report.head());
    let started = Instant::now();
    for (step, title, limit) in STEPS {
        if !arguments.steps.is_empty() && !arguments.steps.contains(&step) {
            continue;
        }
        let ended = steps::run(step, title, arguments.limit(Duration::from_secs(limit)), arguments);
        print!("{}", report.add(step, title, ended));
    }
    report.took = started.elapsed();
    println!("{}", report.last_line());
    for (file, text) in [(&arguments.json, report.json()), (&arguments.markdown, report.markdown())] {
        if let Some(file) = file
            && let Err(error) = write(file, &text)
        {
            eprintln!("gpu-check: {error:#}");
            return ExitCode::FAILURE;
        }
    }
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}
