//! Checks that measured speed-ups are correct on a busy machine, by timing kernels with known ratios beside processes
//! that only spin. With `--log`, each run appends a line to a file, so that an interrupted series can be continued.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::load::Load;
use super::product::{generate, run_json};
use super::timing::{KERNEL, SPIN};
use super::verify_large::{median, tempdir};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The kernels that are compared with the baseline
    #[arg(long, value_enum, default_value_t = Case::Copies)]
    case: Case,
    /// The number of processes that keep CPUs busy during the runs
    #[arg(long, default_value_t = 0)]
    load: u32,
    /// The number of OpenMP threads of each kernel
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    threads: u32,
    /// The number of runs, including those in the log
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
    /// A kernel that does half the work; it must win, or the ranking must be `unsettled`, and 95 % of its intervals
    /// must contain 2
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

    /// Returns the candidates, each with the amount of work that it does.
    fn candidates(self, threads: u32) -> Vec<(String, u64)> {
        match self {
            Self::Copies => (0..10).map(|number| (format!("copy{number}"), self.baseline(threads))).collect(),
            Self::Twentieth => vec![("less".to_owned(), self.baseline(threads) * 20 / 21)],
            Self::Half => vec![("half".to_owned(), self.baseline(threads) / 2)],
        }
    }

    /// Returns the amount of work of the baseline. Each call also has a fixed overhead, which makes the measured ratio
    /// of `Half` smaller than 2. With 60 µs of work per call, this error would be as large as a confidence interval, so
    /// `Half` does ten times as much work. With several threads, waking them takes about 40 µs, because runners set
    /// `OMP_WAIT_POLICY=passive`, so each case then does eighty times as much work.
    const fn baseline(self, threads: u32) -> u64 {
        let more = if 1 < threads { 80 } else { 1 };
        match self {
            Self::Copies | Self::Twentieth => more * SPIN,
            Self::Half => more * 10 * SPIN,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let mut runs = logged_runs(arguments)?;
    let folder = tempdir()?;
    let plan = prepare(&folder, arguments)?;
    let _load = Load::of(arguments.load)?;
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

/// Returns the runs in the log that have the same case, load and number of threads.
fn logged_runs(arguments: &Arguments) -> Result<Vec<Value>> {
    let Some(log) = arguments.log.as_ref().filter(|log| log.exists()) else { return Ok(Vec::new()) };
    let text = std::fs::read_to_string(log).context("reading the log")?;
    let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    Ok(lines
        .filter(|it: &Value| {
            it["case"] == arguments.case.name()
                && it["load"] == arguments.load
                && it["threads"] == arguments.threads
        })
        .collect())
}

/// Creates captures and a plan. The tensor is so small that only the kernels' different amounts of work affect the
/// times.
fn prepare(folder: &Path, arguments: &Arguments) -> Result<PathBuf> {
    let Arguments { case, threads, .. } = *arguments;
    generate(&["op", "--name", "relu", "--shape", "4,4", "--entries", "1"], &folder.join("relu"))?;
    let mut names = Vec::new();
    for (name, spin) in
        case.candidates(threads).into_iter().chain([("base".to_owned(), case.baseline(threads))])
    {
        std::fs::write(folder.join(format!("{name}.c")), format!("#define SPIN {spin}L\n{KERNEL}"))?;
        names.push(format!("\"{name}.c\""));
    }
    names.pop();
    let plan = folder.join("plan.toml");
    let openmp = if 1 < threads { ", \"-fopenmp\"" } else { "" };
    std::fs::write(
        &plan,
        format!(
            "[run]\nname = \"honest\"\n[build]\nflags = [\"-O2\"{openmp}]\n[limits]\nthreads = {threads}\n[[job]]\ncaptures = \"relu\"\n\
             baseline = \"base.c\"\ncandidates = [{}]\n",
            names.join(", ")
        ),
    )?;
    Ok(plan)
}

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
        "case": arguments.case.name(), "load": arguments.load, "threads": arguments.threads, "winner": job["winner"], "ranking": job["ranking"],
        "candidates": candidates,
    })
}

/// The largest load to which each row applies, and the share of runs that may be unsettled. The shares stand for 1, 2
/// and 8 of 20 runs.
const MAX_UNSETTLED: [(u32, f64); 3] = [(0, 0.05), (4, 0.1), (u32::MAX, 0.4)];
/// The share of intervals that must contain the true ratio, for the case in which this ratio is 2.
const MIN_CONTAINING: f64 = 0.95;
/// The largest half-width of the median interval, relative to the speed-up, for the case in which the true ratio is 2.
const MAX_HALF_WIDTH: f64 = 0.1;
/// The largest difference between the median speed-up and 2, relative to 2. Applies if all runs may be unsettled.
const MAX_BIAS: f64 = 0.25;

#[derive(Clone, Copy, Debug)]
struct Series {
    runs: usize,
    wrong: usize,
    unsettled: usize,
    intervals: usize,
    /// The number of intervals that contain the true ratio.
    containing: usize,
    /// The median half-width of the intervals, relative to the speed-up.
    half_width: f64,
    /// The median speed-up.
    speedup: f64,
}

