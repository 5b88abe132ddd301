//! Decides which results of its earlier part a resumed run keeps.
//!
//! | earlier part | what is kept |
//! |---|---|
//! | plan, signatures, captures | if one of them has changed, the run is refused |
//! | submitted candidates | all that can still be read |
//! | a candidate's status | kept if it was a verdict on its code, and its code and library are unchanged; if the candidate was timed, the baseline's code must be unchanged too |
//! | a candidate's build | kept if it passed, sources and library are unchanged, and nothing else affects it; the status need not be kept |
//! | attempts | their numbers, so that a number is not used twice; all reports if the status is kept; the build's report if only the build is kept |
//! | a replay's result | kept if the same libraries would make its calls |

use std::path::Path;

use opt_shared::arguments::Signature;
use opt_shared::digest;
use opt_shared::ids::CandidateId;
use opt_shared::outcome::{Artifact, Body, Status};

use crate::core::spec::Resumed;
use crate::driver::answer::submissions;
use crate::driver::candidate_facts::{CandidateFacts, KnownArtifact};
use crate::driver::error::RunError;
use crate::driver::folder::RunFolder;
use crate::driver::folder::ranking::ScoreSummary;
use crate::driver::survey::facts::JobFacts;
use crate::plan::Plan;
use crate::record::{Stage, UtcTime};
use crate::store::{Store, StoredAttempt, StoredCandidate};

/// Adds the candidates that were submitted in earlier parts to the plan. Fails if the plan has changed. `resolved` is
/// the text of the current resolved plan.
pub(crate) fn restore_plan(
    store: &Store,
    folder: &RunFolder,
    plan: &mut Plan,
    resolved: &str,
) -> Result<(), RunError> {
    if let Some(before) = store.stored_plan()? {
        let keys = crate::plan::changed_keys(&before, resolved);
        if !keys.is_empty() {
            return Err(RunError::PlanChanged { keys: keys.join(", "), begun_by: store.stored_version()? });
        }
    }
    submissions::restore(plan, folder.path());
    Ok(())
}

/// The earlier part of the run, if there is one. Its candidates are read from the database one by one, when they are
/// asked for.
#[derive(Clone, Copy)]
pub(crate) enum Earlier {
    None,
    Recorded,
}

impl Earlier {
    /// Closes the attempts, workers and phases that were left open. Fails if the captures or signatures have changed,
    /// because all results depend on them.
    pub(crate) fn open(store: &mut Store, plan: &Plan, facts: &[JobFacts]) -> Result<Self, RunError> {
        store.close_abandoned(UtcTime::now())?;
        check_captures(store, plan, facts)?;
        Ok(Self::Recorded)
    }

    /// Returns the recorded state of a candidate. Call it before the candidate's row is updated.
    pub(crate) fn candidate(
        self,
        store: &Store,
        job: &str,
        name: &str,
    ) -> Result<Option<StoredCandidate>, RunError> {
        match self {
            Self::None => Ok(None),
            Self::Recorded => Ok(store.stored_candidate(job, name)?),
        }
    }
}

/// The current facts about a candidate, with which `keep` compares its earlier state.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub(crate) id: CandidateId,
    /// The current digest of its sources.
    pub(crate) sources: Option<&'a str>,
    /// Whether the same sources are certain to give the same library as before.
    pub(crate) build_can_be_kept: bool,
    /// Whether the job's baseline has other sources than before. If so, speed-ups over the former baseline are no
    /// longer valid.
    pub(crate) baseline_has_changed: bool,
    /// The run's folder of artifacts.
    pub(crate) artifacts: &'a Path,
}

impl Known<'_> {
    /// Returns the parts of a candidate's earlier state that are still valid. The others must be determined again.
    pub(crate) fn keep(
        self,
        store: &mut Store,
        before: &StoredCandidate,
    ) -> Result<CandidateFacts, RunError> {
        let Self { id, sources, build_can_be_kept, baseline_has_changed, artifacts } = self;
        let mut result = CandidateFacts::default();
        let attempts = store.stored_attempts(id)?;
        for attempt in &attempts {
            let last = result.earlier_attempts.entry(attempt.stage).or_default();
            *last = (*last).max(attempt.number);
        }
        let was_timed = attempts.iter().any(|it| !it.superseded && it.stage.is_timed());
        if !end_is_valid(before, sources) || (baseline_has_changed && was_timed) {
            let kept = kept_build(&attempts, before, sources).filter(|_| build_can_be_kept);
            store.candidate_reopened(id, kept.map(|(attempt, _)| attempt.number))?;
            result.artifact = kept.map(|(_, artifact)| KnownArtifact::new(artifact, artifacts));
            return Ok(result);
        }
        for attempt in attempts.iter().filter(|it| !it.superseded) {
            if let Some(report) = &attempt.report {
                result.learn(attempt.stage, report, artifacts);
            }
        }
        result.status = before.status;
        result.failed_beside = before.failed_beside;
        result.artifact = before.artifact.as_ref().map(|it| KnownArtifact::new(it, artifacts));
        Ok(result)
    }
}

/// Checks that the captures and signatures are unchanged.
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

