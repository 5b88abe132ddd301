//! Composes the core's description of the run before the run starts, and selects the candidates that take part.

use std::time::Duration;

use opt_shared::formula::{IDLE_WORKER, SUPERVISOR, SUPERVISOR_PER_ITEM};
use opt_shared::ids::{JobId, UnitId};
use opt_shared::units::Bytes;

use super::facts::JobFacts;
use super::needs::JobNeeds;
use crate::core::Ceilings;
use crate::core::spec::{JobSpec, RunSpec, UnitSpec};
use crate::driver::candidate_facts::CandidateFacts;
use crate::driver::error::RunError;
use crate::driver::folder::resume;
use crate::plan::{CandidatePlan, JobPlan, Plan, SwapUse};

/// Returns which candidates are run: all, or those that `--only` names, with their baselines.
pub fn selected(plan: &Plan, only: &[String]) -> Result<Vec<bool>, RunError> {
    let count = plan.candidates().count();
    if only.is_empty() {
        return Ok(vec![true; count]);
    }
    let mut selected = vec![false; count];
    for wanted in only {
        let mut found = false;
        for job in &plan.jobs {
            for candidate in &job.candidates {
                let is_whole_job = *wanted == job.name;
                let one = wanted.strip_prefix(&job.name).and_then(|rest| rest.strip_prefix('/'));
                if is_whole_job || one == Some(candidate.name.as_str()) {
                    found = true;
                    selected[candidate.id.index()] = true;
                    if let Some(baseline) = job.baseline {
                        selected[baseline.index()] = true;
                    }
                }
            }
        }
        if !found {
            return Err(RunError::NothingSelected { wanted: wanted.clone() });
        }
    }
    Ok(selected)
}

/// Returns the description of the run that the core receives.
pub fn spec(plan: &Plan, facts: &[JobFacts], ceilings: Ceilings, floor: Bytes) -> RunSpec {
    let job_spec = |(job, facts): (&JobPlan, &JobFacts)| JobSpec {
        id: job.id,
        recycle: (*job.recycle).clone(),
        broken: facts.broken.clone(),
        after: Vec::new(),
        budget: job.profile.budget,
    };
    let mut jobs: Vec<JobSpec> = plan.jobs.iter().zip(facts).map(job_spec).collect();
    let after: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    // Each replay is a separate job, because the memory of one replay predicts nothing about another.
    jobs.extend((0..plan.replays.len()).map(|replay| JobSpec {
        id: job_of_replay(plan, replay),
        recycle: (*plan.settings.recycle).clone(),
        broken: None,
        after: after.clone(),
        budget: Duration::MAX,
    }));
    let entries: usize = facts.iter().map(|facts| facts.entries.len()).sum();
    let items = (plan.candidates().count() + entries) as u64;
    RunSpec {
        ceilings,
        floor,
        idle_worker: IDLE_WORKER,
        supervisor: SUPERVISOR + SUPERVISOR_PER_ITEM.saturating_mul(items),
        verifiers: plan.run.verifiers.get(),
        spare: plan.memory.spare,
        own_swap: plan.memory.swap == SwapUse::Own,
        jobs,
    }
}

/// Returns the job that the core gets for a replay.
pub fn job_of_replay(plan: &Plan, replay: usize) -> JobId {
    JobId(u32::try_from(plan.jobs.len() + replay).unwrap_or(u32::MAX))
}

/// Returns the index of the replay to which a job belongs, or `None` for a job of the plan.
pub fn replay_of_job(plan: &Plan, job: JobId) -> Option<usize> {
    job.index().checked_sub(plan.jobs.len()).filter(|&replay| replay < plan.replays.len())
}

/// Returns the description of a candidate that the core receives.
pub fn unit_spec(
    id: UnitId,
    needs: &mut JobNeeds<'_>,
    job: &JobPlan,
    candidate: &CandidatePlan,
    facts: &CandidateFacts,
) -> UnitSpec {
    UnitSpec {
        id,
        route: needs.route(candidate),
        is_baseline: job.baseline == Some(candidate.id),
        partial: candidate.partial,
        resumed: resume::for_the_core(facts).map(Box::new),
    }
}
