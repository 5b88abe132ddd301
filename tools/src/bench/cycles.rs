//! Switches many times from verification to timing and back. Checks that no sample shows a verifier and a profiler at
//! work at the same time, and that the supervisor's memory, descriptors, threads and children do not grow. Measures how
//! long a switch takes with and without a spare.

mod outside;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use opt_tests::cycles::evidence::{self, Evidence};
use opt_tests::cycles::{Cycles, TIMED, prepare};
use serde_json::{Value, json};

use self::outside::Outside;
use super::figures::{Figures, conditions, mib, show};
use super::product::binary;
use super::verify_large::tempdir;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many cycles each run has. A cycle is one job, and a plan has at most a thousand jobs
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    count: u32,
    /// How many verifiers work in parallel
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    verifiers: u32,
    /// How many runs to make with and without a spare, alternating
    #[arg(long, default_value_t = 1)]
    pairs: u32,
    /// Make no runs without a spare
    #[arg(long, conflicts_with = "no_spare")]
    spare_only: bool,
    /// Make no runs with a spare
    #[arg(long)]
    no_spare: bool,
    /// Keep the folders of the last run with a spare and of the last run without, in the temporary folder
    #[arg(long)]
    keep: bool,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
}

/// The allowed median time of a switch with a spare.
const ALLOWED_US: f64 = 5_000.0;
/// The largest number of bytes that an idle worker may owe.
const MAX_IDLE: u64 = 8 << 20;
/// The allowed growth of the supervisor's resident and owed memory, in MiB. The growth is measured from the first
/// quarter of the time after settling to the last quarter.
const MEMORY_NOISE_MIB: f64 = 1.0;
/// The number of cycles at the start during which memory may grow. It is at most a tenth of all cycles.
const SETTLING: usize = 100;

struct Run {
    evidence: Evidence,
    outside: Outside,
    seconds: f64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let conditions = conditions("captures of 256 bytes and prebuilt candidates, warm")?;
    let kinds: &[bool] = match (arguments.no_spare, arguments.spare_only) {
        (true, _) => &[false],
        (_, true) => &[true],
        _ => &[true, false],
    };
    let mut switches = [Figures::default(), Figures::default()];
    let mut rows: Vec<Value> = Vec::new();
    let mut good = true;
    for pair in 0..arguments.pairs {
        for &spare in kinds {
            let cycles = Cycles { count: arguments.count, verifiers: arguments.verifiers, spare };
            let run = run_once(cycles, arguments.keep)?;
            for &switch in &run.evidence.switches {
                switches[usize::from(spare)].push(switch as f64);
            }
            let (row, fine) = row(&run, cycles, pair)?;
            good &= fine;
            rows.push(row);
        }
    }
    let [without, with] = &switches;
    good &= with.count() == 0 || with.median() <= ALLOWED_US;
    let ratio = without.over(with);
    let sheet = json!({
        "benchmark": "cycles", "conditions": conditions, "cycles": arguments.count, "verifiers": arguments.verifiers,
        "switch_with_spare": with.to_json("us"), "switch_without_spare": without.to_json("us"),
        "without_over_with": ratio.to_json("ratio"), "runs": rows, "good": good,
    });
    show(arguments.json, &sheet, || print(arguments, &switches, &ratio, &rows))?;
    Ok(good)
}

fn run_once(cycles: Cycles, keep: bool) -> Result<Run> {
    let folder = tempdir()?.join(format!("cycles-{}", if cycles.spare { "spare" } else { "none" }));
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let plan = prepare(&folder, cycles).map_err(|trouble| anyhow!(trouble))?;
    let began = Instant::now();
    let outside = outside::watch(&binary("opt-supervisor")?, &plan)?;
    let seconds = began.elapsed().as_secs_f64();
    let run = folder.join("runs/cycles");
    let text = std::fs::read(run.join("summary.json")).context("reading the summary")?;
    let summary: Value = serde_json::from_slice(&text).context("parsing the summary")?;
    let evidence = evidence::read(Path::new(&run), &summary).map_err(|trouble| anyhow!(trouble))?;
    if !keep {
        std::fs::remove_dir_all(tempdir()?)?;
    }
    Ok(Run { evidence, outside, seconds })
}

