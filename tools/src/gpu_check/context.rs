//! Measures the time and the memory that a context needs, and tests whether the memory of a killed process is freed.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use opt_shared::formula::DEVICE_CONTEXT;

use crate::Arguments;
use crate::cuda::Device;
use crate::row::{Judgement, Row, change, mib, resident};
use crate::steps::own_command;

/// The device memory that the killed process had allocated, in bytes.
const HELD: u64 = 1 << 30;
const HELD_ON_TWIN: u64 = 64 << 20;
/// The tolerance for allocations by other processes, in bytes.
const SLACK: u64 = 64 << 20;
const TIMEOUT: Duration = Duration::from_secs(10);

/// What a child process holds until it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Hold {
    Context,
    Memory,
}

impl Hold {
    const fn name(self) -> &'static str {
        match self {
            Self::Context => "context",
            Self::Memory => "memory",
        }
    }
}

pub(crate) fn rows(arguments: &Arguments) -> Result<Vec<Row>> {
    let before = resident();
    let started = Instant::now();
    Device::initialise()?;
    let initialised = started.elapsed();
    let open = Device::retain(arguments.ordinal()?)?;
    let created = started.elapsed();
    let host = change(&before, &resident());
    let free_before = open.free_bytes()?;
    let child = started_child(Hold::Context, arguments)?;
    let taken = free_before.saturating_sub(open.free_bytes()?);
    end(child)?;
    Ok(vec![
        Row::measured(
            "time to create a context",
            format!("{:.0} ms", created.as_secs_f64() * 1e3),
            format!("of which cuInit: {:.0} ms", initialised.as_secs_f64() * 1e3),
        ),
        Row::new(
            "device memory of a context",
            Judgement::of(taken <= DEVICE_CONTEXT.get()),
            mib(taken),
            format!(
                "free memory before a second process starts, minus free memory while it runs; predictions reserve {}",
                mib(DEVICE_CONTEXT.get())
            ),
        ),
        Row::measured("host memory of a context", host, "/proc/self/status"),
    ])
}

pub(crate) fn kill_rows(arguments: &Arguments) -> Result<Vec<Row>> {
    const CHECK: &str = "SIGKILL: does device memory come back?";
    let open = Device::open(arguments)?;
    let before = open.free_bytes()?;
    let mut child = started_child(Hold::Memory, arguments)?;
    let during = open.free_bytes()?;
    let is_visible = during + HELD / 2 < before;
    ensure!(
        is_visible || arguments.dry_run,
        "the child's allocation is not visible ({} free before, {} free while it runs)",
        mib(before),
        mib(during)
    );
    let killed = Instant::now();
    child.kill().context("killing the child")?;
    child.wait().context("reaping the child")?;
    let reaped = killed.elapsed();
    if !is_visible {
        let why = "each process has a twin of its own, so no other process's memory is visible";
        return Ok(vec![Row::new(CHECK, Judgement::Skipped, "-", why)]);
    }
    let at_reaping = open.free_bytes()?;
    while open.free_bytes()? + SLACK < before && killed.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(1));
    }
    let back = killed.elapsed();
    let answer = if open.free_bytes()? + SLACK < before {
        format!("not within {} s", TIMEOUT.as_secs())
    } else if at_reaping + SLACK >= before {
        "yes, by the time it is reaped".to_owned()
    } else {
        "yes, some time after it is reaped".to_owned()
    };
    let figures = format!(
        "{} allocated; child reaped after {:.1} ms; memory free again after {:.1} ms; {} still in use when reaped",
        mib(before - during),
        reaped.as_secs_f64() * 1e3,
        back.as_secs_f64() * 1e3,
        mib(before.saturating_sub(at_reaping))
    );
    Ok(vec![Row::measured(CHECK, answer, figures)])
}

/// The work of the child: creates a context, allocates memory if asked to, reports that it is ready, and waits until it
/// is killed or its standard input is closed.
pub(crate) fn hold(what: Hold, arguments: &Arguments) -> Result<()> {
    let open = Device::open(arguments)?;
    if what == Hold::Memory {
        open.allocate(if arguments.dry_run { HELD_ON_TWIN } else { HELD })?;
    }
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn started_child(what: Hold, arguments: &Arguments) -> Result<Child> {
    let mut child = own_command(arguments)?
        .args(["--hold", what.name()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting a child")?;
    let mut line = String::new();
    let out = child.stdout.as_mut().context("a child without output")?;
    BufReader::new(out).read_line(&mut line)?;
    ensure!(line.trim() == "ready", "the child could not get its context or memory");
    Ok(child)
}

fn end(mut child: Child) -> Result<()> {
    drop(child.stdin.take());
    child.wait().context("reaping a child")?;
    Ok(())
}
