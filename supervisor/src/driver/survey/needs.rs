//! Predicts how much memory the candidates of a job will owe. (CONTRIBUTING.md's glossary explains *owed memory*.) The
//! prediction applies the core's formulas to the candidates' settings and captures.
//!
//! Candidates with the same settings share their figures, so only a few computations are needed for ten thousand
//! candidates.

use std::sync::Arc;

use opt_shared::device::Device;
use opt_shared::formula::RunnerTerms;
use opt_shared::language::Launcher;
use opt_shared::launch::Launch;
use opt_shared::message::Role;
use opt_shared::numbers::EntryNumbers;
use opt_shared::settings::{
    BuildSettings, LimitSettings, ProfileEntries, ProfileSettings, Protocol, VerifySettings,
};

use super::facts::{JobFacts, UsableEntry};
use crate::core::event::Stage;
use crate::core::predict::{self, DeviceSide, Prediction, Sides};
use crate::core::spec::{StageSpec, Step};
use crate::plan::{CandidatePlan, JobPlan, Stages};

/// The largest number of candidates, the baseline included, that are timed without screening. If there are more,
/// screening all of them and timing only the best takes less time than timing them all.
const MAX_UNSCREENED: usize = 4;

/// The number of workspaces for which a candidate with recorded launches reserves room. If it allocates more, their
/// padding counts towards `limits.memory`.
const RECORDED_WORKSPACES: usize = 16;

/// The ways to carry out each stage of a candidate. The first way takes the most memory, and the last takes the least.
#[derive(Clone)]
pub struct Needs {
    build: Arc<[StageSpec]>,
    verify: Arc<[StageSpec]>,
    profile: Arc<[StageSpec]>,
    /// The ways to profile the candidate together with the job's baseline. `None` if the candidate is the baseline, or
    /// if the job has no baseline.
    paired: Option<Arc<[StageSpec]>>,
}

impl Needs {
    /// Returns the least memory-hungry way to run a stage. In the stages that time the candidate, this includes the
    /// baseline if the candidate is timed together with one.
    pub fn least(&self, stage: Stage) -> Option<&StageSpec> {
        match stage {
            Stage::Build => self.build.last(),
            Stage::Verify => self.verify.last(),
            Stage::Screen | Stage::Profile | Stage::Confirm => {
                self.paired.as_ref().unwrap_or(&self.profile).last()
            }
            // Only replays have this stage.
            Stage::Replay => None,
        }
    }
}

/// A combination of settings for which the needs have been computed.
struct KnownNeeds {
    build: Arc<BuildSettings>,
    limits: Arc<LimitSettings>,
    verify: Arc<VerifySettings>,
    profile: Arc<ProfileSettings>,
    launcher: Launcher,
    workspaces: usize,
    is_baseline: bool,
    partial: bool,
    needs: Needs,
    route: Arc<[Step]>,
}

/// Computes the needs of a job's candidates. For candidates with the same settings, they are computed only once.
pub struct JobNeeds<'a> {
    job: &'a JobPlan,
    stages: Stages,
    verified: Vec<&'a UsableEntry>,
    distinct: Vec<EntryNumbers>,
    all: Vec<EntryNumbers>,
    cores: u32,
    /// Whether kernels without host code run on the emulated device.
    emulated: bool,
    /// Whether there are enough candidates that screening saves time.
    screens: bool,
    seen: Vec<KnownNeeds>,
}

impl<'a> JobNeeds<'a> {
    /// `stages` and `device` come from the run, not from the job.
    pub fn new(job: &'a JobPlan, facts: &'a JobFacts, stages: Stages, device: Device, cores: u32) -> Self {
        let numbers = |distinct| {
            facts.entries_to_time(distinct, &[]).into_iter().map(|fact| fact.entry.numbers).collect()
        };
        // Entries that are not scored are verified but not timed.
        let timed = facts.entries.iter().any(|fact| fact.scored);
        Self {
            job,
            stages: Stages { profile: stages.profile && timed, ..stages },
            verified: facts.entries_to_verify(),
            distinct: numbers(true),
            all: numbers(false),
            cores,
            emulated: device == Device::Emulated,
            screens: MAX_UNSCREENED < job.candidates.len(),
            seen: Vec::new(),
        }
    }

