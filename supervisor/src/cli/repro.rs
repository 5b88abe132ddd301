//! `opt-supervisor repro`: one call of an earlier run again, alone.
//!
//! The same plan, the same stages and the same rules, cut down to one candidate and one entry, in a run folder of
//! its own below the first one.

use std::path::Path;

use super::{Answer, Failure, ReproArguments, log, print_out};
use crate::driver::RunOptions;
use crate::plan::Plan;
use crate::store::Store;

pub(super) fn repro(arguments: &ReproArguments) -> Answer {
    log::start();
    let text = Store::read(&arguments.run_dir)
        .and_then(|store| store.stored_plan())
        .map_err(Failure::host)?
        .ok_or_else(|| Failure::usage(anyhow::anyhow!("{} holds no plan", arguments.run_dir.display())))?;
    // The stored plan is resolved: its paths are absolute, so it may stand anywhere.
    let mut plan = Plan::parse(&text, Path::new("/stored-plan.toml"), &[]).map_err(Failure::usage)?;
    let (job, candidate) = find(&plan, &arguments.candidate)?;
    let job = &mut plan.jobs[job];
    let name = arguments.entry.trim_end_matches(".pt");
    job.entries = vec![format!("{name}.pt")];
    // What other entries had in common still decides the arguments: the signature is settled over all of them in the
    // first run, so one entry alone is only the same call if it has them all. `params` of the plan keep their say.
    let wanted = format!("{}/{}", job.name, job.candidates[candidate].name);
    plan.run.stages.profile = false;
    plan.run.name = format!("repro-{}-{name}", job_safe(&wanted));
    plan.base_dir = arguments.run_dir.clone();
    let (exit, folder) = super::run::supervise(RunOptions {
        plan,
        dir: None,
        resume: false,
        only: vec![wanted],
        min_speedup: None,
        progress: false,
    })?;
    print_out(&super::run::result_text(&folder)?)?;
    Ok(exit)
}

fn find(plan: &Plan, wanted: &str) -> Result<(usize, usize), Failure> {
    let mut found = Vec::new();
    for (job_at, job) in plan.jobs.iter().enumerate() {
        for (at, candidate) in job.candidates.iter().enumerate() {
            if candidate.name == wanted || format!("{}/{}", job.name, candidate.name) == wanted {
                found.push((job_at, at));
            }
        }
    }
    match found.as_slice() {
        [one] => Ok(*one),
        [] => Err(Failure::usage(anyhow::anyhow!("the run has no candidate `{wanted}`"))),
        _ => Err(Failure::usage(anyhow::anyhow!(
            "several jobs have a candidate `{wanted}`: name it JOB/{wanted}"
        ))),
    }
}

/// A folder name.
fn job_safe(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect()
}
