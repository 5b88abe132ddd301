//! Thirty ways to use up memory, each run with or without a stall of the supervisor's database, disk or terminal.
//!
//! Each way has a separate run. The stall of a database or a disk begins when the runner appears, and that of a
//! terminal when the run begins. Every stall ends a fixed time after the runner has appeared. This process measures the
//! memory of the runners itself, so that its figures do not depend on the supervisor's samples.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use opt_tests::processes::{kill_left, pids, read_process};
use opt_tests::waiting::LONG;
use serde_json::{Value, json};

use super::super::figures::{Figures, conditions, mib, show};
use super::super::product::{binary, generate};
use super::super::verify_large::tempdir;
use super::Arguments;
use super::stalls::{Kind, Stall};

/// The number of bytes by which a runner may exceed its limit.
const ALLOWED_OVER: u64 = 32 << 20;
const SOURCE: &str = include_str!("ways.c");
/// The interval at which this process samples runners.
const POLL: Duration = Duration::from_millis(2);
/// The status of a way that is stopped at the memory limit, either because Linux refuses memory or by the supervisor.
const LIMITED: &str = "HOST_MEMORY_LIMIT";
/// The status of a way that ends with an abort or a fault, if it is not recorded as a lack of memory.
const CRASHED: &str = "CRASHED";

/// The ways in `ways.c`, in the same order, each with the status of a candidate that uses it.
const WAYS: [(&str, &str); 30] = [
    ("malloc, 16 B", LIMITED),
    ("malloc, 64 KiB", LIMITED),
    ("malloc, 4 MiB", LIMITED),
    ("calloc, 1 MiB", LIMITED),
    ("realloc, growing", LIMITED),
    ("posix_memalign, 2 MiB", LIMITED),
    ("sbrk", LIMITED),
    ("map, one page", LIMITED),
    ("map, 64 MiB", LIMITED),
    ("map, no reserve", LIMITED),
    ("map, populated", LIMITED),
    ("map, huge pages", LIMITED),
    ("map, made writable later", LIMITED),
    ("mremap, growing", CRASHED),
    ("MADV_POPULATE_WRITE", LIMITED),
    ("shared map", CRASHED),
    ("shared map, populated", CRASHED),
    ("page tables", LIMITED),
    ("page tables, 8 threads", LIMITED),
    ("maps, 8 threads", LIMITED),
    ("malloc, 8 threads", LIMITED),
    ("recursion", CRASHED),
    ("stacks of threads", CRASHED),
    ("filled by the kernel", LIMITED),
    ("1 MiB each ms", LIMITED),
    ("bursts of 128 MiB", LIMITED),
    ("maps with holes", LIMITED),
    ("one byte of each page", LIMITED),
    ("page tables, slowly", LIMITED),
    ("memfd", CRASHED),
];

pub(super) fn run(arguments: &Arguments, kind: Kind) -> Result<bool> {
    let conditions = conditions("captures have just been made")?;
    let folder = tempdir()?;
    generate(&["op", "--name", "softmax", "--shape", "64,256", "--entries", "1"], &folder.join("captures"))?;
    let kernels =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/kernels/hostile").canonicalize()?;
    std::fs::copy(kernels.join("hostile.h"), folder.join("hostile.h"))?;
    std::fs::copy(kernels.join("good.c"), folder.join("good.c"))?;
    let mut rows = Vec::new();
    let mut over = Figures::default();
    let mut good = true;
    if !arguments.json {
        println!("| way | status | over the limit, MiB | run, s | right |\n|---|---|---|---|---|");
    }
    for (number, (name, status)) in WAYS.iter().enumerate().skip(arguments.first).take(arguments.ways) {
        let end = run_way(kind, &folder, number, arguments.limit)?;
        let stalled = end.stalled != Duration::ZERO || !matches!(kind, Kind::Store | Kind::Disk);
        let right = end.status == *status
            && end.after == "PASSED"
            && end.code == Some(0)
            && stalled
            && end.over <= ALLOWED_OVER;
        good &= right;
        over.push(mib(end.over));
        if !arguments.json {
            println!(
                "| {number}: {name} | {} | {:.1} | {:.1} | {} |",
                end.status,
                mib(end.over),
                end.took.as_secs_f64(),
                if right { "yes" } else { "NO" }
            );
        }
        if !right {
            eprintln!(
                "way {number}: expected {status}; detail: {}; next candidate: {}; exit code: {:?}",
                end.detail, end.after, end.code
            );
        }
        rows.push(json!({ "way": name, "status": end.status, "detail": end.detail, "right": right,
                          "over_bytes": end.over, "supervisor_peak_bytes": end.sampled, "stalled_s": end.stalled.as_secs_f64() }));
    }
    std::fs::remove_dir_all(&folder)?;
    let sheet = json!({
        "benchmark": "overshoot_stalled", "conditions": conditions, "stall": kind.name(), "ways": rows,
        "limit_bytes": arguments.limit << 20, "overshoot": over.to_json("MiB"), "good": good,
    });
    show(arguments.json, &sheet, || {
        println!(
            "Stall: {}. Over the limit of {} MiB in {} ways, MiB: median {:.1}, most {:.1}.",
            kind.name(),
            arguments.limit,
            over.count(),
            over.median(),
            over.max()
        );
    })?;
    Ok(good)
}