    /// Leaves out screening, which makes no sense for a submitted candidate, because such a candidate arrives alone.
    pub fn without_screening(self) -> Self {
        Self { screens: false, ..self }
    }

    pub fn of(&mut self, candidate: &CandidatePlan) -> &Needs {
        let index = self.index_of(candidate);
        &self.seen[index].needs
    }

    /// Returns the steps of a candidate in this run.
    pub fn route(&mut self, candidate: &CandidatePlan) -> Arc<[Step]> {
        let index = self.index_of(candidate);
        self.seen[index].route.clone()
    }

    fn route_of(&self, candidate: &CandidatePlan, needs: &Needs) -> Arc<[Step]> {
        let step = |stage, role, ways: &Arc<[StageSpec]>| Step {
            stage,
            role,
            exclusive: false,
            ways: ways.clone(),
            paired: None,
        };
        let timed = |stage| Step {
            exclusive: true,
            paired: needs.paired.clone(),
            ..step(stage, Role::Profiler, &needs.profile)
        };
        // Only verified candidates are timed, and the comparison with a baseline needs a job that has one.
        let is_timed =
            self.stages.verify && self.stages.profile && candidate.source.language.not_timed().is_none();
        let is_compared =
            is_timed && needs.paired.is_some() && candidate.profile.protocol == Protocol::Paired;
        [
            (true, step(Stage::Build, Role::Verifier, &needs.build)),
            (self.stages.verify, step(Stage::Verify, Role::Verifier, &needs.verify)),
            (is_compared && self.screens && !candidate.partial, timed(Stage::Screen)),
            (is_timed, timed(Stage::Profile)),
            (is_compared, timed(Stage::Confirm)),
        ]
        .into_iter()
        .filter_map(|(is_run, step)| is_run.then_some(step))
        .collect()
    }

    /// Returns the candidate's index in `seen`. Computes its needs unless an earlier candidate has the same settings.
    fn index_of(&mut self, candidate: &CandidatePlan) -> usize {
        let is_baseline = self.job.baseline == Some(candidate.id);
        let seen_before = self.seen.iter().position(|seen_before| {
            Arc::ptr_eq(&seen_before.build, &candidate.build)
                && Arc::ptr_eq(&seen_before.limits, &candidate.limits)
                && Arc::ptr_eq(&seen_before.verify, &candidate.verify)
                && Arc::ptr_eq(&seen_before.profile, &candidate.profile)
                && seen_before.launcher == runner_terms(candidate).launcher
                && seen_before.workspaces == workspaces(candidate)
                && seen_before.is_baseline == is_baseline
                && seen_before.partial == candidate.partial
        });
        seen_before.unwrap_or_else(|| {
            let specs =
                |ways: Vec<Prediction>| -> Arc<[StageSpec]> { ways.iter().map(|way| way.spec).collect() };
            let paired = self.job.baseline.is_some() && !is_baseline;
            let needs = Needs {
                build: specs(self.build_ways(candidate)),
                verify: specs(self.verify_ways(candidate)),
                profile: specs(self.profile_ways(candidate, false)),
                paired: paired.then(|| specs(self.profile_ways(candidate, true))),
            };
            self.seen.push(KnownNeeds {
                build: candidate.build.clone(),
                limits: candidate.limits.clone(),
                verify: candidate.verify.clone(),
                profile: candidate.profile.clone(),
                launcher: runner_terms(candidate).launcher,
                workspaces: workspaces(candidate),
                is_baseline,
                partial: candidate.partial,
                route: self.route_of(candidate, &needs),
                needs,
            });
            self.seen.len() - 1
        })
    }

    /// Returns the ways to build. The first gives the compiler all the memory that it may have, and the last gives it
    /// the least.
    pub fn build_ways(&self, candidate: &CandidatePlan) -> Vec<Prediction> {
        let language = candidate.source.language;
        predict::build_ways(candidate.build.memory_for(language), candidate.build.timeout_for(language))
    }

