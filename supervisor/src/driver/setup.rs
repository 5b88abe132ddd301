//! Before the loop: what the core is told, and what an earlier part of the run left.

use std::collections::BTreeMap;

use opt_shared::ids::CandidateId;
use opt_shared::message::Report;
use opt_shared::outcome::{Artifact, Blame, Status};
use opt_shared::units::Bytes;

use super::RunError;
use super::facts::JobFacts;
use super::needs::JobNeeds;
use super::score::Standing;
use crate::core::Ceilings;
use crate::core::event::Stage;
use crate::core::spec::{CandidateSpec, JobSpec, Resumed, RunSpec};
use crate::plan::{CandidatePlan, Plan, SwapUse};
use crate::record::{CapturesRecord, SourceRecord, UtcTime};
use crate::store::{CandidateEnd, CandidateRow, JobRow, Store};

/// An idle worker: its own heap, stacks and tables. Measured at 1 to 2 MiB; the law allows it 8.
pub const IDLE_WORKER: Bytes = Bytes::mib(4);
/// The supervisor itself, by the same rule: measured at 3 to 4 MiB of its own for a small plan …
const SUPERVISOR: Bytes = Bytes::mib(6);
/// … and this much for every candidate and entry.
const PER_LINE: Bytes = Bytes::kib(1);

/// What is known of a candidate besides its plan.
#[derive(Clone, Debug, Default)]
pub struct Known {
    pub artifact: Option<Artifact>,
    pub unsupported: Vec<opt_shared::ids::EntryId>,
    pub profile: Option<Standing>,
    pub status: Option<Status>,
    /// Attempts of each stage that earlier parts of the run have numbered.
    pub numbered: BTreeMap<Stage, u32>,
    /// Finished before this part of the run began.
    pub resumed: bool,
}

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
        resumed: known.status.map(|status| Resumed::Done {
            status,
            may_profile: known.artifact.is_some() && matches!(status, Status::Passed | Status::Unsupported),
        }),
    }
}

/// Writes jobs and candidates down; on resuming, finds what stands.
pub fn register(
    store: &mut Store,
    plan: &Plan,
    facts: &[JobFacts],
    selected: &[bool],
    resuming: bool,
) -> Result<Vec<Known>, RunError> {
    let mut known: Vec<Known> = vec![Known::default(); plan.candidates().count()];
    let stored = if resuming {
        store.close_abandoned(UtcTime::now())?;
        check_signatures(store, plan, facts)?;
        store.stored_candidates()?
    } else {
        Vec::new()
    };
    for (job, facts) in plan.jobs.iter().zip(facts) {
        let baseline = job.baseline.and_then(|id| job.candidates.iter().find(|it| it.id == id));
        store.job(&JobRow {
            id: job.id,
            name: job.name.clone(),
            captures: CapturesRecord {
                entries: Some(facts.entries.len() as u64),
                bytes: Some(facts.bytes),
                unique_bytes: Some(facts.unique_bytes),
                digest: Some(facts.digest.clone()),
                form: facts.form,
            },
            baseline: baseline.map(|it| it.name.clone()),
            signature_digest: facts.signature.as_ref().map(opt_shared::arguments::Signature::digest),
        })?;
        for candidate in &job.candidates {
            let paths: Vec<String> =
                candidate.source.sources.iter().map(|path| path.display().to_string()).collect();
            let digest = opt_shared::digest::of_sources(&candidate.source.sources).ok();
            let before = stored.iter().find(|it| it.job == job.name && it.name == candidate.name).cloned();
            let changed =
                before.as_ref().is_some_and(|it| it.source_digest.is_some() && it.source_digest != digest);
            store.candidate(&CandidateRow {
                id: candidate.id,
                job: job.id,
                name: candidate.name.clone(),
                source: SourceRecord {
                    path: paths.first().cloned(),
                    other_paths: paths.iter().skip(1).cloned().collect(),
                    digest,
                },
            })?;
            let it = &mut known[candidate.id.index()];
            if let Some(before) = before {
                take_up(store, candidate.id, &before, changed, it)?;
            }
            if !selected[candidate.id.index()] && it.status.is_none() {
                it.status = Some(Status::Skipped);
                store.candidate_finished(
                    candidate.id,
                    &CandidateEnd {
                        status: Status::Skipped,
                        blame: Some(Blame::Plan),
                        failed_stage: None,
                        detail: Some("not named by --only".to_owned()),
                        feedback: None,
                    },
                )?;
            }
        }
    }
    Ok(known)
}

/// A change of the arguments' order makes earlier verdicts worthless.
fn check_signatures(store: &Store, plan: &Plan, facts: &[JobFacts]) -> Result<(), RunError> {
    for before in store.stored_jobs()? {
        let Some(at) = plan.jobs.iter().position(|job| job.name == before.name) else { continue };
        let now = facts[at].signature.as_ref().map(opt_shared::arguments::Signature::digest);
        if before.signature_digest.is_some() && now != before.signature_digest {
            return Err(RunError::SignatureChanged { job: before.name });
        }
        if before.captures_digest.as_ref().is_some_and(|digest| *digest != facts[at].digest) {
            return Err(RunError::CapturesChanged { job: before.name });
        }
    }
    Ok(())
}

fn take_up(
    store: &mut Store,
    id: CandidateId,
    before: &crate::store::StoredCandidate,
    changed: bool,
    known: &mut Known,
) -> Result<(), RunError> {
    let attempts = store.stored_attempts(id)?;
    for attempt in &attempts {
        let Some(stage) = core_stage(attempt.stage) else { continue };
        let last = known.numbered.entry(stage).or_default();
        *last = (*last).max(attempt.number);
    }
    // What was nobody's verdict, or a matter of this plan and machine, is done again; so is a changed source.
    let stands = before.status.is_some_and(|status| {
        !matches!(status, Status::InfraError | Status::DoesNotFit | Status::Skipped | Status::CaptureError)
    });
    let intact = before.artifact.as_ref().is_none_or(|artifact| artifact.path.is_file());
    if !stands || changed || !intact {
        store.candidate_reopened(id)?;
        return Ok(());
    }
    known.status = before.status;
    known.artifact.clone_from(&before.artifact);
    known.resumed = true;
    for attempt in attempts.into_iter().filter(|attempt| !attempt.superseded) {
        match attempt.report {
            Some(Report::Verify(report)) => known.unsupported = report.unsupported,
            Some(Report::Profile(report)) if report.status == Status::Passed => {
                known.profile = Some(Standing::of(&report));
            }
            Some(Report::Build(_) | Report::Profile(_) | Report::Replay(_)) | None => {}
        }
    }
    Ok(())
}

fn core_stage(stage: crate::record::Stage) -> Option<Stage> {
    match stage {
        crate::record::Stage::Build => Some(Stage::Build),
        crate::record::Stage::Verify => Some(Stage::Verify),
        crate::record::Stage::Profile => Some(Stage::Profile),
        crate::record::Stage::Confirm | crate::record::Stage::Replay => None,
    }
}

pub fn record_stage(stage: Stage) -> crate::record::Stage {
    match stage {
        Stage::Build => crate::record::Stage::Build,
        Stage::Verify => crate::record::Stage::Verify,
        Stage::Profile => crate::record::Stage::Profile,
        Stage::Replay => crate::record::Stage::Replay,
    }
}
