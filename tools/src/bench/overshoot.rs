//! Measures how far a process that fills memory as fast as it can exceeds its limit before it is dead. The process is
//! polled at fixed intervals, polled as in the product (with and without a record of the reason), or refused memory by
//! Linux.
//!
//! `overshoot/matrix.rs` uses up memory in many ways, while an output of the supervisor is stalled.

mod matrix;
mod stalls;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use opt_shared::ids::WorkerId;
use opt_shared::message::KillReason;
use opt_shared::units::Bytes;
use opt_shared::wait::readable;
use opt_supervisor::core::pace::{Pace, SHORTEST};
use opt_supervisor::memory::procfs::ProcessSampler;
use opt_supervisor::record::{Numbers, UtcTime};
use opt_supervisor::store::{ProcessKind, Store};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use super::figures::{Figures, conditions, mib, show};
use super::filler::Filler;
use super::product::{generate, run_json};
use super::verify_large::tempdir;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Runs of each way of watching, interleaved (not with --product or --stall)
    #[arg(long, default_value_t = 20)]
    runs: u32,
    /// The memory limit of the process that fills memory, or of the candidates, in MiB
    #[arg(long, default_value_t = 600)]
    limit: u64,
    /// Use huge pages, which fill several times as fast
    #[arg(long)]
    huge: bool,
    /// Instead, run the product with candidates that use up their memory
    #[arg(long)]
    product: bool,
    /// Instead, run the product with candidates that use up their memory in many ways, during this stall (`none`: without one)
    #[arg(long, value_enum, conflicts_with = "product")]
    stall: Option<stalls::Kind>,
    /// With --stall: the number of ways
    #[arg(long, default_value_t = 30)]
    ways: usize,
    /// With --stall: the number of the first way, to continue an interrupted series
    #[arg(long, default_value_t = 0)]
    first: usize,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
}

/// The allowed median overshoot of the row "ours", which is polled at the product's pace.
const ALLOWED: u64 = 16 << 20;
/// The memory that a small process owes in addition to the memory that `RLIMIT_DATA` counts, in bytes. `RLIMIT_DATA` is
/// therefore set below the filler's limit by this much, and by the page tables of the filled memory.
const OTHER_MEMORY: u64 = 2 << 20;

#[derive(Clone, Copy, PartialEq)]
enum Watch {
    Fixed(Duration),
    /// The process is polled at the product's pace.
    Paced {
        /// Whether the reason is written to disk before the signal is sent, as in the product.
        recorded: bool,
    },
    /// The process is not polled, but Linux refuses it memory.
    Refused,
}

const WATCHES: [(&str, Watch); 5] = [
    ("polled every 250 ms", Watch::Fixed(Duration::from_millis(250))),
    ("polled every 10 ms", Watch::Fixed(Duration::from_millis(10))),
    ("ours", Watch::Paced { recorded: true }),
    ("ours, nothing written before the signal", Watch::Paced { recorded: false }),
    ("refused by Linux (RLIMIT_DATA)", Watch::Refused),
];
/// The indices in `WATCHES` of the two rows that have requirements.
const OURS: usize = 2;
const REFUSED: usize = 4;

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    match arguments.stall {
        Some(kind) => matrix::run(arguments, kind),
        None if arguments.product => product(arguments),
        None => polling(arguments),
    }
}

struct Excess {
    /// The number of bytes above the limit.
    over: u64,
    bytes_per_second: f64,
}

fn polling(arguments: &Arguments) -> Result<bool> {
    let conditions = conditions("no files are read")?;
    let folder = tempdir()?;
    let mut store = Store::create(&folder)?;
    let mut random = SmallRng::seed_from_u64(u64::from(std::process::id()));
    let limit = arguments.limit << 20;
    let mut over: [Figures; WATCHES.len()] = Default::default();
    let mut rate = Figures::default();
    for _ in 0..arguments.runs {
        for (index, (_, watch)) in WATCHES.iter().enumerate() {
            let seen = run_once(*watch, limit, arguments.huge, &mut store, &mut random)?;
            over[index].push(mib(seen.over));
            rate.push(seen.bytes_per_second / f64::from(1 << 30));
        }
    }
    std::fs::remove_dir_all(&folder)?;
    let good = over[OURS].median() <= mib(ALLOWED) && over[REFUSED].max() <= 0.0;
    let rows: Vec<Value> = WATCHES
        .iter()
        .zip(&over)
        .map(|((name, _), over)| json!({ "watch": name, "overshoot": over.to_json("MiB") }))
        .collect();
    let sheet = json!({
        "benchmark": "overshoot", "conditions": conditions, "runs": arguments.runs, "limit_bytes": limit,
        "huge_pages": arguments.huge, "fill_rate": rate.to_json("GiB/s"), "watches": rows,
        "polled_10_ms_over_ours": over[1].over(&over[OURS]).to_json("ratio"), "good": good,
    });
    show(arguments.json, &sheet, || {
        println!(
            "One thread fills {:.2} GiB/s (median{}); limit {} MiB.\n",
            rate.median(),
            if arguments.huge { ", huge pages" } else { "" },
            arguments.limit
        );
        println!("| watched | runs | over the limit, MiB: median | p95 | most |\n|---|---|---|---|---|");
        for ((name, _), over) in WATCHES.iter().zip(&over) {
            println!("| {name} | {} | {} |", over.count(), over.cells(1));
        }
    })?;
    Ok(good)
}

