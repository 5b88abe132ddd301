//! What the candidates of a job will owe: their plans and captures put into the core's formulas.
//!
//! Candidates with the same settings share their figures: a job of ten thousand has a handful.

use std::sync::Arc;

use opt_shared::numbers::EntryNumbers;
use opt_shared::settings::{LimitSettings, ProfileEntries, ProfileSettings, VerifySettings};
use opt_shared::units::Bytes;

use super::facts::{EntryFact, JobFacts};
use crate::core::predict::{self, Prediction, Sides};
use crate::core::spec::StageSpec;
use crate::plan::{CandidatePlan, JobPlan};

/// Figures of one candidate, for the core.
pub struct Needs {
    pub build: Prediction,
    pub verify: StageSpec,
    pub profile: Arc<[StageSpec]>,
    pub paired: Arc<[StageSpec]>,
}

/// Settings that decide the figures, and the figures.
struct Known {
    limits: Arc<LimitSettings>,
    verify: Arc<VerifySettings>,
    profile: Arc<ProfileSettings>,
    verified: StageSpec,
    alone: Arc<[StageSpec]>,
    paired: Arc<[StageSpec]>,
}

pub struct JobNeeds<'a> {
    job: &'a JobPlan,
    verified: Vec<&'a EntryFact>,
    distinct: Vec<EntryNumbers>,
    all: Vec<EntryNumbers>,
    cores: u32,
    seen: Vec<Known>,
}

impl<'a> JobNeeds<'a> {
    pub fn new(job: &'a JobPlan, facts: &'a JobFacts, cores: u32) -> Self {
        let numbers =
            |distinct| facts.profiled(distinct).into_iter().map(|fact| fact.entry.numbers).collect();
        Self {
            job,
            verified: facts.verified(),
            distinct: numbers(true),
            all: numbers(false),
            cores,
            seen: Vec::new(),
        }
    }

    pub fn of(&mut self, candidate: &CandidatePlan) -> Needs {
        let build = self.build(candidate);
        let known = self.seen.iter().find(|known| {
            Arc::ptr_eq(&known.limits, &candidate.limits)
                && Arc::ptr_eq(&known.verify, &candidate.verify)
                && Arc::ptr_eq(&known.profile, &candidate.profile)
        });
        if let Some(known) = known {
            let (profile, paired) = (known.alone.clone(), known.paired.clone());
            return Needs { build, verify: known.verified, profile, paired };
        }
        let specs =
            |steps: Vec<Prediction>| -> Arc<[StageSpec]> { steps.iter().map(|step| step.spec).collect() };
        let verify = self.verify(candidate).spec;
        let (profile, paired) = (specs(self.profile(candidate, false)), specs(self.profile(candidate, true)));
        self.seen.push(Known {
            limits: candidate.limits.clone(),
            verify: candidate.verify.clone(),
            profile: candidate.profile.clone(),
            verified: verify,
            alone: profile.clone(),
            paired: paired.clone(),
        });
        Needs { build, verify, profile, paired }
    }

    pub fn build(&self, candidate: &CandidatePlan) -> Prediction {
        predict::build(candidate.build.memory, candidate.build.timeout)
    }

    /// With a runner for each entry.
    pub fn verify(&self, candidate: &CandidatePlan) -> Prediction {
        let numbers: Vec<EntryNumbers> =
            self.verified.iter().map(|fact| fact.entry.numbers.clone()).collect();
        predict::verify(&numbers, Bytes::ZERO, &candidate.limits, &candidate.verify, self.cores)
    }

    /// From the largest batches to the smallest; `paired` with the job's baseline beside it.
    pub fn profile(&self, candidate: &CandidatePlan, paired: bool) -> Vec<Prediction> {
        let baseline = self
            .job
            .baseline
            .filter(|&id| paired && id != candidate.id)
            .and_then(|id| self.job.candidates.iter().find(|it| it.id == id));
        let entries = match candidate.profile.entries {
            ProfileEntries::Distinct => &self.distinct,
            ProfileEntries::All => &self.all,
        };
        let sides = Sides { candidate: &candidate.limits, baseline: baseline.map(|it| &*it.limits) };
        predict::profile(entries, sides, &candidate.verify, &candidate.profile, self.cores)
    }
}
