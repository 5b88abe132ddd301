//! Measures how fast captures are read, and how much of each capture is read. Compares every read method with raw reads
//! of the same bytes in the same run.
//!
//! *Cold* means that a file was read into the page cache once and then dropped from it. Each round measures raw reads
//! before the read methods and, except for reads through a map, also after them.

mod kernels;
mod owed;
mod streams;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::fs::{Advice, fadvise};
use serde_json::{Value, json};

use super::figures::{conditions, show};

pub(crate) use owed::{ARGUMENT as STREAM_ARGUMENT, main as stream_main};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A folder of captures made by `gen-captures embedding`, for the kernels; generated if it does not exist
    #[arg(long, default_value = "/tmp/opt-bench-embedding")]
    captures: PathBuf,
    /// The size of the file with which the methods are compared, in GiB
    #[arg(long, default_value_t = 2)]
    gib: u64,
    /// Runs of each kind
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Compare only the read methods
    #[arg(long)]
    streams_only: bool,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
}

/// A part of the benchmark: its tables as text and as JSON, and whether the part meets its requirements.
struct Section {
    text: String,
    sheet: Value,
    good: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let conditions = conditions("cold is read once and dropped, warm is read once")?;
    let folder = super::verify_large::tempdir()?;
    let streams = streams::run(&folder, arguments.gib << 30, arguments.runs)?;
    let kernels = match arguments.streams_only {
        true => Section { text: String::new(), sheet: Value::Null, good: true },
        false => kernels::run(&folder, &arguments.captures, arguments.runs)?,
    };
    std::fs::remove_dir_all(&folder)?;
    let good = streams.good && kernels.good;
    let sheet = json!({
        "benchmark": "reads", "conditions": conditions, "runs": arguments.runs, "streams": streams.sheet,
        "kernels": kernels.sheet, "good": good,
    });
    show(arguments.json, &sheet, || print!("{}{}", streams.text, kernels.text))?;
    Ok(good)
}

/// Reads the file into the page cache. If `cold` is true, drops it again.
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

/// Rates in GB/s: the median and the extremes.
struct Rates {
    median: f64,
    least: f64,
    most: f64,
}

impl Rates {
    fn of(bytes: u64, seconds: &mut [f64]) -> Self {
        let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
        let median = super::verify_large::median(seconds);
        let (shortest, longest) = (seconds.first().copied(), seconds.last().copied());
        let extreme = |seconds: Option<f64>| seconds.map_or(f64::NAN, rate);
        Self { median: rate(median), least: extreme(longest), most: extreme(shortest) }
    }

    fn to_json(&self) -> Value {
        json!({ "unit": "GB/s", "median": self.median, "least": self.least, "most": self.most })
    }
}

impl std::fmt::Display for Rates {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:.2} ({:.2}–{:.2})", self.median, self.least, self.most)
    }
}