struct End {
    code: Option<i32>,
    status: String,
    detail: String,
    /// The status of the candidate that runs next.
    after: String,
    /// The number of bytes above the limit, as measured by this process.
    over: u64,
    /// The peak that the supervisor recorded.
    sampled: Value,
    /// How long the stall lasted, or zero if the run ended first.
    stalled: Duration,
    took: Duration,
}

/// A supervisor that has been started. Dropping this value kills the supervisor and its processes.
struct Run {
    child: Child,
    folder: PathBuf,
}

impl Drop for Run {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
            kill_left(self.child.id(), &self.folder);
        }
    }
}

fn run_way(kind: Kind, folder: &Path, number: usize, limit: u64) -> Result<End> {
    let own = folder.join(format!("{number}"));
    std::fs::create_dir(&own)?;
    std::fs::write(folder.join("way.c"), format!("#define WAY {number}\n{SOURCE}"))?;
    let plan = folder.join("plan.toml");
    std::fs::write(
        &plan,
        format!(
            "[run]\nname = \"overshoot\"\nstages = [\"build\", \"verify\"]\n[build]\nlibraries = [\"m\"]\n\
             [limits]\nmemory = \"{limit}MiB\"\nthreads = 8\n[[job]]\nname = \"job\"\ncaptures = \"captures\"\n\
             candidates = [\"way.c\", \"good.c\"]\n"
        ),
    )?;
    let mut stall = Stall::prepare(kind, &own)?;
    let [stdout, stderr] = stall.outputs()?;
    let began = Instant::now();
    let child = Command::new(binary("opt-supervisor")?)
        .arg("run")
        .arg(&plan)
        .arg("--dir")
        .arg(&stall.run)
        .args(["--set", "run.verifiers=1"])
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .context("starting opt-supervisor")?;
    let mut run = Run { child, folder: own.clone() };
    let mut most = 0;
    let mut stalled_at: Option<Instant> = None;
    let mut stalled = Duration::ZERO;
    let code = loop {
        for pid in runners(run.child.id()) {
            most = most.max(owed(pid).unwrap_or_default());
            if stalled_at.is_none() {
                stall.begin()?;
                stalled_at = Some(Instant::now());
            }
        }
        if let Some(at) = stalled_at.filter(|at| stalled == Duration::ZERO && kind.length() <= at.elapsed()) {
            stall.end();
            stalled = at.elapsed().max(Duration::from_nanos(1));
        }
        if let Some(status) = run.child.try_wait()? {
            break status.code();
        }
        ensure!(began.elapsed() < LONG, "way {number}: the run does not end");
        std::thread::sleep(POLL);
    };
    let took = began.elapsed();
    stall.end();
    let summary = std::fs::read(stall.run.join("summary.json")).context("reading the summary")?;
    let summary: Value = serde_json::from_slice(&summary)?;
    let candidates = summary["jobs"][0]["candidates"].as_array().context("the summary has no candidates")?;
    let of = |name: &str| candidates.iter().find(|it| it["name"] == name).cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (way, after) = (of("way"), of("good"));
    drop(stall);
    std::fs::remove_dir_all(&own)?;
    Ok(End {
        code,
        status: text(&way["status"]),
        detail: text(&way["detail"]),
        after: text(&after["status"]),
        over: most.saturating_sub(limit << 20),
        sampled: way["resources"]["runner_peak_owed_bytes"].clone(),
        stalled,
        took,
    })
}

fn runners(supervisor: u32) -> Vec<u32> {
    let all: Vec<_> = pids().filter_map(read_process).collect();
    let is = |arguments: &[String], what: &str| arguments.get(1).is_some_and(|it| it == what);
    let workers: Vec<u32> = all
        .iter()
        .filter(|it| it.parent == supervisor && is(&it.arguments, "__worker"))
        .map(|it| it.pid)
        .collect();
    all.iter()
        .filter(|it| workers.contains(&it.parent) && is(&it.arguments, "__runner"))
        .map(|it| it.pid)
        .collect()
}

/// Returns the largest number of bytes that a process has owed so far: its peak without the file pages that it has now,
/// its page tables, and its swapped pages.
fn owed(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    let resident = kib("VmHWM:")?.saturating_sub(kib("RssFile:")?);
    Some((resident + kib("VmPTE:")? + kib("VmSwap:")?) << 10)
}
