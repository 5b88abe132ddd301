//! What an earlier part of a run left in its folder, and what of it stands.

use opt_shared::ids::CandidateId;
use opt_shared::outcome::{Blame, Status};

use crate::driver::error::RunError;
use crate::driver::known::Known;
use crate::driver::survey::facts::JobFacts;
use crate::plan::Plan;
use crate::record::{CapturesRecord, SourceRecord, UtcTime};
use crate::store::{CandidateEnd, CandidateRow, JobRow, Store};

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
        let last = known.numbered.entry(attempt.stage).or_default();
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
    known.resumed = true;
    for report in attempts.iter().filter(|it| !it.superseded).filter_map(|it| it.report.as_ref()) {
        known.learn(report);
    }
    known.artifact.clone_from(&before.artifact);
    Ok(())
}
