//! Measures how the supervisor's time, its memory, the longest iteration of its main loop, and its database grow with
//! the number of candidates. One verifier verifies prebuilt candidates with one small entry each.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::json;

use super::figures::{conditions, mib, show};
use super::many::libraries;
use super::product::binary;
use super::verify_large::{captures, tempdir};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Numbers of candidates, one run for each
    #[arg(long, default_values_t = [100, 1000])]
    candidates: Vec<u32>,
    /// The build of opt-supervisor; by default, the program beside this one
    #[arg(long)]
    product: Option<PathBuf>,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
}

/// The targets: resident memory, CPU time for each candidate, and the longest iteration of the main loop.
const MAX_RESIDENT_MIB: f64 = 20.0;
const MAX_CPU_MS: f64 = 1.5;
const MAX_TURN_MS: f64 = 20.0;

/// The interval at which the supervisor is sampled.
const LOOK: Duration = Duration::from_millis(20);

/// The resources that the supervisor's process had used at its last sample.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    main_thread: Duration,
    all_threads: Duration,
    peak_resident: u64,
}

/// The parts of `summary.json` that this benchmark needs.
#[derive(Deserialize)]
struct Summary {
    memory: Memory,
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Memory {
    sampling: Sampling,
}

#[derive(Deserialize)]
struct Sampling {
    worst_turn_us: u64,
}

#[derive(Deserialize)]
struct Job {
    candidates: Vec<Candidate>,
}

#[derive(Deserialize)]
struct Candidate {
    status: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let product = arguments.product.clone().map_or_else(|| binary("opt-supervisor"), Ok)?;
    let conditions = conditions("warm")?;
    let mut rows = Vec::new();
    let mut passed = true;
    for &count in &arguments.candidates {
        let folder = tempdir()?;
        let row = measure(&product, &folder, count)?;
        passed &= row["passed"] == true;
        rows.push(row);
        std::fs::remove_dir_all(&folder)?;
    }
    let sheet = json!({ "conditions": conditions, "rows": rows });
    show(arguments.json, &sheet, || {
        println!(
            "| candidates | s | main loop, ms per candidate | all threads, ms per candidate | peak resident, MiB | longest turn, ms | database, MiB |\n\
             |---|---|---|---|---|---|---|"
        );
        for row in &rows {
            let of = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
            println!(
                "| {} | {:.1} | {:.2} | {:.2} | {:.1} | {:.1} | {:.1} |",
                row["candidates"],
                of("seconds"),
                of("main_loop_ms"),
                of("all_threads_ms"),
                of("peak_resident_mib"),
                of("longest_turn_ms"),
                of("database_mib")
            );
        }
    })?;
    Ok(passed)
}

fn measure(product: &Path, folder: &Path, count: u32) -> Result<serde_json::Value> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").canonicalize()?;
    let entry = captures(&data.join("captures/torch_nn_functional_relu"))?;
    let entry = entry.first().context("there is no capture")?;
    std::fs::create_dir(folder.join("captures"))?;
    std::fs::copy(entry, folder.join("captures/entry_000001.pt"))?;
    libraries(folder, &data, count)?;
    std::fs::write(
        folder.join("plan.toml"),
        "[run]\nname = \"scale\"\nverifiers = 1\nstages = [\"build\", \"verify\"]\n\
         [[job]]\ncaptures = \"captures\"\ncandidates = [\"kernels/*.so\"]\n",
    )?;
    let began = Instant::now();
    let child = Command::new(product)
        .args(["run", "plan.toml", "--quiet"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("starting opt-supervisor")?;
    let (status, used) = watch(child)?;
    let wall = began.elapsed();
    ensure!(status.success(), "the run failed ({status})");
    let run = folder.join("runs/latest");
    let summary = std::io::BufReader::new(std::fs::File::open(run.join("summary.json"))?);
    let summary: Summary = serde_json::from_reader(summary).context("reading summary.json")?;
    let candidates: Vec<&Candidate> = summary.jobs.iter().flat_map(|job| &job.candidates).collect();
    let all_passed = candidates.len() == count as usize
        && candidates.iter().all(|candidate| candidate.status.as_deref() == Some("PASSED"));
    ensure!(all_passed, "not all of the {count} candidates passed");
    let per_candidate = |time: Duration| time.as_secs_f64() * 1e3 / f64::from(count);
    let (resident, turn) =
        (mib(used.peak_resident), Duration::from_micros(summary.memory.sampling.worst_turn_us));
    let (cpu, turn) = (per_candidate(used.all_threads), turn.as_secs_f64() * 1e3);
    Ok(json!({
        "candidates": count, "seconds": wall.as_secs_f64(), "main_loop_ms": per_candidate(used.main_thread),
        "all_threads_ms": cpu, "peak_resident_mib": resident, "longest_turn_ms": turn,
        "database_mib": mib(std::fs::metadata(run.join("run.sqlite"))?.len()),
        "passed": resident <= MAX_RESIDENT_MIB && cpu <= MAX_CPU_MS && turn <= MAX_TURN_MS,
    }))
}

/// Waits for the process to end. Returns its exit status, and the resources that it had used at the last sample.
fn watch(mut child: Child) -> Result<(ExitStatus, Used)> {
    let mut used = Used::default();
    loop {
        if let Some(now) = used_by(child.id()) {
            used = now;
        }
        if let Some(status) = child.try_wait()? {
            return Ok((status, used));
        }
        std::thread::sleep(LOOK);
    }
}

/// Returns the resources that a process has used so far, or `None` if it has ended.
fn used_by(pid: u32) -> Option<Used> {
    let on_cpu = |path: String| {
        let text = std::fs::read_to_string(path).ok()?;
        text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    };
    let main_thread = on_cpu(format!("/proc/{pid}/task/{pid}/schedstat"))?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"))?;
    // The total of the process is the only count that includes threads that have ended. Its unit is a tick of 10 ms.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = stat.rsplit_once(") ")?.1.split(' ').skip(11).take(2);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(Used {
        main_thread,
        all_threads: Duration::from_millis(10 * ticks),
        peak_resident: peak.parse::<u64>().ok()? * 1024,
    })
}
