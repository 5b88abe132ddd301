//! Measures the cost of kernels in Python: the start of a process with and without a zygote, many small candidates
//! compared with a plain Python pool, the memory of the process tree compared with its prediction, and the smallest
//! call.

mod calls;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use opt_tests::python::{python_with, refuse_copies};
use serde_json::{Value, json};

use super::figures::{Figures, conditions, mib, show};
use super::product::binary;
use super::verify_large::tempdir;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// An interpreter with torch; by default, that of `.ci/run`, or `python3`
    #[arg(long)]
    python: Option<PathBuf>,
    /// How many candidates to verify in each round
    #[arg(long, default_value_t = 200)]
    candidates: u32,
    /// How many rounds to make; each measures the pool, the product, and the pool again
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// How many starts to measure without a zygote
    #[arg(long, default_value_t = 50)]
    starts: u32,
    /// The number of verifiers of the product, and of processes of the pool
    #[arg(long, default_value_t = 2)]
    parallel: u32,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
}

/// Captures of `torch.nn.functional.relu`, each with less than 1 KiB of input.
const ENTRIES: [&str; 3] = ["entry_000000.pt", "entry_000001.pt", "entry_000002.pt"];
const KERNEL: &str = "import torch\n\n\ndef run(input, inplace):\n    return torch.relu(input)\n";

/// The target for the median time of starting a process with a zygote, in milliseconds.
const MAX_START_MS: f64 = 20.0;
/// The target for the time that the product takes, relative to the pool.
const MAX_RATIO: f64 = 1.5;
/// The target for the difference between a peak and its prediction, relative to the prediction.
const MAX_DIFFERENCE: f64 = 0.1;

pub(crate) struct Fixture {
    pub(crate) folder: PathBuf,
    captures: PathBuf,
    pub(crate) python: PathBuf,
}

impl Fixture {
    fn new(arguments: &Arguments) -> Result<Self> {
        let python = arguments.python.clone().or_else(|| python_with("torch", "torch"));
        let python = python.context("there is no python3 with torch (name one with --python)")?;
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").canonicalize()?;
        let captures = data.join("captures/torch_nn_functional_relu");
        Ok(Self { folder: tempdir()?, captures, python: std::path::absolute(python)? })
    }

    /// Writes this many kernels with the same code but different digests, and a plan that verifies them.
    fn plan(&self, name: &str, candidates: u32, verifiers: u32) -> Result<PathBuf> {
        let kernels = self.folder.join(name);
        std::fs::create_dir_all(&kernels)?;
        for number in 0..candidates {
            let text = format!("{KERNEL}\n\n# {number}\n");
            std::fs::write(kernels.join(format!("relu_{number:04}.py")), text)?;
        }
        let plan = self.folder.join(format!("{name}.toml"));
        let text = format!(
            "[run]\nname = {name:?}\nverifiers = {verifiers}\nstages = [\"build\", \"verify\"]\n[build]\n\
             python = {:?}\n[limits]\nthreads = 1\n[[job]]\ncaptures = {:?}\nentries = {ENTRIES:?}\n\
             candidates = [\"{name}/*.py\"]\n",
            self.python, self.captures
        );
        std::fs::write(&plan, text)?;
        Ok(plan)
    }

    /// Runs a plan and returns its result. Fails if a candidate did not pass.
    pub(crate) fn run(&self, plan: &Path, prepare: impl FnOnce(&mut Command)) -> Result<Value> {
        let mut command = Command::new(binary("opt-supervisor")?);
        command.arg("run").arg(plan).arg("--json").current_dir(&self.folder);
        prepare(&mut command);
        let output = command.output().context("starting opt-supervisor")?;
        let result: Value = serde_json::from_slice(&output.stdout).with_context(|| {
            format!("no result ({}): {}", output.status, String::from_utf8_lossy(&output.stderr))
        })?;
        for candidate in
            result["jobs"][0]["candidates"].as_array().context("the summary has no candidates")?
        {
            ensure!(candidate["status"] == "PASSED", "a candidate did not pass: {candidate}");
        }
        Ok(result)
    }

    /// Returns the time that the pool takes, in seconds.
    fn pool(&self, kernels: &str, candidates: u32, processes: u32) -> Result<f64> {
        let script = self.folder.join("pool.py");
        std::fs::write(&script, include_str!("pool.py"))?;
        let began = Instant::now();
        let output = Command::new(&self.python)
            .arg(&script)
            .arg(processes.to_string())
            .arg(self.folder.join(kernels))
            .args(ENTRIES.map(|entry| self.captures.join(entry)))
            .output()
            .context("starting the pool")?;
        let seconds = began.elapsed().as_secs_f64();
        let right = String::from_utf8_lossy(&output.stdout).trim().parse();
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(right == Ok(candidates), "not all {candidates} kernels are right in the pool: {stderr}");
        Ok(seconds)
    }
}

