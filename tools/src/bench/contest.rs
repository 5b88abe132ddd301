//! Measures the time to find the best of many candidates, one of which is clearly faster than the others. Can compare
//! this time with that of other builds of the product.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use opt_supervisor::record::UtcTime;
use serde_json::{Value, json};

use super::figures::{Figures, conditions, show};
use super::product::{binary, run_json_of};
use super::timing::KERNEL;
use super::verify_large::tempdir;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many candidates to compare with the baseline, including the one that must win
    #[arg(long, default_value_t = 100)]
    candidates: u32,
    /// How many captures to generate, all of which are timed
    #[arg(long, default_value_t = 3)]
    entries: u32,
    /// Builds of opt-supervisor to compare, in this order; by default, the program beside this one
    #[arg(long)]
    product: Vec<PathBuf>,
    /// More lines for the plan's `[profile]`, only for the program beside this one
    #[arg(long, default_value = "")]
    profile: String,
    /// How many rounds to make; each runs every product once
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
}

/// The work of the baseline, which takes about 200 µs per call.
const SPIN: u64 = 160_000;

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let folder = tempdir()?;
    let built_supervisor = binary("opt-supervisor")?;
    let products =
        if arguments.product.is_empty() { vec![built_supervisor.clone()] } else { arguments.product.clone() };
    prepare(&folder, arguments)?;
    let mut walls: Vec<Figures> = products.iter().map(|_| Figures::default()).collect();
    let mut results: Vec<Value> = products.iter().map(|_| Value::Null).collect();
    let mut good = true;
    for _ in 0..arguments.rounds {
        for (index, product) in products.iter().enumerate() {
            let profile = if *product == built_supervisor { arguments.profile.as_str() } else { "" };
            let plan = plan(&folder, profile)?;
            let summary = run_json_of(product, &plan, &[])?;
            walls[index].push(timed_for(&summary)?);
            let job = &summary["jobs"][0];
            good &= job["winner"] == "winner";
            results[index] = json!({ "winner": job["winner"], "confirmed": job["winner_confirmed"],
                                  "ranking": job["ranking"], "attempts": attempts(job) });
        }
    }
    let rows: Vec<Value> = products
        .iter()
        .zip(&walls)
        .zip(&results)
        .map(|((product, walls), result)| {
            json!({ "product": product, "timing_seconds": walls.median(), "result": result })
        })
        .collect();
    let sheet = json!({ "conditions": conditions("warm")?, "candidates": arguments.candidates,
                        "entries": arguments.entries, "products": rows });
    show(arguments.json, &sheet, || {
        println!(
            "| product | s from the first timed step to the last | winner | confirmed | attempts |\n|---|---|---|---|---|"
        );
        for row in &rows {
            println!(
                "| {} | {:.1} | {} | {} | {} |",
                row["product"],
                row["timing_seconds"].as_f64().unwrap_or(f64::NAN),
                row["result"]["winner"],
                row["result"]["confirmed"],
                row["result"]["attempts"]
            );
        }
    })?;
    std::fs::remove_dir_all(&folder)?;
    Ok(good)
}

/// Writes the captures and the kernels. The winner does half of the baseline's work. All other candidates do the same
/// work as the baseline or up to two percent more.
fn prepare(folder: &Path, arguments: &Arguments) -> Result<()> {
    let made = Command::new(binary("gen-captures")?)
        .args(["op", "--name", "relu", "--shape", "16,16", "--entries"])
        .arg(arguments.entries.to_string())
        .arg("--out")
        .arg(folder.join("relu"))
        .output()
        .context("starting gen-captures")?;
    ensure!(made.status.success(), "gen-captures: {}", String::from_utf8_lossy(&made.stderr));
    std::fs::create_dir_all(folder.join("k"))?;
    let write = |name: String, spin: u64| {
        std::fs::write(folder.join(name), format!("#define SPIN {spin}L\n{KERNEL}"))
    };
    write("base.c".to_owned(), SPIN)?;
    for number in 1..arguments.candidates {
        write(format!("k/other_{number:04}.c"), SPIN + SPIN / 100 * u64::from(number % 3))?;
    }
    // In the plan's order, the winner comes after all other candidates, and only the baseline follows it.
    Ok(write("k/winner.c".to_owned(), SPIN / 2)?)
}

fn plan(folder: &Path, profile: &str) -> Result<PathBuf> {
    let plan = folder.join("plan.toml");
    std::fs::write(
        &plan,
        format!(
            "[run]\nname = \"contest\"\n[build]\nflags = [\"-O2\"]\n[limits]\nthreads = 1\n[profile]\nentries = \"all\"\n{profile}\n\
             [[job]]\ncaptures = \"relu\"\nbaseline = \"base.c\"\ncandidates = [\"k/*.c\"]\n"
        ),
    )?;
    Ok(plan)
}

/// Returns the time from the start of the first timed phase to the end of the last.
fn timed_for(summary: &Value) -> Result<f64> {
    let phases = summary["memory"]["phases"].as_array().context("the summary has no phases")?;
    let timed = phases.iter().filter(|it| !matches!(it["stage"].as_str(), Some("build" | "verify") | None));
    let (mut first, mut last) = (f64::INFINITY, f64::NEG_INFINITY);
    for phase in timed {
        let at = |field: &str| -> Result<f64> {
            let time: UtcTime = serde_json::from_value(phase[field].clone())
                .with_context(|| format!("reading `{field}` of a phase"))?;
            Ok(time.as_millisecond() as f64 / 1e3)
        };
        first = first.min(at("started")?);
        last = last.max(at("ended")?);
    }
    Ok(last - first)
}

fn attempts(job: &Value) -> String {
    let stages = ["screen", "profile", "confirm"].map(|stage| {
        let of = |candidate: &Value| {
            candidate["attempts"].as_array().into_iter().flatten().filter(|it| it["stage"] == stage).count()
        };
        let count: usize = job["candidates"].as_array().into_iter().flatten().map(of).sum();
        format!("{stage} {count}")
    });
    stages.join(", ")
}
