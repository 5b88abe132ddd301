//! `opt-supervisor eval`: submits one candidate and prints its result.
//!
//! The file is submitted to a live run of the plan, because that run may already have workers and a timed baseline. If
//! there is no live run, `eval` makes a short run of the baseline and this candidate.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use clap::Args;
use opt_shared::ids::{CandidateId, JobId};
use opt_shared::language::Language;
use serde_json::{Value, json};

use super::ctl::{absolute, failure};
use super::{CommandResult, Failure, ctl_text, load_plan, log, print_out, run};
use crate::control::SubmitParams;
use crate::control::client::Client;
use crate::driver::RunOptions;
use crate::driver::answer::requests::live_runs;
use crate::driver::answer::submissions;
use crate::exit::Exit;
use crate::plan::{Plan, Submission};
use crate::store::Store;

#[derive(Args)]
#[command(after_help = super::EVAL_CODES)]
pub(super) struct EvalArguments {
    /// The plan, a TOML file
    plan: PathBuf,
    /// The candidate: a source file, or a prebuilt file (`.so`, `.ptx`, `.cubin`)
    file: PathBuf,
    /// The candidate's job; required if the plan has several
    #[arg(long)]
    job: Option<String>,
    /// The candidate's language [default: from the suffix]; required for `torch-extension`, `torch-cuda`, `triton` and
    /// `triton-device`
    #[arg(long, value_parser = Language::runnable)]
    language: Option<Language>,
    /// The function to call [default: the language's, `run` or `launch`]
    #[arg(long)]
    symbol: Option<String>,
    /// The candidate whose launches a kernel without host code uses [default: the baseline, else the first that has
    /// launches]
    #[arg(long, value_name = "CANDIDATE")]
    like: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(super) fn eval(arguments: EvalArguments) -> CommandResult {
    log::start();
    let file = absolute(&arguments.file)?;
    // Only regular files are accepted, because opening a pipe would wait for its other end.
    if std::fs::metadata(&file).is_ok_and(|it| !it.is_file()) {
        let what = anyhow::anyhow!("cannot submit `{file}`: it is not a regular file (name a source file)");
        return Err(Failure::usage(what));
    }
    let (ended, result) = match open_run(&arguments.plan)? {
        Some(client) => (None, by_open_run(client, &arguments, &file)?),
        None => {
            let (exit, result) = by_short_run(&arguments, Path::new(&file))?;
            (Some(exit), result)
        }
    };
    print_out(&if arguments.json { format!("{result:#}\n") } else { ctl_text::result(&result) })?;
    Ok(match result["status"].as_str() {
        Some("PASSED") => Exit::Good,
        Some("INFRA_ERROR") => Exit::Host,
        // There is no result, because the run ended before the candidate did.
        None => ended.filter(|exit| *exit != Exit::Good).unwrap_or(Exit::Host),
        _ => Exit::NonePassed,
    })
}

/// Returns a connection to the first live run of the same plan file that is not ending.
fn open_run(plan: &Path) -> Result<Option<Client>, Failure> {
    let plan = absolute(plan)?;
    for found in live_runs() {
        // If a run does not answer, because it is ending or too busy, it is skipped.
        let Ok(mut client) = Client::connect(&found.socket) else { continue };
        let Ok(status) = client.call("status", &json!({})) else { continue };
        let running_plan = status["run"]["plan"].as_str().and_then(|path| std::fs::canonicalize(path).ok());
        if running_plan.as_deref() == Some(Path::new(&plan)) && status["run"]["ending"] == "no" {
            return Ok(Some(client));
        }
    }
    Ok(None)
}

fn by_open_run(mut client: Client, arguments: &EvalArguments, file: &str) -> Result<Value, Failure> {
    let params = SubmitParams {
        job: arguments.job.clone(),
        sources: vec![file.to_owned()],
        language: arguments.language,
        symbol: arguments.symbol.clone(),
        like: arguments.like.clone(),
        ..SubmitParams::default()
    };
    let submitted = client.call("submit", &json!(params)).map_err(failure)?;
    client.wait_forever();
    client.call("result", &json!({ "candidate": submitted["candidate"], "wait": true })).map_err(failure)
}

/// Verifies and times the candidate in a separate run. Returns the run's exit code and the candidate's result.
fn by_short_run(arguments: &EvalArguments, file: &Path) -> Result<(Exit, Value), Failure> {
    let mut plan = load_plan(&arguments.plan, &[])?;
    let id = reduce(&mut plan, arguments, file)?;
    let full_name = {
        let candidate = plan.candidate(id).map_or("", |it| it.name.as_str());
        format!("{}/{candidate}", plan.jobs[0].name)
    };
    plan.run.name = format!("{}-eval", plan.run.name);
    let (exit, folder) = run::supervise(
        RunOptions { progress: !arguments.json && std::io::stderr().is_terminal(), ..run::plain(plan) },
        false,
    )?;
    let record = Store::read(&folder).and_then(|store| store.load()).map_err(Failure::host)?;
    let candidate =
        record.jobs.into_iter().flat_map(|job| job.candidates).nth(id.index()).ok_or_else(|| {
            Failure::host(anyhow::anyhow!("the run in {} has no result for the candidate", folder.display()))
        })?;
    let mut result = json!({ "candidate": full_name, "done": candidate.status.is_some() });
    let fields = serde_json::to_value(candidate).map_err(Failure::host)?;
    if let (Some(result), Value::Object(fields)) = (result.as_object_mut(), fields) {
        result.extend(fields);
    }
    Ok((exit, result))
}

/// Removes everything from the plan except the job's baseline and the new candidate.
fn reduce(plan: &mut Plan, arguments: &EvalArguments, file: &Path) -> Result<CandidateId, Failure> {
    let index = match arguments.job.as_deref() {
        Some(name) => plan
            .jobs
            .iter()
            .position(|job| job.name == name)
            .ok_or_else(|| Failure::usage(anyhow::anyhow!("the plan has no job `{name}`")))?,
        None if plan.jobs.len() == 1 => 0,
        None => {
            let names: Vec<&str> = plan.jobs.iter().map(|job| job.name.as_str()).collect();
            return Err(Failure::usage(anyhow::anyhow!(
                "the plan has several jobs (name one with --job: {})",
                names.join(", ")
            )));
        }
    };
    let mut job = plan.jobs.swap_remove(index);
    let launch = job.launch_like(arguments.like.as_deref()).map_err(Failure::usage)?;
    job.candidates.retain(|candidate| Some(candidate.id) == job.baseline);
    job.id = JobId(0);
    if let Some(baseline) = job.candidates.first_mut() {
        (baseline.id, baseline.job) = (CandidateId(0), JobId(0));
        job.baseline = Some(CandidateId(0));
    }
    plan.jobs = vec![job];
    plan.replays.clear();
    let submission = Submission {
        name: None,
        sources: vec![file.to_owned()],
        language: arguments.language,
        symbol: arguments.symbol.clone(),
        launch,
    };
    submissions::add_to_separate_run(plan, 0, &submission).map_err(Failure::usage)
}