fn row(run: &Run, cycles: Cycles, pair: u32) -> Result<(Value, bool)> {
    let Run { evidence, outside, seconds } = run;
    let settled = SETTLING.min(evidence.cycles_ended.len() / 10);
    let from = *evidence.cycles_ended.get(settled).context("no cycle has ended")?;
    let flat = outside.since(from);
    let mut good = evidence.both_at_work == 0 && evidence.idle.values().all(|&idle| idle < MAX_IDLE);
    let mut stays = serde_json::Map::new();
    for (name, figures, noise) in flat {
        let (first, last) = figures.first_and_last_quarter();
        let fine = figures.count() < 8 || last - first <= noise;
        good &= fine;
        stays.insert(
            name.to_owned(),
            json!({ "first_quarter": first, "last_quarter": last, "most": figures.max(), "seen": figures.count(),
                    "flat": fine }),
        );
    }
    let ready: serde_json::Map<String, Value> = evidence
        .ready_ms
        .iter()
        .map(|(role, times)| {
            let mut figures = Figures::default();
            times.iter().for_each(|&time| figures.push(time));
            (role.clone(), figures.to_json("ms"))
        })
        .collect();
    let mut switch = Figures::default();
    evidence.switches.iter().for_each(|&it| switch.push(it as f64));
    let row = json!({
        "pair": pair, "spare": cycles.spare, "seconds": (seconds * 10.0).round() / 10.0,
        "switch": switch.to_json("us"), "samples": evidence.moments, "at_work": evidence.at_work,
        "both_at_work": evidence.both_at_work, "such_as": evidence.violations, "sample_width_ms": evidence.width,
        "candidates_right": cycles.count * TIMED, "candidates_passed": evidence.candidates_passed,
        "idle_owed_bytes": evidence.idle, "ready": ready, "settled_after_cycles": settled, "supervisor": stays,
    });
    Ok((row, good))
}

fn print(arguments: &Arguments, switches: &[Figures; 2], ratio: &Figures, rows: &[Value]) {
    println!(
        "{} cycles a run, {} verifier(s).\n\n| switch, µs | cycles | median | p95 | most |\n|---|---|---|---|---|",
        arguments.count, arguments.verifiers
    );
    for (name, figures) in [("with a spare", &switches[1]), ("without", &switches[0])] {
        if 0 < figures.count() {
            println!("| {name} | {} | {} |", figures.count(), figures.cells(0));
        }
    }
    if 0 < ratio.count() {
        println!("\nWithout a spare a switch takes {:.2} times as long (median of pairs).", ratio.median());
    }
    println!(
        "\n| spare | s | right, passed | samples | verifier at work | profiler at work | both | \
         idle verifier, profiler MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for row in rows {
        let idle = |role: &str| row["idle_owed_bytes"][role].as_u64().map_or(f64::NAN, mib);
        println!(
            "| {} | {} | {}, {} | {} | {} | {} | {} | {:.2}, {:.2} |",
            row["spare"],
            row["seconds"],
            row["candidates_right"],
            row["candidates_passed"],
            row["samples"],
            row["at_work"]["verifier"],
            row["at_work"]["profiler"],
            row["both_at_work"],
            idle("verifier"),
            idle("profiler")
        );
    }
    println!(
        "\n| supervisor, spare | first quarter | last quarter | most | samples |\n|---|---|---|---|---|"
    );
    for row in rows {
        for (name, of) in row["supervisor"].as_object().into_iter().flatten() {
            println!(
                "| {name}, {} | {} | {} | {} | {} |",
                row["spare"], of["first_quarter"], of["last_quarter"], of["most"], of["seen"]
            );
        }
    }
}
