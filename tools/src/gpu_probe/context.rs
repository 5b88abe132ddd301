//! Measures the time and memory that a context needs, and whether the memory of a killed process is freed.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::cuda::Device;
use crate::table::{Row, change, mib, resident};
use crate::{Section, command};

/// The device memory that the killed process holds, in bytes.
pub(crate) const HELD: u64 = 1 << 30;
/// The tolerance for allocations of other processes, in bytes.
const SLACK: u64 = 64 << 20;
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn rows(device: i32) -> Result<Vec<Row>> {
    let before = resident();
    let started = Instant::now();
    Device::initialise()?;
    let initialised = started.elapsed();
    let open = Device::retain(device)?;
    let created = started.elapsed();
    let host = change(&before, &resident());
    let free_before = open.free_bytes()?;
    let child = started_child(device, Section::HoldContext)?;
    let taken = free_before.saturating_sub(open.free_bytes()?);
    end(child)?;
    Ok(vec![
        Row::new(
            "time to make a context",
            format!("{:.0} ms", created.as_secs_f64() * 1e3),
            format!("of which cuInit: {:.0} ms", initialised.as_secs_f64() * 1e3),
        ),
        Row::new(
            "device memory of a context",
            mib(taken),
            "free memory before a second process starts, minus free memory while it runs",
        ),
        Row::new("host memory of a context", host, "/proc/self/status"),
    ])
}

pub(crate) fn kill_rows(device: i32) -> Result<Vec<Row>> {
    let open = Device::open(device)?;
    let before = open.free_bytes()?;
    let mut child = started_child(device, Section::HoldMemory)?;
    let during = open.free_bytes()?;
    ensure!(
        during + HELD / 2 < before,
        "the child's allocation is not visible ({} free before, {} free while it runs)",
        mib(before),
        mib(during)
    );
    let killed = Instant::now();
    child.kill().context("killing the child")?;
    child.wait().context("reaping the child")?;
    let reaped = killed.elapsed();
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
    Ok(vec![Row::new("SIGKILL: does device memory come back?", answer, figures)])
}

/// In the child: creates a context, allocates memory, reports that it is ready, and waits to be killed.
pub(crate) fn hold(device: i32, bytes: u64) -> Result<()> {
    let open = Device::open(device)?;
    if bytes != 0 {
        open.allocate(bytes)?;
    }
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn started_child(device: i32, section: Section) -> Result<Child> {
    let mut child = command(section, device)?
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