/// Returns the number of verifiers that a run has started. Each has its own zygote.
fn verifiers(result: &Value) -> Result<usize> {
    let workers = result["workers"].as_array().context("the summary has no workers")?;
    Ok(workers.iter().filter(|it| it["role"] == "verifier").count())
}

/// Returns the start times of a run's candidates in milliseconds, sorted. Leaves out the longest ones, one for each
/// zygote, because these starts waited until the zygote itself had started.
fn starts(result: &Value, zygotes: usize) -> Result<Vec<f64>> {
    let candidates = result["jobs"][0]["candidates"].as_array().context("the summary has no candidates")?;
    let of = |it: &Value| {
        it["verify"]["start_ms"]
            .as_f64()
            .with_context(|| format!("a candidate has no time of its start: {it}"))
    };
    let mut starts = candidates.iter().map(of).collect::<Result<Vec<f64>>>()?;
    starts.sort_by(f64::total_cmp);
    starts.truncate(starts.len().saturating_sub(zygotes));
    Ok(starts)
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let conditions = conditions("warm")?;
    let fixture = Fixture::new(arguments)?;
    let Arguments { candidates, parallel, .. } = *arguments;
    let plan = fixture.plan("many", candidates, parallel)?;
    let (mut copied, mut ours, mut pool) = (Figures::default(), Figures::default(), Figures::default());
    let (mut memory, mut zygotes) = (Value::Null, 0);
    for _ in 0..arguments.rounds {
        let before = fixture.pool("many", candidates, parallel)?;
        let began = Instant::now();
        let result = fixture.run(&plan, |_| {})?;
        ours.push(began.elapsed().as_secs_f64());
        pool.push(f64::midpoint(before, fixture.pool("many", candidates, parallel)?));
        zygotes = verifiers(&result)?;
        starts(&result, zygotes)?.into_iter().for_each(|start| copied.push(start));
        memory = result["memory"].clone();
    }
    let alone = fixture.run(&fixture.plan("alone", arguments.starts, 1)?, refuse_copies)?;
    let mut started = Figures::default();
    starts(&alone, 0)?.into_iter().for_each(|start| started.push(start));
    let (calls, copy_us) = calls::measure(&fixture)?;
    std::fs::remove_dir_all(&fixture.folder)?;

    let bytes = |name: &str| memory[name].as_u64().with_context(|| format!("no `memory.{name}`"));
    let (peak, predicted) = (bytes("peak_owed_bytes")?, bytes("predicted_peak_owed_bytes")?);
    let share = peak as f64 / predicted as f64;
    let ratio = ours.over(&pool).median();
    let met = [
        ("start", copied.median() <= MAX_START_MS),
        ("ratio", ratio <= MAX_RATIO),
        // The prediction is that of one phase, so it is the whole run's only with one verifier.
        ("memory", parallel == 1 && (share - 1.0).abs() <= MAX_DIFFERENCE),
    ];
    let sheet = json!({
        "benchmark": "python", "conditions": conditions,
        "start": { "zygote": copied.to_json("ms"), "alone": started.to_json("ms") },
        "many": { "candidates": candidates, "entries": ENTRIES.len(), "parallel": parallel, "ours": ours.to_json("s"),
                  "pool": pool.to_json("s"), "ratio": ratio, "zygotes": zygotes },
        "memory": { "peak_bytes": peak, "predicted_bytes": predicted },
        "calls": calls, "copy_us": copy_us, "met": met.map(|(name, met)| json!({ name: met })),
    });
    show(arguments.json, &sheet, || {
        println!("| a process starts | starts | ms: median | p95 | max |\n|---|---|---|---|---|");
        println!("| as a copy of a zygote | {} | {} |", copied.count(), copied.cells(1));
        println!("| with its own interpreter | {} | {} |", started.count(), started.cells(0));
        println!("\n{candidates} candidates, {} entries, {parallel} at a time", ENTRIES.len());
        println!("verifiers that the last run started, each with its own zygote: {zygotes}");
        println!("\n| what | s: median | p95 | max |\n|---|---|---|---|");
        println!("| opt-supervisor | {} |\n| pool | {} |", ours.cells(2), pool.cells(2));
        println!("\nours ÷ pool: {ratio:.2}");
        println!("\n| memory | MiB |\n|---|---|\n| peak of the tree | {:.1} |", mib(peak));
        println!("| predicted | {:.1} |", mib(predicted));
        println!("\n| smallest call | µs |\n|---|---|");
        for call in &calls {
            println!("| {} | {:.2} |", call.kind, call.us);
        }
        println!("\nthe copy alone, in Python: {copy_us:.2} µs");
        for (name, met) in met {
            println!("target {name}: {}", if met { "met" } else { "missed" });
        }
    })?;
    Ok(met.iter().all(|(_, met)| *met))
}
