//! `opt-supervisor repro`: repeats a single call of an earlier run.
//!
//! It uses the plan and the rules of that run, reduced to one candidate and one entry, and times nothing. Its run
//! folder is created inside the folder of the earlier run.

use opt_shared::ids::{CandidateId, JobId};

use super::stored::{folder_safe, stored_plan};
use super::{CommandResult, Failure, ReproArguments, log, print_out};
use crate::driver::survey::facts::JobFacts;
use crate::plan::Plan;
use crate::store::Store;

pub(super) fn repro(arguments: &ReproArguments) -> CommandResult {
    log::start();
    let mut plan = stored_plan(&arguments.run_dir)?;
    let (job, candidate) = find(&plan, &arguments.candidate)?;
    // Everything else is removed from the plan, so that the result covers only this call.
    let mut job = plan.jobs.swap_remove(job);
    let wanted = format!("{}/{}", job.name, job.candidates[candidate].name);
    let mut candidate = job.candidates.swap_remove(candidate);
    (candidate.id, candidate.job, job.id) = (CandidateId(0), JobId(0), JobId(0));
    (job.candidates, job.baseline) = (vec![candidate], None);
    let name = arguments.entry.trim_end_matches(".pt");
    // The order of arguments is derived from all entries. One entry alone could give a different order.
    let files = crate::plan::entry_files(&job).map_err(Failure::usage)?;
    let facts = JobFacts::read(&job, &files);
    let signature = facts.signature.ok_or_else(|| {
        Failure::usage(anyhow::anyhow!(
            "the captures can no longer be used: {}",
            facts.broken.unwrap_or_default()
        ))
    })?;
    let stored =
        Store::read(&arguments.run_dir).and_then(|store| store.stored_jobs()).map_err(Failure::host)?;
    let before = stored.into_iter().find(|it| it.name == job.name).and_then(|it| it.captures_digest);
    if before.is_some_and(|before| before != facts.digest) {
        tracing::warn!(
            "the captures of job `{}` have changed since the run, so this result may differ from the run's",
            job.name
        );
    }
    job.params = Some(signature.params);
    job.defaults.extend(signature.defaults);
    job.entries = vec![format!("{name}.pt")];
    plan.jobs = vec![job];
    plan.replays.clear();
    plan.run.stages.profile = false;
    plan.run.name = format!("repro-{}-{name}", folder_safe(&wanted));
    plan.base_dir = arguments.run_dir.clone();
    let (exit, folder) = super::run::supervise(super::run::plain(plan), false)?;
    print_out(&super::report::result_text(&folder, true, crate::report::text::Detail::Everything)?)?;
    Ok(exit)
}

/// Finds a candidate by name. Returns the index of its job, and its index in the job.
fn find(plan: &Plan, wanted: &str) -> Result<(usize, usize), Failure> {
    let mut found = Vec::new();
    for (job_index, job) in plan.jobs.iter().enumerate() {
        for (index, candidate) in job.candidates.iter().enumerate() {
            if candidate.name == wanted || format!("{}/{}", job.name, candidate.name) == wanted {
                found.push((job_index, index));
            }
        }
    }
    match found.as_slice() {
        [one] => Ok(*one),
        [] => Err(Failure::usage(anyhow::anyhow!("the run has no candidate `{wanted}`"))),
        _ => Err(Failure::usage(anyhow::anyhow!(
            "several jobs have a candidate `{wanted}` (write JOB/{wanted})"
        ))),
    }
}
