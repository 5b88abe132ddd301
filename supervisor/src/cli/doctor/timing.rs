//! Measures the smallest difference in time that this machine can detect right now.
//!
//! The trial times copies of one kernel against the kernel itself, as candidates are timed against a baseline. It is a
//! separate run of this program, in a temporary folder.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use opt_shared::child;
use serde_json::{Value, json};

/// A recorded call of a ReLU.
const CAPTURE: &[u8] = include_bytes!("../../../../configs/doctor/entry_000000.pt");
/// A kernel for that call, which takes about 50 µs.
const KERNEL: &[u8] = include_bytes!("../../../../configs/doctor/spin.c");
/// The number of copies of the kernel that are timed against it.
const COPIES: usize = 3;
/// The timeout of the trial, which takes about ten seconds on a quiet machine.
const TRIAL_TIMEOUT: Duration = Duration::from_mins(3);
/// The file for the trial's standard output. It is not a pipe, because a pipe could fill up before the trial ends.
const RESULT: &str = "result.json";
/// The file for the trial's standard error.
const MESSAGES: &str = "messages.txt";
/// The differences to report, as shares of the baseline's time.
const STEPS: [f64; 7] = [0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2];

/// The measured speed-ups of copies of a kernel against the kernel itself.
pub(super) struct Trial {
    /// The lowest lower bound of the copies' speed-up intervals.
    low: f64,
    /// The highest upper bound of these intervals.
    high: f64,
    /// The largest share of their timed blocks that a copy or the kernel spent waiting for a CPU.
    wait_share: Option<f64>,
}

impl Trial {
    pub(super) fn run() -> Result<Self> {
        let folder = tempfile::tempdir().context("creating a folder for the trial")?;
        let document = run_in(folder.path())?;
        Self::of(&document)
    }

    fn of(document: &Value) -> Result<Self> {
        let candidates =
            document["jobs"][0]["candidates"].as_array().context("the trial's result has no candidates")?;
        let (mut low, mut high, mut wait_share) = (f64::INFINITY, f64::NEG_INFINITY, None);
        for candidate in candidates.iter().filter(|it| it["name"] != "base") {
            let bound = |field: &str| candidate["speedup"][field].as_f64();
            let Some((least, most)) = bound("ci_low").zip(bound("ci_high")) else {
                let (status, detail) = (&candidate["status"], &candidate["detail"]);
                bail!("a copy of the kernel was not timed: {status} ({detail})");
            };
            low = low.min(least);
            high = high.max(most);
            wait_share =
                candidate["profile"]["wait_share"].as_f64().into_iter().chain(wait_share).reduce(f64::max);
        }
        if low > high {
            bail!("the trial's result has no copies");
        }
        Ok(Self { low, high, wait_share })
    }

    /// Returns the differences that can and cannot be detected: the smallest of `STEPS` that is above the largest error
    /// of a copy, and the largest that is not above it.
    fn differences(&self) -> (Option<f64>, Option<f64>) {
        let error = (1.0 - self.low).max(self.high - 1.0);
        (STEPS.into_iter().find(|&step| error < step), STEPS.into_iter().rev().find(|&step| step <= error))
    }

    pub(super) fn text(&self) -> String {
        let percent = |share: f64| format!("{} %", share * 100.0);
        let summary = match self.differences() {
            (Some(detectable), Some(hidden)) => {
                format!(
                    "this machine can detect differences of {}, but not of {}",
                    percent(detectable),
                    percent(hidden)
                )
            }
            (Some(detectable), None) => {
                format!("this machine can detect differences of {}", percent(detectable))
            }
            (None, _) => {
                format!("this machine cannot detect differences of {} now", percent(STEPS[STEPS.len() - 1]))
            }
        };
        let waited = self.wait_share.filter(|&share| 0.005 < share);
        let waited = waited
            .map(|share| format!("; up to {:.0} % of the time was spent waiting for a CPU", share * 100.0));
        format!(
            "{summary} ({COPIES} copies of one kernel measured {:.3} to {:.3} times as fast as the kernel itself{})",
            self.low,
            self.high,
            waited.unwrap_or_default()
        )
    }

    pub(super) fn document(&self) -> Value {
        json!({
            "copies": COPIES, "low": self.low, "high": self.high, "wait_share": self.wait_share,
            "difference": self.differences().0,
        })
    }
}

fn run_in(folder: &Path) -> Result<Value> {
    std::fs::create_dir(folder.join("captures")).context("creating the trial's captures")?;
    std::fs::write(folder.join("captures/entry_000000.pt"), CAPTURE)
        .context("writing the trial's capture")?;
    let names: Vec<String> =
        (0..COPIES).map(|number| format!("copy{number}")).chain(["base".to_owned()]).collect();
    for name in &names {
        std::fs::write(folder.join(format!("{name}.c")), KERNEL).context("writing the trial's kernel")?;
    }
    std::fs::write(
        folder.join("plan.toml"),
        "[run]\nname = \"doctor\"\n[build]\nflags = [\"-O2\"]\n[limits]\nthreads = 1\n[profile]\nentry_timeout = \"3s\"\n\
         max_noise = \"0.4%\"\n[[job]]\ncaptures = \"captures\"\nbaseline = \"base.c\"\ncandidates = [\"copy*.c\"]\n",
    )
    .context("writing the trial's plan")?;
    let create = |name: &str| File::create_new(folder.join(name)).context("creating the trial's files");
    let mut command = Command::new("/proc/self/exe");
    command.args(["run", "plan.toml", "--json"]).current_dir(folder);
    command.stdin(Stdio::null()).stdout(create(RESULT)?).stderr(create(MESSAGES)?);
    let mut trial = child::start(&mut command).context("starting the trial")?;
    if !child::ends_within(&mut trial, TRIAL_TIMEOUT).context("waiting for the trial")? {
        bail!("the trial took longer than {TRIAL_TIMEOUT:?}");
    }
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).context("reading the trial's output");
    serde_json::from_str(&read(RESULT)?).with_context(|| {
        let messages = read(MESSAGES).unwrap_or_default();
        format!(
            "the trial has no result: {}",
            messages.trim().lines().last().unwrap_or("it printed no error")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(bounds: &[(f64, f64)]) -> Result<Trial> {
        let copy = |&(low, high): &(f64, f64)| json!({"name": "copy", "speedup": {"ci_low": low, "ci_high": high}, "profile": {"wait_share": 0.25}});
        let mut candidates: Vec<Value> = bounds.iter().map(copy).collect();
        candidates.push(json!({"name": "base", "speedup": null}));
        Trial::of(&json!({"jobs": [{"candidates": candidates}]}))
    }

    #[test]
    fn trial_names_the_smallest_detectable_difference() {
        for (bounds, detectable, hidden) in [
            (&[(0.998, 1.002)][..], Some(0.005), None),
            (&[(0.995, 1.002), (0.99, 1.012)], Some(0.02), Some(0.01)),
            (&[(0.7, 1.002)], None, Some(0.2)),
        ] {
            let trial = trial(bounds).expect("timed");
            assert_eq!(trial.differences(), (detectable, hidden), "{bounds:?}");
            assert!(trial.text().contains("25 % of the time"), "{}", trial.text());
        }
    }

    #[test]
    fn trial_without_times_is_an_error() {
        assert!(trial(&[]).is_err());
        let failed = json!({"jobs": [{"candidates": [{"name": "copy", "status": "COMPILE_ERROR", "detail": "no cc"}]}]});
        let error = Trial::of(&failed).err().expect("no figures").to_string();
        assert!(error.contains("COMPILE_ERROR"), "{error}");
    }
}
