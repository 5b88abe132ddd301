//! Checks that measured speed-ups are correct on a busy machine. Times kernels with known ratios under load from
//! threads of this process.
//!
//! The load and the runs are in one session, and therefore in one autogroup of the Linux scheduler. Load in another
//! autogroup would get a different share of the CPU. Each run appends a line to `--log`, so an interrupted series can
//! be continued.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::product::{binary, run_json};
use super::timing::{KERNEL, SPIN};
use super::verify_large::{median, tempdir};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The kernels that are compared with the baseline
    #[arg(long, value_enum, default_value_t = Case::Copies)]
    case: Case,
    /// The number of threads that keep CPUs busy during the runs
    #[arg(long, default_value_t = 0)]
    load: u32,
    #[arg(long, default_value_t = 20)]
    runs: usize,
    /// A file of earlier runs, to which new runs are added
    #[arg(long)]
    log: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Case {
    /// Ten copies of the baseline; none of them may win
    Copies,
    /// A kernel that is 1.05 times as fast as the baseline (20/21 of its work); it must win, or the ranking must be
    /// `unsettled`
    Twentieth,
    /// A kernel that does half the work; its interval must contain 2
    Half,
}

impl Case {
    const fn name(self) -> &'static str {
        match self {
            Self::Copies => "copies",
            Self::Twentieth => "twentieth",
            Self::Half => "half",
        }
    }

    /// The candidates, and the amount of work that each does.
    fn candidates(self) -> Vec<(String, u64)> {
        match self {
            Self::Copies => (0..10).map(|number| (format!("copy{number}"), SPIN)).collect(),
            Self::Twentieth => vec![("less".to_owned(), SPIN * 20 / 21)],
            Self::Half => vec![("half".to_owned(), self.baseline() / 2)],
        }
    }

    /// The amount of work of the baseline. Each call also has a fixed overhead, which makes the measured ratio smaller
    /// than 2. With 50 µs of work per call, the error would be as large as a confidence interval, so `Half` does ten
    /// times as much.
    const fn baseline(self) -> u64 {
        match self {
            Self::Copies | Self::Twentieth => SPIN,
            Self::Half => 10 * SPIN,
        }
    }
}

/// Threads that only use CPU time.
struct Load {
    quit: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn of(threads: u32) -> Self {
        let quit = Arc::new(AtomicBool::new(false));
        let threads = (0..threads)
            .map(|_| {
                let quit = Arc::clone(&quit);
                std::thread::spawn(move || {
                    while !quit.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                })
            })
            .collect();
        Self { quit, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.quit.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let mut runs = logged_runs(arguments)?;
    let folder = tempdir()?;
    let plan = prepare(&folder, arguments.case)?;
    let _load = Load::of(arguments.load);
    while runs.len() < arguments.runs {
        let summary = run_json(&plan, &[])?;
        let line = result_line(arguments, &summary["jobs"][0]);
        println!("{line}");
        if let Some(log) = &arguments.log {
            let mut file =
                OpenOptions::new().create(true).append(true).open(log).context("opening the log")?;
            writeln!(file, "{line}").context("writing the log")?;
        }
        runs.push(line);
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(judge(arguments, &runs))
}

/// Returns the runs of the same case and load in the log.
fn logged_runs(arguments: &Arguments) -> Result<Vec<Value>> {
    let Some(log) = arguments.log.as_ref().filter(|log| log.exists()) else { return Ok(Vec::new()) };
    let text = std::fs::read_to_string(log).context("reading the log")?;
    let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    Ok(lines
        .filter(|it: &Value| it["case"] == arguments.case.name() && it["load"] == arguments.load)
        .collect())
}

/// Creates captures and a plan. The tensor is so small that only the kernels' different amounts of work matter.
fn prepare(folder: &Path, case: Case) -> Result<PathBuf> {
    let made = Command::new(binary("gen-captures")?)
        .args(["op", "--name", "relu", "--shape", "4,4", "--entries", "1", "--out"])
        .arg(folder.join("relu"))
        .output()
        .context("starting gen-captures")?;
    ensure!(made.status.success(), "gen-captures: {}", String::from_utf8_lossy(&made.stderr));
    let mut names = Vec::new();
    for (name, spin) in case.candidates().into_iter().chain([("base".to_owned(), case.baseline())]) {
        std::fs::write(folder.join(format!("{name}.c")), format!("#define SPIN {spin}L\n{KERNEL}"))?;
        names.push(format!("\"{name}.c\""));
    }
    names.pop();
    let plan = folder.join("plan.toml");
    std::fs::write(
        &plan,
        format!(
            "[run]\nname = \"honest\"\n[build]\nflags = [\"-O2\"]\n[limits]\nthreads = 1\n[[job]]\ncaptures = \"relu\"\n\
             baseline = \"base.c\"\ncandidates = [{}]\n",
            names.join(", ")
        ),
    )?;
    Ok(plan)
}

/// The outcome of a run as a line.
fn result_line(arguments: &Arguments, job: &Value) -> Value {
    let candidates: Vec<Value> = job["candidates"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|it| it["name"] != "base")
        .map(|it| {
            json!({
                "name": it["name"], "speedup": it["speedup"], "status": it["status"],
                "wait_share": it["profile"]["wait_share"], "runners": it["profile"]["runners"],
            })
        })
        .collect();
    json!({
        "case": arguments.case.name(), "load": arguments.load, "winner": job["winner"], "ranking": job["ranking"],
        "candidates": candidates,
    })
}

fn judge(arguments: &Arguments, runs: &[Value]) -> bool {
    let count = |matches: &dyn Fn(&Value) -> bool| runs.iter().filter(|it| matches(it)).count();
    let settled = |it: &Value| it["ranking"] == "settled";
    let unsettled = count(&|it| !settled(it));
    let (right, wrong) = match arguments.case {
        Case::Copies => {
            (count(&|it| settled(it) && it["winner"].is_null()), count(&|it| !it["winner"].is_null()))
        }
        Case::Twentieth | Case::Half => (
            count(&|it| settled(it) && !it["winner"].is_null()),
            count(&|it| settled(it) && it["winner"].is_null()),
        ),
    };
    println!(
        "{} runs of {} at load {}: {right} right, {wrong} wrong, {unsettled} unsettled",
        runs.len(),
        arguments.case.name(),
        arguments.load
    );
    let truth = match arguments.case {
        Case::Copies => 1.0,
        Case::Twentieth => 1.05,
        Case::Half => 2.0,
    };
    let all: Vec<&Value> = runs.iter().filter_map(|it| it["candidates"].as_array()).flatten().collect();
    let figure = |it: &Value, field: &str| it["speedup"][field].as_f64();
    let containing = all
        .iter()
        .filter(|it| {
            figure(it, "ci_low").is_some_and(|low| low <= truth)
                && figure(it, "ci_high").is_some_and(|high| truth <= high)
        })
        .count();
    let mut values: Vec<f64> = all.iter().filter_map(|it| figure(it, "value")).collect();
    let mut widths: Vec<f64> = all
        .iter()
        .filter_map(|it| Some((figure(it, "ci_high")? - figure(it, "ci_low")?) / 2.0 / figure(it, "value")?))
        .collect();
    println!(
        "{containing} of {} intervals contain {truth}; median speed-up {:.3}; median half-width of the intervals {:.2} % of the speed-up",
        all.len(),
        median(&mut values),
        median(&mut widths) * 100.0
    );
    wrong == 0
}
