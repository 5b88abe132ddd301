//! Records the jobs, candidates and replays of a run before its first unit starts, and gives the candidates that
//! `--only` left out the status SKIPPED.

use std::path::Path;

use opt_shared::arguments::Signature;
use opt_shared::kernel_files::KernelFiles;
use opt_shared::language::Launcher;
use opt_shared::outcome::{Blame, ReplayResult, Status};
use opt_shared::settings::CandidateSource;

use super::resume::{Earlier, Known};
use crate::driver::candidate_facts::CandidateFacts;
use crate::driver::error::RunError;
use crate::driver::survey::facts::JobFacts;
use crate::driver::survey::replay_facts::ReplayFacts;
use crate::plan::{CandidatePlan, JobPlan, Plan};
use crate::record::{CapturesRecord, SourceRecord};
use crate::store::{CandidateEnd, CandidateRow, JobRow, ReplayRow, Store};

/// Records jobs and candidates. Returns what is known about each candidate: its state in `earlier`, or that it is
/// skipped because it is not among the `selected` ones. `artifacts` is the run's folder of artifacts.
pub(crate) fn register(
    store: &mut Store,
    plan: &Plan,
    facts: &[JobFacts],
    selected: &[bool],
    earlier: Earlier,
    artifacts: &Path,
) -> Result<Vec<CandidateFacts>, RunError> {
    let mut facts_of_candidates: Vec<CandidateFacts> =
        vec![CandidateFacts::default(); plan.candidates().count()];
    for (job, facts) in plan.jobs.iter().zip(facts) {
        store.job(&job_row(job, facts))?;
        let baseline_has_changed = baseline_has_changed(store, plan, job, earlier)?;
        // The baseline's row is written last, because it contains the baseline's new digest. If the process ends before
        // that, the next resumed run still sees that the baseline has changed.
        let is_baseline = |candidate: &&CandidatePlan| job.baseline == Some(candidate.id);
        let others = job.candidates.iter().filter(|it| !is_baseline(it));
        for candidate in others.chain(job.candidates.iter().filter(is_baseline)) {
            let before = earlier.candidate(store, &job.name, &candidate.name)?;
            let row = candidate_row(plan, candidate);
            store.candidate(&row)?;
            let it = &mut facts_of_candidates[candidate.id.index()];
            if let Some(before) = before {
                let known = Known {
                    id: candidate.id,
                    sources: row.source.digest.as_deref(),
                    build_can_be_kept: depends_on_its_sources_only(candidate),
                    baseline_has_changed,
                    artifacts,
                };
                *it = known.keep(store, &before)?;
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
    Ok(facts_of_candidates)
}

/// Returns whether the baseline's sources have changed since candidates were timed beside it in an earlier part of the
/// run.
fn baseline_has_changed(
    store: &Store,
    plan: &Plan,
    job: &JobPlan,
    earlier: Earlier,
) -> Result<bool, RunError> {
    let baseline = job.baseline.and_then(|id| job.candidates.iter().find(|it| it.id == id));
    let Some(baseline) = baseline else { return Ok(false) };
    let before = earlier.candidate(store, &job.name, &baseline.name)?.and_then(|it| it.source_digest);
    Ok(before.is_some() && before != candidate_row(plan, baseline).source.digest)
}

/// Returns whether a candidate's own sources alone determine its library, so that an earlier build can be kept.
/// Otherwise, headers in `include`, other libraries, toolchains or Python packages may have changed, and no digest
/// covers these.
fn depends_on_its_sources_only(candidate: &CandidatePlan) -> bool {
    let build = &candidate.build;
    candidate.source.language.kind().launcher == Launcher::Dlopen
        && build.include.is_empty()
        && build.library_path.is_empty()
        && build.toolchain.is_empty()
}

/// The result of a replay, and a description of what the result depends on. A replay is not repeated if this
/// description is still the same.
pub(crate) type KeptReplay = (String, ReplayResult);

/// Records the replays. Returns the results from an earlier part of the run.
pub(crate) fn register_replays(
    store: &mut Store,
    plan: &Plan,
    facts: &[ReplayFacts],
) -> Result<Vec<Option<KeptReplay>>, RunError> {
    let mut kept = Vec::new();
    for (index, (replay, facts)) in plan.replays.iter().zip(facts).enumerate() {
        kept.push(store.stored_replay(&replay.name)?);
        store.replay(&ReplayRow {
            place: u32::try_from(index).unwrap_or(u32::MAX),
            name: replay.name.clone(),
            budget: replay.budget,
            floor: facts.broken.is_none().then(|| facts.floor.bytes()),
            all_resident: facts.broken.is_none().then_some(facts.floor.whole),
        })?;
    }
    Ok(kept)
}

/// Returns the row of a job. The row has no digest if a capture could not be read. There are no verdicts then that a
/// digest would protect, and the run can be resumed once all captures can be read.
fn job_row(job: &JobPlan, facts: &JobFacts) -> JobRow {
    let baseline = job.baseline.and_then(|id| job.candidates.iter().find(|it| it.id == id));
    let is_read = facts.broken.is_none();
    JobRow {
        id: job.id,
        name: job.name.clone(),
        captures: CapturesRecord {
            entries: Some(facts.entries.len() as u64),
            bytes: Some(facts.bytes),
            unique_bytes: Some(facts.unique_bytes),
            digest: is_read.then(|| facts.digest.clone()),
            form: facts.form,
        },
        baseline: baseline.map(|it| it.name.clone()),
        signature_digest: facts.signature.as_ref().filter(|_| is_read).map(Signature::digest),
    }
}

/// Returns the row of a candidate, with the current digest of its files.
fn candidate_row(plan: &Plan, candidate: &CandidatePlan) -> CandidateRow {
    let CandidateSource { sources, language, .. } = &candidate.source;
    let digest = opt_shared::digest::of_files(&KernelFiles::find(sources, *language)).ok();
    candidate_row_with(plan, candidate, digest)
}

/// Returns the row of a candidate. `digest` is that of its files, or `None` if they cannot be read.
pub(crate) fn candidate_row_with(
    plan: &Plan,
    candidate: &CandidatePlan,
    digest: Option<String>,
) -> CandidateRow {
    let CandidateSource { sources, language, .. } = &candidate.source;
    let mut paths = sources.iter().map(|path| path.display().to_string());
    CandidateRow {
        id: candidate.id,
        job: candidate.job,
        name: candidate.name.clone(),
        source: SourceRecord { path: paths.next(), other_paths: paths.collect(), digest },
        tier: language.kind().tier,
        not_timed_because: plan.candidate_not_timed_because(candidate),
    }
}
