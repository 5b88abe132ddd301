//! Measures the product on the large embedding set, with a kernel that looks up rows and a kernel that reads
//! everything.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use opt_shared::arguments::{Entry, outputs};
use opt_shared::capture::CaptureFile;
use rand::{Rng, SeedableRng};
use rustix::fs::{Advice, fadvise};
use serde_json::json;

use super::{Rates, Section, prepare, timed};
use crate::product::{binary, run_json};
use crate::verify_large::median;

const DENSE: &str = include_str!("dense.c");
const SPARSE: &str = include_str!("../../../../configs/demo/embedding/fast.c");
/// The number of rows, and also of pages, that are read from each file to measure latency.
const SAMPLES: u32 = 100;

/// The rows of the set that a kernel must read.
struct Rows {
    touched: u64,
    /// The average time to read a row.
    seconds: f64,
    /// The average time to read a page, which is the shortest time that a page fault can take.
    page_seconds: f64,
}

struct Verified {
    seconds: f64,
    /// The bytes that all processes of the run read from the disk, including those read for the build and the survey.
    disk: u64,
    /// The number of pages that the candidate touched while they were not in the cache.
    pages: u64,
}

pub(super) fn run(folder: &Path, captures: &Path, runs: u32) -> Result<Section> {
    if !captures.exists() {
        let status = Command::new(binary("gen-captures")?)
            .args(["embedding", "--entries", "20", "--out"])
            .arg(captures)
            .stdout(std::process::Stdio::null())
            .status()
            .context("starting gen-captures")?;
        ensure!(status.success(), "gen-captures failed");
    }
    let mut files: Vec<PathBuf> = std::fs::read_dir(captures)?.flatten().map(|it| it.path()).collect();
    files.retain(|path| path.extension().is_some_and(|it| it == "pt"));
    files.sort();
    let bytes: u64 = files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|it| it.len()).sum();
    let mut text =
        format!("{} files, {:.2} GB, verified cold, {runs} runs\n\n", files.len(), bytes as f64 / 1e9);
    let (mut raw, mut sparse, mut dense, mut expected, mut faults) = (vec![], vec![], vec![], vec![], vec![]);
    let (mut sparse_disk, mut dense_disk, mut rows_touched, mut pages_touched) = (0, 0, 0, 0);
    for _ in 0..runs {
        let rows = rows(&files)?;
        expected.push(rows.touched as f64 * rows.seconds);
        rows_touched = rows.touched;
        raw.push(cold(&files, || dd(&files))?);
        let verified = verify(folder, captures, &files, SPARSE, "sparse")?;
        sparse.push(verified.seconds);
        sparse_disk = sparse_disk.max(verified.disk);
        faults.push(verified.pages as f64 * rows.page_seconds);
        pages_touched = verified.pages;
        let verified = verify(folder, captures, &files, DENSE, "dense")?;
        dense.push(verified.seconds);
        dense_disk = dense_disk.max(verified.disk);
        raw.push(cold(&files, || dd(&files))?);
    }
    let (time, latency, fault_time) = (median(&mut sparse), median(&mut expected), median(&mut faults));
    let page_bytes = pages_touched * rustix::param::page_size() as u64;
    let raw_rates = Rates::of(bytes, &mut raw);
    let dense_rates = Rates::of(bytes, &mut dense);
    let dense_share = dense_rates.median / raw_rates.median;
    let (raw, dense) = (median(&mut raw), median(&mut dense));
    let mb = |bytes: u64| bytes as f64 / 1e6;
    text += "| what | seconds | GB/s of file bytes (least–most) | MB from the disk |\n|---|---|---|---|\n";
    text += &format!(
        "| `dd`, direct, before and after | {raw:.2} | {raw_rates} | – |\n\
         | {rows_touched} rows × latency of one read of a row | {latency:.2} | – | – |\n\
         | {pages_touched} pages of them × latency of one read of a page | {fault_time:.2} | – | {:.0} |\n\
         | verify, rows looked up | {time:.2} | – | {:.0} |\n\
         | verify, all read | {dense:.2} | {dense_rates} | {:.0} |\n\n",
        mb(page_bytes),
        mb(sparse_disk),
        mb(dense_disk)
    );
    text += &format!(
        "Rows looked up: verification took {:.2} times as long as rows × latency, and {:.2} times as long as pages × \
         latency. All read: {:.0} % of the raw rate.\n\n",
        time / latency,
        time / fault_time,
        dense_share * 100.0
    );
    Ok(Section {
        text,
        sheet: json!({
            "files": files.len(), "bytes": bytes, "raw": raw_rates.to_json(), "dense": dense_rates.to_json(),
            "dense_disk_bytes": dense_disk, "sparse_seconds": time, "sparse_disk_bytes": sparse_disk,
            "rows": rows_touched, "rows_times_latency_seconds": latency, "pages": pages_touched,
            "pages_times_latency_seconds": fault_time, "dense_over_raw": dense_share,
        }),
        good: sparse_disk <= 200_000_000 && time <= 1.3 * latency && 0.85 <= dense_share,
    })
}

