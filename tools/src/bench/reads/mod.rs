//! How fast captures are read, and how much of them: every way beside a raw read of the same bytes in the same run.
//!
//! Cold means: read once into the cache, so that the machine has memory for it, and dropped by its descriptor. Raw reads
//! come before and after what they are compared with.

mod kernels;
mod owed;
mod streams;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::fs::{Advice, fadvise};

pub(crate) use owed::{ARGUMENT as STREAM_ARGUMENT, main as stream_main};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Captures made by `gen-captures embedding`, for the kernels; made here if the folder does not exist
    #[arg(long, default_value = "/tmp/opt-bench-embedding")]
    captures: PathBuf,
    /// GiB of the file that the ways of reading are compared over
    #[arg(long, default_value_t = 2)]
    gib: u64,
    /// Runs of each kind
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Compare ways of reading only
    #[arg(long)]
    streams_only: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("Load before: {}\n", load.trim());
    let folder = super::verify_large::tempdir()?;
    let streams = streams::run(&folder, arguments.gib << 30, arguments.runs)?;
    let kernels = arguments.streams_only || kernels::run(&folder, &arguments.captures, arguments.runs)?;
    std::fs::remove_dir_all(&folder)?;
    Ok(streams && kernels)
}

/// Fills the cache with the file and drops it, or leaves it there.
fn prepare(path: &Path, cold: bool) -> Result<()> {
    let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    std::io::copy(&mut file, &mut std::io::sink())?;
    if cold {
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

fn timed(what: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    what()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Median with the extremes, as rates.
fn rates(bytes: u64, seconds: &mut [f64]) -> String {
    let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
    let median = super::verify_large::median(seconds);
    let (least, most) = (seconds.first().copied(), seconds.last().copied());
    format!("{:.2} ({:.2}–{:.2})", rate(median), most.map_or(f64::NAN, rate), least.map_or(f64::NAN, rate))
}