    /// Returns the ways to verify. In the first, entries share runners. If one runner per entry would take less memory,
    /// there is a second way that does that. A kernel without host code has only one way.
    pub fn verify_ways(&self, candidate: &CandidatePlan) -> Vec<Prediction> {
        let numbers: Vec<EntryNumbers> =
            self.verified.iter().map(|fact| fact.entry.numbers.clone()).collect();
        let terms = runner_terms(candidate);
        if terms.launcher == Launcher::Kernel {
            let (limits, settings) = (&candidate.limits, &candidate.verify);
            let workspaces = workspaces(candidate);
            return vec![predict::verify_on_device(
                &numbers,
                self.emulated,
                workspaces,
                limits,
                settings,
                self.cores,
            )];
        }
        predict::verify_ways(&numbers, terms, &candidate.verify, self.cores)
    }

    /// Returns the ways to profile, from the largest batches to the smallest. If `paired`, the job's baseline is timed
    /// together with the candidate. A kernel without host code has only one way.
    pub fn profile_ways(&self, candidate: &CandidatePlan, paired: bool) -> Vec<Prediction> {
        let baseline = self
            .job
            .baseline
            .filter(|&id| paired && id != candidate.id)
            .and_then(|id| self.job.candidates.iter().find(|it| it.id == id));
        let entries = match candidate.profile.entries {
            ProfileEntries::Distinct => &self.distinct,
            ProfileEntries::All => &self.all,
        };
        if runner_terms(candidate).launcher == Launcher::Kernel {
            let sides: Vec<DeviceSide<'_>> = std::iter::once(candidate)
                .chain(baseline)
                .map(|it| DeviceSide { limits: &it.limits, workspaces: workspaces(it) })
                .collect();
            let (verify, settings) = (&candidate.verify, &candidate.profile);
            return vec![predict::profile_on_device(entries, &sides, verify, settings, self.cores)];
        }
        let sides = Sides { candidate: runner_terms(candidate), baseline: baseline.map(runner_terms) };
        predict::profile(entries, sides, &candidate.verify, &candidate.profile, self.cores)
    }
}

/// Returns the number of workspaces for which room is reserved on the device. For recorded launches, the number is
/// known only after the build.
pub fn workspaces_of(launcher: Launcher, launch: &Launch) -> usize {
    let is_recorded = launcher == Launcher::Kernel && launch.steps.is_empty();
    if is_recorded { RECORDED_WORKSPACES } else { launch.workspaces.len() }
}

fn workspaces(candidate: &CandidatePlan) -> usize {
    workspaces_of(candidate.source.language.kind().launcher, &candidate.launch)
}

/// Returns the settings that determine how much memory a candidate's runners may owe.
pub fn runner_terms(candidate: &CandidatePlan) -> RunnerTerms<'_> {
    RunnerTerms { limits: &candidate.limits, launcher: candidate.source.language.kind().launcher }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::plan::Plan;

    /// All three candidates have the same settings, and the baseline's figures are computed first.
    #[test]
    fn paired_candidate_reserves_for_itself_and_the_baseline() {
        let base = tempfile::tempdir().expect("a folder");
        for (folder, file) in [("captures", "entry_000000.pt"), ("k", "a.c"), ("k", "b.c"), ("k", "c.c")] {
            let folder = base.path().join(folder);
            fs::create_dir_all(&folder).expect("made");
            fs::write(folder.join(file), "").expect("written");
        }
        let text = "[[job]]\ncaptures = \"captures\"\nbaseline = \"k/a.c\"\ncandidates = [\"k/*.c\"]\n";
        let plan = Plan::parse(text, &base.path().join("plan.toml"), &[]).expect("a plan");
        let (job, facts) = (&plan.jobs[0], JobFacts::default());
        let mut needs = JobNeeds::new(job, &facts, plan.run.stages, Device::Cpu, 1);
        let mut reserved = |index: usize| {
            let smallest = needs.of(&job.candidates[index]).least(Stage::Profile);
            smallest.expect("a profile has a way").reserved
        };
        let [baseline, first, second] = [0, 1, 2].map(&mut reserved);
        assert!(baseline < first, "{baseline} {first}");
        assert_eq!(first, second);
    }
}
