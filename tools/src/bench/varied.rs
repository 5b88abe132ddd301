//! Measures the effect of new inputs in every call: times the same kernels with and without new inputs, and compares
//! time, ratio and owed memory.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::figures::{conditions, show};
use super::product::{binary, run_json};
use super::verify_large::{median, tempdir};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many runs to make of each op with new inputs, and how many without; they alternate
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
}

/// The ops, each with the arguments that generate its captures. The table of the embedding has 709 MB.
const OPS: [(&str, &[&str]); 4] = [
    ("relu", &["op", "--name", "relu", "--shape", "256,1024"]),
    ("softmax", &["op", "--name", "softmax", "--shape", "256,1024"]),
    ("linear", &["op", "--name", "linear", "--shape", "64,256"]),
    ("embedding", &["embedding", "--total", "709MB"]),
];

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let folder = tempdir()?;
    let mut rows = Vec::new();
    let mut good = true;
    for (op, generated) in OPS {
        let captures = folder.join(op);
        let made = Command::new(binary("gen-captures")?)
            .args(generated)
            .args(["--entries", "1", "--out"])
            .arg(&captures)
            .output()
            .context("starting gen-captures")?;
        ensure!(made.status.success(), "gen-captures: {}", String::from_utf8_lossy(&made.stderr));
        let mut seen: [Vec<Value>; 2] = Default::default();
        for _ in 0..arguments.runs {
            for (vary, seen) in ["none", "auto"].into_iter().zip(&mut seen) {
                let summary = run_json(&plan(&folder, op, &captures, vary)?, &[])?;
                good &= summary["jobs"][0]["candidates"]
                    .as_array()
                    .is_some_and(|all| all.iter().all(|it| it["status"] == "PASSED"));
                seen.push(summary);
            }
        }
        for (vary, summaries) in ["none", "auto"].into_iter().zip(&seen) {
            rows.push(row(op, vary, summaries));
        }
    }
    let sheet = json!({ "conditions": conditions("warm")?, "rows": rows });
    show(arguments.json, &sheet, || {
        println!(
            "| op | vary | naive, µs a call | -O3 -ffast-math, µs | ratio | half of its interval | varied | profile owed / predicted, MiB |"
        );
        println!("|---|---|---|---|---|---|---|---|");
        for row in &rows {
            let of = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
            println!(
                "| {} | {} | {:.1} | {:.1} | {:.2} | {:.1} % | {} | {:.1} / {:.1} |",
                row["op"].as_str().unwrap_or_default(),
                row["vary"].as_str().unwrap_or_default(),
                of("baseline_us"),
                of("fast_us"),
                of("ratio"),
                of("half_width") * 100.0,
                row["varied"],
                of("owed_mib"),
                of("predicted_mib"),
            );
        }
    })?;
    std::fs::remove_dir_all(&folder)?;
    Ok(good)
}

fn plan(folder: &Path, op: &str, captures: &Path, vary: &str) -> Result<PathBuf> {
    let kernel = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../tests/data/kernels/naive/{op}.c"))
        .canonicalize()
        .with_context(|| format!("finding the naive kernel of {op}"))?;
    let plan = folder.join("plan.toml");
    let text = format!(
        "[run]\nname = \"varied\"\n[build]\nflags = [\"-O2\"]\nlibraries = [\"m\"]\n[limits]\nthreads = 1\n[profile]\nvary = \"{vary}\"\n\
         [[job]]\ncaptures = {captures:?}\nbaseline = \"naive\"\n\
         [[job.candidate]]\nname = \"naive\"\nsources = [{kernel:?}]\n\
         [[job.candidate]]\nname = \"fast\"\nsources = [{kernel:?}]\n[job.candidate.build]\nflags = [\"-O3\", \"-ffast-math\"]\n"
    );
    std::fs::write(&plan, text)?;
    Ok(plan)
}

fn row(op: &str, vary: &str, summaries: &[Value]) -> Value {
    let entries: Vec<&Value> = summaries
        .iter()
        .filter_map(|summary| {
            summary["jobs"][0]["candidates"].as_array()?.iter().find(|it| it["name"] == "fast")
        })
        .map(|fast| &fast["profile"]["entries"][0])
        .collect();
    let of = |pick: &dyn Fn(&Value) -> Option<f64>| {
        median(&mut entries.iter().filter_map(|entry| pick(entry)).collect::<Vec<f64>>())
    };
    let speedup = |entry: &Value, field: &str| entry["speedup"][field].as_f64();
    let phases = || {
        let all = summaries.iter().filter_map(|summary| summary["memory"]["phases"].as_array()).flatten();
        all.filter(|phase| phase["stage"] == "profile" && phase["candidate"] == "fast")
    };
    let most = |field: &str| {
        phases().filter_map(|phase| phase[field].as_f64()).fold(0.0, f64::max) / f64::from(1 << 20)
    };
    json!({
        "op": op,
        "vary": vary,
        "baseline_us": of(&|entry| Some(entry["baseline"]["median_time_ms"].as_f64()? * 1e3)),
        "fast_us": of(&|entry| Some(entry["median_time_ms"].as_f64()? * 1e3)),
        "ratio": of(&|entry| speedup(entry, "value")),
        "half_width": of(&|entry| {
            Some((speedup(entry, "ci_high")? - speedup(entry, "ci_low")?) / 2.0 / speedup(entry, "value")?)
        }),
        "varied": entries.first().map(|entry| entry["varied"].clone()),
        "owed_mib": most("peak_owed_bytes"),
        "predicted_mib": most("predicted_bytes"),
    })
}
