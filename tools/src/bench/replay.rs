//! Measures replays of a chain of linear layers, with budgets from the floor to one that holds all tensors. Compares
//! the time of each replay with the times that it spent on copying and on computing.
//!
//! There are two chains. In one, calls take longer than copies, and in the other, copies take longer. Before each run,
//! the captures are either read into the page cache or dropped from it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::figures::mib;
use super::product::{binary, run_json};
use super::verify_large::{captures, median, prepare, tempdir};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The width of the layers: a weight is a square matrix of float32
    #[arg(long, default_value_t = 2048)]
    width: u32,
    /// The number of layers in the chain, each with its own weight
    #[arg(long, default_value_t = 10)]
    layers: u32,
    /// How often to repeat the chain
    #[arg(long, default_value_t = 3)]
    passes: usize,
    /// The rows of the input, for the chain with long calls
    #[arg(long, default_value_t = 64)]
    rows: u32,
    /// How many steps ahead tensors are loaded
    #[arg(long, default_value_t = 4)]
    prefetch: u32,
    /// The number of budgets between the floor and everything, both included
    #[arg(long, default_value_t = 5)]
    budgets: u32,
    /// How often to run all budgets
    #[arg(long, default_value_t = 3)]
    runs: u32,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let folder = tempdir()?;
    println!(
        "| chain | captures | budget MiB | moved MiB | hits | wall ms | stall ms | copy ms | compute ms | wall / max |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let mut good = true;
    for (chain, rows) in [("long calls", arguments.rows), ("short calls", 1)] {
        let set = folder.join(format!("rows-{rows}"));
        let shape = format!("{rows},{}", arguments.width);
        let entries = arguments.layers.to_string();
        let made = Command::new(binary("gen-captures")?)
            .args(["op", "--name", "linear", "--shape", &shape, "--entries", &entries, "--out"])
            .arg(&set)
            .status()
            .context("starting gen-captures")?;
        ensure!(made.success(), "gen-captures failed");
        let files = captures(&set)?;
        let (floor, whole) = floor_and_whole(arguments, &folder, &set)?;
        let steps = arguments.budgets.max(2) - 1;
        let budgets: Vec<u64> =
            (0..=steps).map(|at| floor + (whole - floor) * u64::from(at) / u64::from(steps)).collect();
        for state in ["warm", "cold"] {
            let mut seen: Vec<Vec<Value>> = vec![Vec::new(); budgets.len()];
            for _ in 0..arguments.runs {
                prepare(&files, state)?;
                let summary = run_json(&plan(arguments, &folder, &set, &budgets)?, &[])?;
                for (results, replay) in
                    seen.iter_mut().zip(summary["replays"].as_array().into_iter().flatten())
                {
                    good &= replay["status"] == "PASSED";
                    results.push(replay["result"].clone());
                }
            }
            for (budget, results) in budgets.iter().zip(&seen) {
                let of = |key: &str| {
                    median(&mut results.iter().filter_map(|it| it[key].as_f64()).collect::<Vec<_>>())
                };
                let ratio = median(&mut results.iter().filter_map(ratio).collect::<Vec<_>>());
                good &= of("peak_pool_bytes") <= *budget as f64;
                println!(
                    "| {chain} | {state} | {:.1} | {:.1} | {} of {} | {:.0} | {:.0} | {:.0} | {:.0} | {ratio:.3} |",
                    mib(*budget),
                    of("bytes_moved") / f64::from(1 << 20),
                    of("hits"),
                    of("uses"),
                    of("total_ms"),
                    of("stall_ms"),
                    of("copy_ms"),
                    of("compute_ms"),
                );
            }
        }
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(good)
}

/// Returns the wall time divided by the longer of the times for copying and computing. With perfect overlap, it is 1.
fn ratio(result: &Value) -> Option<f64> {
    let longer = result["copy_ms"].as_f64()?.max(result["compute_ms"].as_f64()?);
    Some(result["total_ms"].as_f64()? / longer)
}

/// Returns the smallest budget with which the replay can run, and the budget that holds all tensors, both in bytes.
fn floor_and_whole(arguments: &Arguments, folder: &Path, set: &Path) -> Result<(u64, u64)> {
    let plan = plan(arguments, folder, set, &[1 << 50])?;
    let checked = Command::new(binary("opt-supervisor")?)
        .args(["check", "--json"])
        .arg(plan)
        .output()
        .context("starting opt-supervisor")?;
    let document: Value = serde_json::from_slice(&checked.stdout).context("reading the output of check")?;
    let figure = |key: &str| {
        document["replays"][0][key]
            .as_u64()
            .with_context(|| format!("`check` printed no `{key}` of the replay"))
    };
    Ok((figure("floor_bytes")?, figure("all_resident_bytes")?))
}

/// Writes a plan with one replay for each budget.
fn plan(arguments: &Arguments, folder: &Path, set: &Path, budgets: &[u64]) -> Result<PathBuf> {
    let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/kernels/naive/linear.c");
    let kernel = kernel.canonicalize().context("finding the naive linear kernel")?;
    let mut text = format!(
        "[run]\nname = \"replay\"\nstages = [\"build\", \"verify\"]\n[build]\nlibraries = [\"m\"]\n[limits]\nthreads = 1\n\
         [[job]]\nname = \"linear\"\ncaptures = {:?}\nbaseline = {kernel:?}\n",
        set.canonicalize()?
    );
    let chain: Vec<String> =
        (0..arguments.layers).map(|entry| format!("[\"linear\", \"entry_{entry:06}\"]")).collect();
    let steps = vec![chain.join(", "); arguments.passes.max(1)].join(", ");
    for (number, budget) in budgets.iter().enumerate() {
        text.push_str(&format!(
            "[[replay]]\nname = \"at-{number}\"\nsteps = [{steps}]\nbudget = \"{budget}B\"\nprefetch = {}\n",
            arguments.prefetch
        ));
    }
    let path = folder.join("plan.toml");
    std::fs::write(&path, text)?;
    Ok(path)
}
