//! Decides what a resumed run keeps of its earlier part.
//!
//! | earlier part | what is kept |
//! |---|---|
//! | plan, signatures, captures | if one of them has changed, the run is refused |
//! | submitted candidates | all that can still be read |
//! | a candidate's end | kept if it was a verdict on its code, and code and library are unchanged |
//! | attempts | their numbers, so that a number is not used twice; their reports if the end is kept |
//! | a replay's result | kept if the same libraries would make its calls |

use opt_shared::arguments::Signature;
use opt_shared::digest;
use opt_shared::ids::CandidateId;
use opt_shared::outcome::{Artifact, Status};

use crate::core::spec::Resumed;
use crate::driver::answer::submissions;
use crate::driver::candidate_facts::CandidateFacts;
use crate::driver::error::RunError;
use crate::driver::folder::RunFolder;
use crate::driver::folder::ranking::ScoreSummary;
use crate::driver::survey::facts::JobFacts;
use crate::plan::Plan;
use crate::record::UtcTime;
use crate::store::{Store, StoredCandidate};

/// Adds earlier submissions to the plan. Fails if the plan has changed. `resolved` is the current resolved plan.
pub(crate) fn restore_plan(
    store: &Store,
    folder: &RunFolder,
    plan: &mut Plan,
    resolved: &str,
) -> Result<(), RunError> {
    if let Some(before) = store.stored_plan()? {
        let keys = crate::plan::changed_keys(&before, resolved);
        if !keys.is_empty() {
            return Err(RunError::PlanChanged { keys: keys.join(", ") });
        }
    }
    submissions::restore(plan, folder.path());
    Ok(())
}

/// The state of candidates after an earlier part of the run. It is empty in a new run.
#[derive(Default)]
pub(crate) struct Earlier(Vec<StoredCandidate>);

impl Earlier {
    /// Closes attempts that were left open. Fails if the captures or signatures have changed, because all results
    /// depend on them.
    pub(crate) fn open(store: &mut Store, plan: &Plan, facts: &[JobFacts]) -> Result<Self, RunError> {
        store.close_abandoned(UtcTime::now())?;
        check_captures(store, plan, facts)?;
        Ok(Self(store.stored_candidates()?))
    }

    /// Returns the parts of a candidate's state that are still valid, if its sources now have this digest. The rest
    /// must be done again.
    pub(crate) fn keep(
        &self,
        store: &mut Store,
        id: CandidateId,
        (job, name): (&str, &str),
        sources: Option<&str>,
    ) -> Result<CandidateFacts, RunError> {
        let mut result = CandidateFacts::default();
        let Some(before) = self.0.iter().find(|it| it.job == job && it.name == name) else {
            return Ok(result);
        };
        let attempts = store.stored_attempts(id)?;
        for attempt in &attempts {
            let last = result.earlier_attempts.entry(attempt.stage).or_default();
            *last = (*last).max(attempt.number);
        }
        if !end_is_valid(before, sources) {
            store.candidate_reopened(id)?;
            return Ok(result);
        }
        for attempt in attempts.iter().filter(|it| !it.superseded) {
            if let Some(report) = &attempt.report {
                result.learn(attempt.stage, report);
            }
        }
        result.status = before.status;
        result.artifact.clone_from(&before.artifact);
        Ok(result)
    }
}

/// Checks that the captures and the order of arguments are unchanged. Otherwise earlier verdicts would not apply.
fn check_captures(store: &Store, plan: &Plan, facts: &[JobFacts]) -> Result<(), RunError> {
    for before in store.stored_jobs()? {
        let Some(at) = plan.jobs.iter().position(|job| job.name == before.name) else { continue };
        let now = facts[at].signature.as_ref().map(Signature::digest);
        if before.signature_digest.is_some() && now != before.signature_digest {
            return Err(RunError::SignatureChanged { job: before.name });
        }
        if before.captures_digest.as_ref().is_some_and(|digest| *digest != facts[at].digest) {
            return Err(RunError::CapturesChanged { job: before.name });
        }
    }
    Ok(())
}

/// Returns whether a candidate's end is kept. It is kept only if it was a verdict, does not depend on the plan or
/// machine, the sources are unchanged, and the library exists and is unaltered.
fn end_is_valid(before: &StoredCandidate, sources: Option<&str>) -> bool {
    let is_verdict = before.status.is_some_and(|status| {
        !matches!(status, Status::InfraError | Status::DoesNotFit | Status::Skipped | Status::CaptureError)
    });
    let has_changed = before.source_digest.is_some() && before.source_digest.as_deref() != sources;
    // Workers refuse altered libraries.
    let has_library = before.artifact.as_ref().is_none_or(is_unaltered);
    is_verdict && !has_changed && has_library
}

fn is_unaltered(artifact: &Artifact) -> bool {
    artifact.path.is_file() && digest::of_file(&artifact.path).is_ok_and(|digest| digest == artifact.digest)
}

/// Returns the state of a candidate whose end is kept, as the core needs it.
pub(crate) fn for_the_core(facts: &CandidateFacts) -> Option<Resumed> {
    facts.status.map(|status| Resumed {
        status,
        verified: facts.artifact.is_some() && matches!(status, Status::Passed | Status::Unsupported),
        speedup: facts.profile.as_deref().and_then(ScoreSummary::speedup),
    })
}

#[cfg(test)]
mod tests {
    use opt_shared::outcome::Artifact;

    use opt_shared::units::Bytes;

    use super::*;

    #[test]
    fn end_is_kept_only_for_the_same_code_and_library() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("library.so");
        std::fs::write(&path, "as it was built").expect("written");
        let digest = digest::of_file(&path).expect("readable");
        let altered = folder.path().join("altered.so");
        std::fs::write(&altered, "as it was built, and more").expect("written");
        let artifact = |path| Some(Artifact { digest: digest.clone(), path, bytes: Bytes::ZERO });
        let passed = StoredCandidate {
            job: "job".to_owned(),
            name: "fast".to_owned(),
            source_digest: Some("same".to_owned()),
            status: Some(Status::Passed),
            blame: None,
            failed_stage: None,
            artifact: artifact(path),
        };
        let with = |status| StoredCandidate { status, ..passed.clone() };
        for (before, sources, expected) in [
            (passed.clone(), Some("same"), true),
            (with(Some(Status::Crashed)), Some("same"), true),
            (passed.clone(), Some("other"), false),
            (passed.clone(), None, false),
            (StoredCandidate { source_digest: None, ..passed.clone() }, Some("other"), true),
            (StoredCandidate { artifact: None, ..passed.clone() }, Some("same"), true),
            (
                StoredCandidate { artifact: artifact(folder.path().join("gone.so")), ..passed.clone() },
                Some("same"),
                false,
            ),
            (StoredCandidate { artifact: artifact(altered), ..passed.clone() }, Some("same"), false),
            (with(None), Some("same"), false),
            (with(Some(Status::InfraError)), Some("same"), false),
            (with(Some(Status::DoesNotFit)), Some("same"), false),
            (with(Some(Status::Skipped)), Some("same"), false),
            (with(Some(Status::CaptureError)), Some("same"), false),
        ] {
            assert_eq!(end_is_valid(&before, sources), expected, "{before:?} with sources {sources:?}");
        }
    }
}