fn run_once(
    watch: Watch,
    limit: u64,
    huge: bool,
    store: &mut Store,
    random: &mut SmallRng,
) -> Result<Excess> {
    let data = (watch == Watch::Refused).then(|| limit - OTHER_MEMORY - limit / 512);
    let mut filler = Filler::start(limit, data, huge)?;
    let pid = i32::try_from(filler.child.id()).ok().and_then(Pid::from_raw).context("no pid")?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let mut memory =
        ProcessSampler::open(Path::new("/proc"), filler.child.id())?.context("the filler died at once")?;
    let base = owed(&mut memory)?.context("the filler has no memory")?;
    let mut pace = Pace::default();
    let interval = |pace: &Pace, at: Duration, owed: Bytes| match watch {
        Watch::Fixed(interval) => interval,
        Watch::Paced { .. } => pace.next(at, Some(Bytes::new(limit) - owed)),
        Watch::Refused => Duration::from_secs(1),
    };
    // Polling at fixed intervals begins at a random moment, because it does not depend on the process. The product
    // takes its first sample as soon as a runner is reported.
    let first = match watch {
        Watch::Fixed(interval) => interval.mul_f64(random.random_range(0.0..1.0)),
        Watch::Paced { .. } => SHORTEST,
        Watch::Refused => Duration::from_secs(1),
    };
    let began = Instant::now();
    filler.go();
    let (mut due, mut last) = (began + first, (began, base));
    loop {
        let time_left = due.saturating_duration_since(Instant::now());
        if readable(&pidfd, time_left)? {
            break;
        }
        let now = Instant::now();
        pace.record_delay(now.saturating_duration_since(due));
        let Some(owed) = owed(&mut memory)? else { break };
        pace.observe(now - began, owed - last.1, now - last.0);
        last = (now, owed);
        if limit < owed.get() && watch != Watch::Refused {
            if watch == (Watch::Paced { recorded: true }) {
                record_kill(store, owed, Bytes::new(limit))?;
            }
            pidfd_send_signal(&pidfd, Signal::KILL)?;
            break;
        }
        due = Instant::now() + interval(&pace, now - began, owed);
    }
    let filled = filler.owed_at_death()?;
    let took = began.elapsed();
    ensure!(0 < filler.count.touched.load(Ordering::Acquire), "the filler did nothing");
    Ok(Excess {
        over: (base.get() + filled).saturating_sub(limit),
        bytes_per_second: filled as f64 / took.as_secs_f64(),
    })
}

/// Returns the memory that the process owes, or `None` if the process is dead.
fn owed(memory: &mut ProcessSampler) -> Result<Option<Bytes>> {
    Ok(memory.sample()?.alive().and_then(|sample| sample.owed()))
}

/// Writes the rows that the product writes before it kills a runner.
fn record_kill(store: &mut Store, owed: Bytes, limit: Bytes) -> Result<()> {
    let (now, worker) = (UtcTime::now(), WorkerId(1));
    store.policy(now, "kill_runner", "the runner owes more than its limit", &Numbers::new())?;
    store.kill_intended(now, ProcessKind::Runner, worker, None, KillReason::RunnerMemory { owed, limit })?;
    Ok(())
}

/// Checks the verdicts on candidates that use up their memory, and that the run continues after each candidate.
fn product(arguments: &Arguments) -> Result<bool> {
    let conditions = conditions("captures have just been made")?;
    let folder = tempdir()?;
    generate(&["op", "--name", "softmax", "--shape", "64,256", "--entries", "1"], &folder.join("captures"))?;
    let kernels =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/kernels/hostile").canonicalize()?;
    let candidate = |name: &str, file: &str| {
        let path = kernels.join(file);
        format!("[[job.candidate]]\nname = \"{name}\"\nsources = [{path:?}]\n")
    };
    let plan = folder.join("plan.toml");
    std::fs::write(
        &plan,
        format!(
            "[run]\nname = \"overshoot\"\nstages = [\"build\", \"verify\"]\n[build]\nlibraries = [\"m\"]\n\
             [limits]\nmemory = \"{}MiB\"\nthreads = 1\n[[job]]\nname = \"job\"\ncaptures = \"captures\"\n{}{}{}",
            arguments.limit,
            candidate("eats_its_heap", "eats_its_heap.c"),
            candidate("eats_by_threads", "eats_by_threads.c"),
            candidate("after", "good.c"),
        ),
    )?;
    let summary = run_json(&plan, &[])?;
    std::fs::remove_dir_all(&folder)?;
    let candidates = summary["jobs"][0]["candidates"].as_array().context("the summary has no candidates")?;
    let rows: Vec<Value> = candidates
        .iter()
        .map(|it| {
            json!({ "name": it["name"], "status": it["status"], "detail": it["detail"],
                    "runner_peak_owed_bytes": it["resources"]["runner_peak_owed_bytes"] })
        })
        .collect();
    let is = |name: &str, status: &str| rows.iter().any(|it| it["name"] == name && it["status"] == status);
    let good = is("eats_its_heap", "HOST_MEMORY_LIMIT")
        && is("eats_by_threads", "HOST_MEMORY_LIMIT")
        && is("after", "PASSED");
    let sheet = json!({
        "benchmark": "overshoot_product", "conditions": conditions, "limit_bytes": arguments.limit << 20,
        "candidates": rows, "sampling": summary["memory"]["sampling"], "good": good,
    });
    show(arguments.json, &sheet, || {
        println!("| candidate | status | runner's peak, MiB | message |\n|---|---|---|---|");
        for row in &rows {
            let peak = row["runner_peak_owed_bytes"].as_u64().map_or(f64::NAN, mib);
            println!(
                "| {} | {} | {peak:.1} | {} |",
                row["name"].as_str().unwrap_or_default(),
                row["status"].as_str().unwrap_or_default(),
                row["detail"].as_str().unwrap_or_default()
            );
        }
    })?;
    Ok(good)
}