/// The load from which on kernels with more than one thread may always be unsettled.
const BUSY: u32 = 4;

fn most_unsettled(load: u32, threads: u32) -> f64 {
    if 1 < threads && BUSY <= load {
        return 1.0;
    }
    MAX_UNSETTLED.iter().find(|(most, _)| load <= *most).map_or(0.0, |(_, share)| *share)
}

fn unmet(case: Case, load: u32, threads: u32, series: &Series) -> Vec<String> {
    let mut unmet = Vec::new();
    if 0 < series.wrong {
        unmet.push(format!("{} runs are wrong, and none may be", series.wrong));
    }
    let share = most_unsettled(load, threads);
    // Add a millionth, because rounding may make a product such as 20 * 0.1 too small.
    if series.runs as f64 * share + 1e-6 < series.unsettled as f64 {
        unmet.push(format!(
            "{} of {} runs are unsettled, and at load {load} at most {:.0} % may be",
            series.unsettled,
            series.runs,
            share * 100.0
        ));
    }
    if case == Case::Half {
        if (series.containing as f64) < series.intervals as f64 * MIN_CONTAINING {
            unmet.push(format!(
                "{} of {} intervals contain the true ratio, and {:.0} % must",
                series.containing,
                series.intervals,
                MIN_CONTAINING * 100.0
            ));
        }
        // If all runs may be unsettled, the intervals can be so wide that they contain anything. Therefore judge the
        // median speed-up, not the width of the intervals.
        if 1.0 <= most_unsettled(load, threads) {
            if MAX_BIAS < (series.speedup / 2.0 - 1.0).abs() {
                unmet.push(format!(
                    "the median speed-up is {:.2}, and it must differ from 2 by at most {:.0} %",
                    series.speedup,
                    MAX_BIAS * 100.0
                ));
            }
        } else if MAX_HALF_WIDTH < series.half_width {
            unmet.push(format!(
                "the median half-width of the intervals is {:.1} %, and at most {:.0} % is allowed",
                series.half_width * 100.0,
                MAX_HALF_WIDTH * 100.0
            ));
        }
    }
    unmet
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
        "{} runs of {} with {} thread(s) at load {}: {right} right, {wrong} wrong, {unsettled} unsettled",
        runs.len(),
        arguments.case.name(),
        arguments.threads,
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
    let (half_width, speedup) = (median(&mut widths), median(&mut values));
    println!(
        "{containing} of {} intervals contain {truth}; median speed-up {:.3}; median half-width of the intervals {:.2} % of the speed-up",
        all.len(),
        speedup,
        half_width * 100.0
    );
    let intervals = all.len();
    let series = Series { runs: runs.len(), wrong, unsettled, intervals, containing, half_width, speedup };
    let unmet = unmet(arguments.case, arguments.load, arguments.threads, &series);
    unmet.iter().for_each(|requirement| println!("not met: {requirement}"));
    unmet.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Series = Series {
        runs: 20,
        wrong: 0,
        unsettled: 0,
        intervals: 20,
        containing: 19,
        half_width: 0.1,
        speedup: 2.0,
    };

    #[test]
    fn series_must_be_right_settled_and_precise() {
        let unsettled = |unsettled| Series { unsettled, ..GOOD };
        for (case, load, series, count) in [
            (Case::Half, 10, GOOD, 0),
            (Case::Copies, 10, Series { wrong: 1, ..GOOD }, 1),
            (Case::Copies, 0, unsettled(1), 0),
            (Case::Copies, 0, unsettled(2), 1),
            (Case::Copies, 4, unsettled(2), 0),
            (Case::Copies, 4, unsettled(3), 1),
            (Case::Twentieth, 5, unsettled(8), 0),
            (Case::Twentieth, 10, unsettled(9), 1),
            (Case::Half, 0, Series { containing: 18, ..GOOD }, 1),
            (Case::Half, 0, Series { half_width: 0.11, ..GOOD }, 1),
            // In the other cases, the winner shows whether the intervals were good enough.
            (Case::Twentieth, 0, Series { containing: 18, half_width: 0.11, ..GOOD }, 0),
            (Case::Half, 0, Series { wrong: 1, unsettled: 2, containing: 0, half_width: 1.0, ..GOOD }, 4),
        ] {
            let unmet = unmet(case, load, 1, &series);
            assert_eq!(unmet.len(), count, "{case:?} {load} {series:?}: {unmet:?}");
        }
        for (load, runs, count) in [(3, 20, 1), (4, 20, 0), (10, 20, 0), (0, 2, 1), (0, 1, 0)] {
            assert_eq!(unmet(Case::Half, load, 2, &unsettled(runs)).len(), count, "two threads, load {load}");
        }
        for (speedup, count) in [(2.4, 0), (2.6, 1), (1.6, 0), (1.4, 1)] {
            let series = Series { half_width: 9.0, speedup, ..unsettled(20) };
            assert_eq!(unmet(Case::Half, 4, 2, &series).len(), count, "{speedup}");
        }
        assert_eq!(unmet(Case::Copies, 10, 2, &Series { wrong: 1, ..GOOD }).len(), 1);
    }
}