fn verify(folder: &Path, captures: &Path, files: &[PathBuf], kernel: &str, name: &str) -> Result<Verified> {
    let source = folder.join(format!("{name}.c"));
    std::fs::write(&source, kernel)?;
    let plan = folder.join(format!("{name}.toml"));
    let text = format!(
        "[run]\nname = \"{name}\"\nstages = [\"build\", \"verify\"]\n[memory]\nhost_ceiling = \"1GiB\"\n\
         [build]\nmemory = \"512MiB\"\n[limits]\nmemory = \"128MiB\"\n[[job]]\ncaptures = {:?}\nbaseline = {source:?}\n",
        captures.canonicalize()?,
    );
    std::fs::write(&plan, text)?;
    // The files are dropped from the cache before the program starts, so its survey must read their headers from the
    // disk.
    files.iter().try_for_each(|file| prepare(file, true))?;
    let before = children_read()?;
    let summary = run_json(&plan, &[])?;
    let disk = children_read()? - before;
    let candidate = &summary["jobs"][0]["candidates"][0];
    ensure!(candidate["status"] == "PASSED", "{name}: {} {}", candidate["status"], candidate["detail"]);
    eprintln!("{name}: {}", candidate["verify"]["reads"]);
    let seconds = candidate["verify"]["ms"].as_f64().context("no time in the summary")? / 1e3;
    let touched = candidate["verify"]["reads"]["touched_bytes"]
        .as_u64()
        .context("the summary has no `touched_bytes`")?;
    Ok(Verified { seconds, disk, pages: touched / rustix::param::page_size() as u64 })
}

/// Returns the bytes that children which have ended, and their descendants, have read from the disk.
fn children_read() -> Result<u64> {
    // SAFETY: the structure consists of plain numbers, so zeros are valid. The call fills it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes only to `usage`.
    let result = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    ensure!(result == 0, "getrusage failed");
    Ok(u64::try_from(usage.ru_inblock)? * 512)
}

fn cold(files: &[PathBuf], what: impl FnOnce() -> Result<()>) -> Result<f64> {
    files.iter().try_for_each(|file| prepare(file, true))?;
    timed(what)
}

fn dd(files: &[PathBuf]) -> Result<()> {
    for file in files {
        let input = format!("if={}", file.display());
        let args = [&input, "of=/dev/null", "bs=4M", "iflag=direct", "status=none"];
        ensure!(Command::new("dd").args(args).status()?.success(), "dd failed");
    }
    Ok(())
}

/// Counts the rows that the entries look up. Times reads of random rows and pages while the files are cold.
fn rows(files: &[PathBuf]) -> Result<Rows> {
    let mut random = rand::rngs::StdRng::seed_from_u64(5);
    let (mut touched, mut seconds, mut weighted, mut pages) = (0, 0.0, 0.0, 0.0);
    for path in files {
        prepare(path, true)?;
        let capture = CaptureFile::open(path)?;
        let outputs = outputs(&Entry::from_value(capture.root())?)?;
        let output = &outputs.first().with_context(|| format!("{} has no output", path.display()))?.tensor;
        let (count, width) = (output.shape[1], output.shape[2] * output.dtype.size());
        let table = capture
            .storages()
            .iter()
            .max_by_key(|it| it.bytes)
            .with_context(|| format!("{} has no storage", path.display()))?;
        let file = File::open(path)?;
        fadvise(&file, 0, None, Advice::Random)?;
        let mut row = vec![0; usize::try_from(width)?];
        let start = Instant::now();
        for _ in 0..SAMPLES {
            let index = random.random_range(0..table.bytes.get() / width);
            file.read_exact_at(&mut row, table.file_offset + index * width)?;
        }
        seconds = start.elapsed().as_secs_f64() / f64::from(SAMPLES);
        weighted += seconds * count as f64;
        let mut page = vec![0; rustix::param::page_size()];
        let page_bytes = page.len() as u64;
        let start = Instant::now();
        for _ in 0..SAMPLES {
            let index = random.random_range(0..table.bytes.get() / page_bytes);
            file.read_exact_at(&mut page, (table.file_offset / page_bytes + index) * page_bytes)?;
        }
        pages += start.elapsed().as_secs_f64() / f64::from(SAMPLES);
        touched += count;
    }
    ensure!(0.0 < seconds, "there are no captures, so no row was read");
    Ok(Rows { touched, seconds: weighted / touched as f64, page_seconds: pages / files.len() as f64 })
}
