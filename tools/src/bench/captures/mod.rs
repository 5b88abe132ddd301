//! Measures packing, checking and unpacking a capture store, and compares each with an upper limit measured in the same
//! run: reading and hashing the same bytes once, or copying them, with as many threads.
//!
//! Each run measures the limit, then the store, then the limit again. A ratio is the mean of the two times of the limit
//! divided by the time of the store, so 1 means that the store is as fast as its limit. *Cold* means that the files
//! were read into the page cache once and then dropped from it.

mod raw;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use opt_shared::capture::store::BLOBS;
use opt_supervisor::captures::{self, Origin, check, unpack};
use serde_json::{Value, json};

use super::figures::{Figures, conditions, mib, show};
use super::product::binary;
use super::verify_large::{captures as files_of, tempdir};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A folder of captures; by default, a set is generated with `gen-captures --incident`
    #[arg(long)]
    captures: Option<PathBuf>,
    /// The scale of the generated set; 0.02 makes about 1 GiB
    #[arg(long, default_value_t = 0.02)]
    scale: f64,
    /// How often to measure each operation with each state of the cache
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Measure only with files that are not in the page cache
    #[arg(long)]
    cold_only: bool,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
}

/// The rates of one operation in one state of the cache, in GB/s.
struct Part {
    name: &'static str,
    /// The name of the operation that serves as the limit.
    limit: &'static str,
    cache: &'static str,
    bytes: u64,
    /// The rates of the limit, measured before and after the operation.
    before: Figures,
    after: Figures,
    ours: Figures,
    /// The rate of the operation, relative to that of the limit.
    share: Figures,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let states: &[&'static str] = if arguments.cold_only { &["cold"] } else { &["cold", "warm"] };
    let conditions = conditions("cold: filled and dropped before each measurement; warm: filled")?;
    let folder = tempdir()?;
    let set = match &arguments.captures {
        Some(set) => set.clone(),
        None => generate(&folder.join("set"), arguments.scale)?,
    };
    let files = files_of(&set)?;
    let threads = captures::threads();
    let mut work = Work { store: folder.join("store"), out: folder.join("out"), set, files, threads };
    let (mut good, mut parts) = (true, Vec::new());
    for &cache in states {
        parts.push(work.packing(cache, arguments.runs)?);
        let (part, found) = work.checking(cache, arguments.runs)?;
        good &= found == 0;
        parts.push(part);
        parts.push(work.unpacking(cache, arguments.runs)?);
    }
    let (bytes, packed) = (size_of(&work.files)?, size_of(&work.blobs()?)?);
    std::fs::remove_dir_all(&folder)?;
    let sheet = json!({
        "benchmark": "captures", "conditions": conditions, "threads": threads, "runs": arguments.runs,
        "files": work.files.len(), "bytes": bytes, "blob_bytes": packed,
        "parts": parts.iter().map(Part::to_json).collect::<Vec<_>>(), "good": good,
    });
    show(arguments.json, &sheet, || {
        let files = work.files.len();
        println!(
            "{files} files of {:.0} MiB, {:.0} MiB in blobs, {threads} threads\n",
            mib(bytes),
            mib(packed)
        );
        println!("| what | cache | limit, GB/s: before | after | ours, GB/s | ours over the limit | limit |");
        println!("|---|---|---|---|---|---|---|");
        parts.iter().for_each(Part::print);
    })?;
    Ok(good)
}

fn generate(folder: &Path, scale: f64) -> Result<PathBuf> {
    let status = Command::new(binary("gen-captures")?)
        .args(["--incident", "--scale", &scale.to_string(), "--out"])
        .arg(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("starting gen-captures")?;
    ensure!(status.success(), "gen-captures failed (is there room in {}?)", folder.display());
    Ok(folder.to_owned())
}

struct Work {
    set: PathBuf,
    files: Vec<PathBuf>,
    store: PathBuf,
    out: PathBuf,
    threads: usize,
}

impl Work {
    /// Measures packing. Keeps one store for the measurements that follow.
    fn packing(&mut self, cache: &'static str, runs: u32) -> Result<Part> {
        let limit = "reading + BLAKE3 of the same files";
        let mut part = Part::new("pack", limit, cache, size_of(&self.files)?);
        for _ in 0..runs {
            let before = self.hashed(&self.files, cache)?;
            remove(&self.store)?;
            prepare(&self.files, cache)?;
            let origin =
                Origin { tool: "bench".to_owned(), packed_by: String::new(), started: String::new() };
            let ours = timed(|| {
                captures::pack(&self.set, &self.store, origin, |_| {}, &|_| {})?;
                Ok(())
            })?;
            let after = self.hashed(&self.files, cache)?;
            part.add(before, ours, after);
        }
        Ok(part)
    }

    fn checking(&self, cache: &'static str, runs: u32) -> Result<(Part, usize)> {
        let blobs = self.blobs()?;
        let mut part = Part::new("check", "reading + BLAKE3 of the same blobs", cache, size_of(&blobs)?);
        let mut found = 0;
        for _ in 0..runs {
            let before = self.hashed(&blobs, cache)?;
            prepare(&blobs, cache)?;
            let ours = timed(|| {
                found += check::check(&self.store, |_| {}, &|_| {})?.findings.len();
                Ok(())
            })?;
            let after = self.hashed(&blobs, cache)?;
            part.add(before, ours, after);
        }
        Ok((part, found))
    }

    fn unpacking(&self, cache: &'static str, runs: u32) -> Result<Part> {
        let limit = "reading the files that come out and writing them again, flushed";
        let mut part = Part::new("unpack", limit, cache, size_of(&self.files)?);
        let blobs = self.blobs()?;
        for _ in 0..runs {
            let before = self.copied(cache)?;
            prepare(&blobs, cache)?;
            let ours = timed(|| {
                let made = unpack::unpack(&self.store, &self.out, &[], |_| {}, &|_| {})?;
                let wanted = self.files.len() as u64;
                ensure!(made.written == wanted, "{} of {wanted} files were written", made.written);
                Ok(())
            })?;
            remove(&self.out)?;
            let after = self.copied(cache)?;
            part.add(before, ours, after);
        }
        Ok(part)
    }

    fn hashed(&self, files: &[PathBuf], cache: &str) -> Result<f64> {
        prepare(files, cache)?;
        timed(|| raw::read_and_hash(files, self.threads))
    }

    fn copied(&self, cache: &str) -> Result<f64> {
        prepare(&self.files, cache)?;
        let seconds = timed(|| raw::copy(&self.files, &self.out, self.threads))?;
        remove(&self.out)?;
        Ok(seconds)
    }

    fn blobs(&self) -> Result<Vec<PathBuf>> {
        let mut blobs = Vec::new();
        for folder in std::fs::read_dir(self.store.join(BLOBS))? {
            for blob in std::fs::read_dir(folder?.path())? {
                blobs.push(blob?.path());
            }
        }
        blobs.sort();
        Ok(blobs)
    }
}

impl Part {
    fn new(name: &'static str, limit: &'static str, cache: &'static str, bytes: u64) -> Self {
        let [before, ours, after, share] = std::array::from_fn(|_| Figures::default());
        Self { name, limit, cache, bytes, before, ours, after, share }
    }

    /// Adds the times of one run, in seconds.
    fn add(&mut self, before: f64, ours: f64, after: f64) {
        let rate = |seconds: f64| self.bytes as f64 / seconds / 1e9;
        self.share.push((before + after) / 2.0 / ours);
        let [before, ours, after] = [before, ours, after].map(rate);
        self.before.push(before);
        self.ours.push(ours);
        self.after.push(after);
    }

    fn to_json(&self) -> Value {
        json!({
            "part": self.name, "cache": self.cache, "bytes": self.bytes, "limit": self.limit,
            "limit_before": self.before.to_json("GB/s"), "ours": self.ours.to_json("GB/s"),
            "limit_after": self.after.to_json("GB/s"), "ours_over_limit": self.share.to_json("ratio"),
        })
    }

    fn print(&self) {
        println!(
            "| {} of {:.0} MiB | {} | {:.2} | {:.2} | {:.2} | {:.2} | {} |",
            self.name,
            mib(self.bytes),
            self.cache,
            self.before.median(),
            self.after.median(),
            self.ours.median(),
            self.share.median(),
            self.limit,
        );
    }
}

/// Reads all files into the page cache. For a cold run, drops them again.
fn prepare(files: &[PathBuf], cache: &str) -> Result<()> {
    use super::verify_large::prepare;
    prepare(files, "warm")?;
    if cache == "cold" { prepare(files, cache) } else { Ok(()) }
}

fn size_of(files: &[PathBuf]) -> Result<u64> {
    files.iter().map(|file| Ok(std::fs::metadata(file)?.len())).sum()
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    Ok(())
}

fn timed(what: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    what()?;
    Ok(start.elapsed().as_secs_f64())
}