/// Returns the last build of a candidate whose end is not kept, if the build can be kept. This requires that the build
/// passed, that it was made from these sources, and that its library exists and is unaltered.
fn kept_build<'a>(
    attempts: &'a [StoredAttempt],
    before: &StoredCandidate,
    sources: Option<&str>,
) -> Option<(&'a StoredAttempt, &'a Artifact)> {
    let attempt = attempts.iter().rfind(|it| it.stage == Stage::Build && !it.superseded)?;
    let report = attempt.report.as_ref().filter(|report| report.head.status == Status::Passed)?;
    let Body::Build(built) = &report.body else { return None };
    let is_same = sources.is_some_and(|sources| {
        built.source_digest == sources
            && before.source_digest.as_deref().is_none_or(|before| before == sources)
    });
    let artifact = built.artifact.as_ref()?;
    (is_same && is_unaltered(artifact)).then_some((attempt, artifact))
}

/// Returns whether a candidate's end is kept. This requires that it was a verdict on the candidate's code (not on the
/// plan, the captures or the machine), that the sources are unchanged, and that the library, if there is one, exists
/// and is unaltered.
fn end_is_valid(before: &StoredCandidate, sources: Option<&str>) -> bool {
    let is_verdict = before.status.is_some_and(|status| {
        !matches!(status, Status::InfraError | Status::DoesNotFit | Status::Skipped | Status::CaptureError)
    });
    let has_changed = before.source_digest.is_some() && before.source_digest.as_deref() != sources;
    // Workers refuse a library that was altered, so the candidate would have to be built again.
    let has_its_library = before.artifact.as_ref().is_none_or(is_unaltered);
    is_verdict && !has_changed && has_its_library
}

fn is_unaltered(artifact: &Artifact) -> bool {
    artifact.path.is_file() && digest::of_file(&artifact.path).is_ok_and(|digest| digest == artifact.digest)
}

/// Returns the state that the core gets for a candidate that was built, or has ended, before the core begins.
pub(crate) fn for_the_core(facts: &CandidateFacts) -> Option<Resumed> {
    let Some(status) = facts.status else {
        return facts.artifact.as_ref().map(|_| Resumed::Built);
    };
    Some(Resumed::Ended {
        status,
        verified: facts.artifact.is_some() && matches!(status, Status::Passed | Status::Unsupported),
        speedup: facts.profile.as_deref().and_then(ScoreSummary::speedup),
        failed_beside: facts.failed_beside,
    })
}

#[cfg(test)]
mod tests {
    use opt_shared::outcome::{Artifact, Built, Head, Report};
    use opt_shared::units::Bytes;

    use super::*;

    #[test]
    fn build_is_kept_only_if_it_passed_and_code_and_library_are_the_same() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("library.so");
        std::fs::write(&path, "as it was built").expect("written");
        let artifact = Artifact {
            digest: digest::of_file(&path).expect("readable"),
            path: path.clone(),
            bytes: Bytes::ZERO,
        };
        let before = StoredCandidate {
            source_digest: Some("same".to_owned()),
            status: None,
            blame: None,
            failed_stage: None,
            artifact: None,
            failed_beside: false,
        };
        let attempt = |number, status, built: Built| StoredAttempt {
            stage: Stage::Build,
            number,
            status: Some(status),
            blame: None,
            report: Some(Report::new(Head { status, ..Head::passed() }, Body::Build(built))),
            superseded: false,
        };
        let built = |digest: &str| Built {
            artifact: Some(artifact.clone()),
            source_digest: digest.to_owned(),
            ..Built::default()
        };
        let passed = attempt(2, Status::Passed, built("same"));
        let lost = StoredAttempt { report: None, ..attempt(1, Status::InfraError, Built::default()) };
        let verified =
            StoredAttempt { stage: Stage::Verify, ..attempt(1, Status::InfraError, Built::default()) };
        for (attempts, sources, expected) in [
            (vec![lost.clone(), passed.clone(), verified.clone()], Some("same"), Some(2)),
            (vec![passed.clone()], Some("other"), None),
            (vec![passed.clone()], None, None),
            (vec![attempt(1, Status::Passed, built("other"))], Some("same"), None),
            (vec![attempt(1, Status::LimitExceeded, built("same"))], Some("same"), None),
            (vec![attempt(1, Status::Passed, Built { artifact: None, ..built("same") })], Some("same"), None),
            (vec![StoredAttempt { superseded: true, ..passed.clone() }], Some("same"), None),
            // Only the last build counts.
            (vec![passed.clone(), StoredAttempt { number: 3, ..lost }], Some("same"), None),
            (vec![verified], Some("same"), None),
            (Vec::new(), Some("same"), None),
        ] {
            let kept = kept_build(&attempts, &before, sources).map(|(attempt, _)| attempt.number);
            assert_eq!(kept, expected, "{attempts:?} with sources {sources:?}");
        }
        std::fs::write(&path, "as it was built, and more").expect("written");
        assert!(kept_build(&[passed], &before, Some("same")).is_none(), "the library is altered");
    }

    #[test]
    fn core_is_told_if_a_baseline_failed_beside_another_candidate() {
        for failed in [false, true] {
            let facts = CandidateFacts {
                status: Some(Status::Passed),
                failed_beside: failed,
                ..CandidateFacts::default()
            };
            let Some(Resumed::Ended { failed_beside, .. }) = for_the_core(&facts) else {
                panic!("a candidate with a status has ended")
            };
            assert_eq!(failed_beside, failed);
        }
    }

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
            source_digest: Some("same".to_owned()),
            status: Some(Status::Passed),
            blame: None,
            failed_stage: None,
            artifact: artifact(path),
            failed_beside: false,
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
