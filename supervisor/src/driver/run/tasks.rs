//! Converts a step of a candidate that the core has granted to a task for a worker. The step consists of numbers. The
//! task contains the paths and settings that belong to them.

use opt_shared::arguments::Form;
use opt_shared::ids::{CandidateId, EntryId};
use opt_shared::language::Language;
use opt_shared::launch::Launch;
use opt_shared::message::{
    BuildTask, Callee, Depth, EntryRef, HiddenPaths, ProfileTask, RecordedCalls, Task, VerifyTask, Work,
};
use opt_shared::settings::{ProfileEntries, ProfileSettings};
use opt_shared::stage::Stage;
use opt_shared::units::Bytes;

use super::agenda::Agenda;
use super::supply::Grant;
use crate::driver::folder::RUNS;
use crate::driver::survey::facts::JobFacts;
use crate::driver::survey::seed;
use crate::plan::CandidatePlan;

impl Agenda<'_> {
    /// Returns the task for a granted step, including the baseline that is timed beside the candidate. Returns `None`
    /// if something that the step depends on is missing, which the core rules out.
    pub(crate) fn task(
        &self,
        grant: &Grant,
        candidate: CandidateId,
        baseline: Option<CandidateId>,
    ) -> Option<Task> {
        let Grant { lease, order, batch, device_cap, share, .. } = *grant;
        let stage = order.stage;
        let work = match stage {
            Stage::Build => {
                let (candidate, facts) = self.plan_and_facts(candidate)?;
                let (launch, recorded) = match candidate.source.language {
                    Language::TritonDevice => {
                        ((*candidate.launch).clone(), self.recorded_calls(candidate, facts, 1))
                    }
                    Language::TorchCompile | Language::CudaRecorded => {
                        (Launch::default(), self.recorded_calls(candidate, facts, usize::MAX))
                    }
                    _ => (Launch::default(), None),
                };
                Work::Build(BuildTask {
                    candidate: candidate.name.clone(),
                    source: candidate.source.clone(),
                    device: self.plan.device(),
                    card: self.card,
                    build: (*candidate.build).clone(),
                    launch,
                    recorded,
                    memory: batch.unwrap_or_else(|| candidate.build.memory_for(candidate.source.language)),
                    artifacts: self.folder.artifacts(),
                    artifacts_room: self.plan.run.max_artifacts.saturating_sub(self.libraries.bytes()),
                    scratch: self.folder.scratch(),
                    closed: self.hidden_paths(),
                })
            }
            Stage::Verify => {
                let (plan, facts) = self.plan_and_facts(candidate)?;
                Work::Verify(VerifyTask {
                    callee: self.callee(candidate)?,
                    entries: facts.entries_to_verify().into_iter().map(|fact| fact.entry.clone()).collect(),
                    verify: (*plan.verify).clone(),
                    shared_runner: batch.unwrap_or(Bytes::ZERO),
                    device_cap,
                    drop_cache: self.cache_budget < facts.bytes,
                })
            }
            Stage::Screen | Stage::Profile | Stage::Confirm => {
                let (plan, facts) = self.plan_and_facts(candidate)?;
                let distinct = plan.profile.entries == ProfileEntries::Distinct;
                let unsupported: Vec<EntryId> = std::iter::once(candidate)
                    .chain(baseline)
                    .flat_map(|id| self.candidate_facts[id.index()].unsupported.iter().copied())
                    .collect();
                let entries: Vec<EntryRef> = facts
                    .entries_to_time(distinct, &unsupported)
                    .into_iter()
                    .map(|fact| fact.entry)
                    .collect();
                let baseline = match baseline {
                    Some(baseline) => Some(self.callee(baseline)?),
                    None => None,
                };
                Work::Profile(ProfileTask {
                    callee: self.callee(candidate)?,
                    baseline,
                    verify: (*plan.verify).clone(),
                    profile: ProfileSettings {
                        batch_bytes: batch.unwrap_or(plan.profile.batch_bytes),
                        entry_timeout: plan.profile.entry_timeout.min(share / count_of(&entries)),
                        ..(*plan.profile).clone()
                    },
                    entries,
                    device_cap,
                    depth: if stage == Stage::Screen { Depth::Screen } else { Depth::Full },
                    constant: self
                        .plan
                        .jobs
                        .get(plan.job.index())
                        .map_or_else(Vec::new, |job| job.constant.clone()),
                    drop_cache: self.cache_budget < facts.bytes,
                    seed: seed::of_candidate(
                        if plan.verify.seed == 0 { self.seed } else { plan.verify.seed },
                        &self.full_name(candidate),
                        stage,
                    ),
                })
            }
            // The tasks of replays are created in `replay`.
            Stage::Replay => return None,
        };
        Some(Task { lease, work })
    }

    /// Returns the paths that builds and runners must not read: captures with their expected outputs, the results of
    /// this run and of earlier runs, and the plan with its folder. The files that the plan names in its folder are
    /// exempt.
    fn hidden_paths(&self) -> HiddenPaths {
        let captures = self.plan.jobs.iter().map(|job| job.captures.clone());
        let results = [self.folder.path().to_owned(), self.plan.base_dir.join(RUNS)];
        HiddenPaths {
            files: captures.chain(results).chain([self.plan.source_path.clone()]).collect(),
            home: self.plan.base_dir.clone(),
        }
    }

    /// Returns the first `count` entries of a candidate's job, or all of them if there are fewer. `None` if the job has
    /// no signature.
    fn recorded_calls(
        &self,
        candidate: &CandidatePlan,
        facts: &JobFacts,
        count: usize,
    ) -> Option<RecordedCalls> {
        Some(RecordedCalls {
            entries: facts.entries.iter().take(count).map(|fact| fact.entry.path.clone()).collect(),
            signature: facts.signature.clone()?,
            function: facts.function.clone(),
            threads: candidate.limits.threads_on(self.cores),
        })
    }

    fn plan_and_facts(&self, candidate: CandidateId) -> Option<(&CandidatePlan, &JobFacts)> {
        let plan = self.plan.candidate(candidate)?;
        Some((plan, self.facts.get(plan.job.index())?))
    }

    /// Returns everything that a worker needs to call a candidate. `None` if the candidate has no artifact, or if its
    /// job's signature is unknown. For a recorded function, it is also `None` if the function's name is unknown.
    pub(crate) fn callee(&self, candidate: CandidateId) -> Option<Callee> {
        let (plan, facts) = self.plan_and_facts(candidate)?;
        let is_recorded = !plan.source.language.has_sources();
        Some(Callee {
            candidate: plan.name.clone(),
            artifact: self
                .candidate_facts
                .get(candidate.index())?
                .artifact
                .as_ref()?
                .whole(&self.folder.artifacts()),
            launcher: plan.source.language.kind().launcher,
            symbol: if is_recorded { facts.function.clone()? } else { plan.source.symbol.to_string() },
            launch: (*plan.launch).clone(),
            signature: facts.signature.clone()?,
            limits: (*plan.limits).clone(),
            library_path: plan.build.library_path.clone(),
            closed: self.hidden_paths(),
            python: plan.build.python.clone(),
            form: if is_recorded { Form::Recorded } else { Form::Settled },
        })
    }
}

fn count_of(entries: &[EntryRef]) -> u32 {
    u32::try_from(entries.len()).unwrap_or(u32::MAX).max(1)
}
