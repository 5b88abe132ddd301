//! Measures how long `eval` takes to answer with and without an open run, compared with the build and the calls alone.
//!
//! *Build and calls* stands for the time that build, verification and timing took according to the result.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::figures::{Figures, conditions, show};
use super::product::binary;
use super::verify_large::tempdir;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many candidates to submit one after the other, with and without an open run
    #[arg(long, default_value_t = 10)]
    runs: u32,
    /// How many clients to submit from at once
    #[arg(long, default_value_t = 10)]
    clients: u32,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
}

/// The maximum ratio, with an open run, of the time to answer to the time for the build and the calls.
const MAX_RATIO: f64 = 1.5;
const TIMEOUT: Duration = Duration::from_secs(60);

struct Answered {
    wall_ms: f64,
    /// The time for the build and the calls.
    parts_ms: f64,
    result: Value,
}

struct Fixture {
    folder: PathBuf,
    plan: PathBuf,
    source: String,
}

impl Fixture {
    fn new() -> Result<Self> {
        let folder = tempdir()?;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
        let kernels = root.join("configs/demo/softmax");
        let plan = folder.join("plan.toml");
        let text = format!(
            "[build]\nlibraries = [\"m\"]\n[profile]\nentry_timeout = \"500ms\"\n[[job]]\nname = \"softmax\"\n\
             captures = {:?}\nbaseline = {:?}\n",
            root.join("tests/data/demo/torch_nn_functional_softmax"),
            kernels.join("naive.c")
        );
        std::fs::write(&plan, text)?;
        Ok(Self { folder, plan, source: std::fs::read_to_string(kernels.join("fast.c"))? })
    }

    /// Submits a candidate that is new, so that its build is not cached.
    fn eval(&self, name: &str) -> Result<Answered> {
        let kernel = self.folder.join(format!("{name}.c"));
        std::fs::write(&kernel, format!("{}\n// {name}\n", self.source))?;
        let started = Instant::now();
        let output = Command::new(binary("opt-supervisor")?)
            .arg("eval")
            .arg(&self.plan)
            .arg(&kernel)
            .arg("--json")
            .env("OPT_SUPERVISOR_RUNTIME_DIR", self.folder.join("sockets"))
            .output()
            .context("starting opt-supervisor eval")?;
        let wall_ms = started.elapsed().as_secs_f64() * 1e3;
        let result: Value = serde_json::from_slice(&output.stdout).with_context(|| {
            format!("`eval` printed no result: {}", String::from_utf8_lossy(&output.stderr))
        })?;
        ensure!(result["status"] == "PASSED", "{name} did not pass: {result}");
        let part = |stage: &str| {
            result[stage]["ms"].as_f64().with_context(|| format!("the result has no time of `{stage}`"))
        };
        let parts_ms = part("build")? + part("verify")? + part("profile")?;
        Ok(Answered { wall_ms, parts_ms, result })
    }

    fn open(&self) -> Result<Open> {
        let child = Command::new(binary("opt-supervisor")?)
            .arg("run")
            .arg(&self.plan)
            .args(["--keep-open", "--quiet"])
            .env("OPT_SUPERVISOR_RUNTIME_DIR", self.folder.join("sockets"))
            .stderr(Stdio::null())
            .spawn()
            .context("starting opt-supervisor run --keep-open")?;
        let open = Open { child };
        let deadline = Instant::now() + TIMEOUT;
        while !self.folder.join("runs/plan/control.sock").exists() {
            ensure!(Instant::now() < deadline, "the open run made no control socket within {TIMEOUT:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(open)
    }
}

/// An open run, which ends when this value is dropped.
struct Open {
    child: Child,
}

impl Drop for Open {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::Signal::TERM,
        );
        let _ = self.child.wait();
    }
}

#[derive(Default)]
struct Row {
    wall: Figures,
    parts: Figures,
}

impl Row {
    fn take(&mut self, answered: &Answered) {
        self.wall.push(answered.wall_ms);
        self.parts.push(answered.parts_ms);
    }

    fn ratio(&self) -> Figures {
        self.wall.over(&self.parts)
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let conditions = conditions("warm")?;
    let fixture = Fixture::new()?;
    let (mut cold, mut warm, mut crowd) = (Row::default(), Row::default(), Row::default());
    for number in 0..arguments.runs {
        cold.take(&fixture.eval(&format!("cold_{number}"))?);
    }
    let open = fixture.open()?;
    // The first request waits for the baseline. Later requests reuse its results and the workers.
    fixture.eval("first")?;
    for number in 0..arguments.runs {
        warm.take(&fixture.eval(&format!("warm_{number}"))?);
    }
    let started = Instant::now();
    let answers: Vec<Answered> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..arguments.clients)
            .map(|number| {
                let fixture = &fixture;
                scope.spawn(move || fixture.eval(&format!("crowd_{number}")))
            })
            .collect();
        asked
            .into_iter()
            .map(|asked| asked.join().map_err(|_| anyhow::anyhow!("a client panicked"))?)
            .collect::<Result<_>>()
    })?;
    let all_ms = started.elapsed().as_secs_f64() * 1e3;
    answers.iter().for_each(|answered| crowd.take(answered));
    let mut names: Vec<&str> =
        answers.iter().filter_map(|answered| answered.result["candidate"].as_str()).collect();
    names.sort_unstable();
    names.dedup();
    drop(open);
    std::fs::remove_dir_all(&fixture.folder)?;
    let none_lost = names.len() == arguments.clients as usize;
    let good = warm.ratio().median() <= MAX_RATIO && none_lost;
    let row = |row: &Row| {
        json!({ "answer": row.wall.to_json("ms"), "build_and_calls": row.parts.to_json("ms"),
                "ratio": row.ratio().to_json("") })
    };
    let sheet = json!({
        "benchmark": "eval", "conditions": conditions, "cold": row(&cold), "warm": row(&warm),
        "at_once": { "clients": arguments.clients, "answered": names.len(), "all_ms": all_ms, "each": row(&crowd) },
        "good": good,
    });
    show(arguments.json, &sheet, || {
        println!(
            "| asked | answers | answer, ms: median | p95 | most | its build and calls, ms | over them |"
        );
        println!("|---|---|---|---|---|---|---|");
        for (what, row) in
            [("no run is open", &cold), ("an open run", &warm), ("an open run, all at once", &crowd)]
        {
            println!(
                "| {what} | {} | {} | {:.0} | {:.2} |",
                row.wall.count(),
                row.wall.cells(0),
                row.parts.median(),
                row.ratio().median()
            );
        }
        println!("\n{} at once: {} answers, the last after {all_ms:.0} ms", arguments.clients, names.len());
    })?;
    Ok(good)
}
