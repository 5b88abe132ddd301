//! What the core is told of a run before it starts, and which candidates take part.

use opt_shared::formula::{IDLE_WORKER, PER_LINE, SUPERVISOR};
use opt_shared::ids::CandidateId;
use opt_shared::units::Bytes;

use super::facts::JobFacts;
use super::needs::JobNeeds;
use crate::core::Ceilings;
use crate::core::spec::{CandidateSpec, JobSpec, RunSpec};
use crate::driver::error::RunError;
use crate::driver::folder::resume;
use crate::driver::known::Known;
use crate::plan::{CandidatePlan, Plan, SwapUse};

/// Which candidates are run: all, or those that `--only` names and their baselines.
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
                let whole = *wanted == job.name;
                let one = wanted.strip_prefix(&job.name).and_then(|rest| rest.strip_prefix('/'));
                if whole || one == Some(candidate.name.as_str()) {
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

pub fn spec(
    plan: &Plan,
    facts: &[JobFacts],
    known: &[Known],
    ceilings: Ceilings,
    floor: Bytes,
    cores: u32,
) -> RunSpec {
    let mut jobs = Vec::new();
    let mut candidates: Vec<CandidateSpec> = Vec::new();
    for (job, facts) in plan.jobs.iter().zip(facts) {
        let mut order: Vec<CandidateId> = job.baseline.into_iter().collect();
        order.extend(job.candidates.iter().map(|it| it.id).filter(|id| Some(*id) != job.baseline));
        jobs.push(JobSpec {
            id: job.id,
            baseline: job.baseline,
            candidates: order,
            recycle: (*job.recycle).clone(),
            broken: facts.broken.clone(),
            timed: plan.run.stages.profile && facts.entries.iter().any(|fact| fact.scored),
        });
        let mut needs = JobNeeds::new(job, facts, cores);
        candidates.extend(
            job.candidates
                .iter()
                .map(|candidate| candidate_spec(&mut needs, candidate, &known[candidate.id.index()])),
        );
    }
    candidates.sort_by_key(|candidate| candidate.id);
    let entries: usize = facts.iter().map(|facts| facts.entries.len()).sum();
    RunSpec {
        ceilings,
        floor,
        idle_worker: IDLE_WORKER,
        supervisor: SUPERVISOR + PER_LINE.saturating_mul((candidates.len() + entries) as u64),
        verifiers: plan.run.verifiers.get(),
        spare: plan.memory.spare,
        own_swap: plan.memory.swap == SwapUse::Own,
        verify: plan.run.stages.verify,
        profile: plan.run.stages.profile,
        jobs,
        candidates,
    }
}

/// What the core is told about one candidate.
pub fn candidate_spec(needs: &mut JobNeeds<'_>, candidate: &CandidatePlan, known: &Known) -> CandidateSpec {
    let of_candidate = needs.of(candidate);
    CandidateSpec {
        id: candidate.id,
        job: candidate.job,
        partial: candidate.partial,
        build: of_candidate.build.spec,
        verify: of_candidate.verify,
        profile: of_candidate.profile,
        paired: of_candidate.paired,
        replay: None,
        resumed: resume::for_the_core(known),
    }
}
