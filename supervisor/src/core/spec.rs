//! What the core is told about a run before it starts: numbers and settings, no paths.

use std::time::Duration;

use opt_shared::ids::{CandidateId, JobId};
use opt_shared::outcome::Status;
use opt_shared::settings::RecycleSettings;
use opt_shared::units::Bytes;

use super::event::Stage;

/// One verifier does all builds and verifications: a plan's `verifiers` is not heard yet.
#[derive(Clone, Debug)]
pub struct RunSpec {
    pub ceiling: Bytes,
    pub floor: Bytes,
    /// What an idle worker is charged with.
    pub idle_worker: Bytes,
    pub verify: bool,
    pub profile: bool,
    /// In the order of the plan; ids are their places.
    pub jobs: Vec<JobSpec>,
    /// In the order of the plan; ids are their places.
    pub candidates: Vec<CandidateSpec>,
}

#[derive(Clone, Debug)]
pub struct JobSpec {
    pub id: JobId,
    pub baseline: Option<CandidateId>,
    /// The baseline first.
    pub candidates: Vec<CandidateId>,
    pub recycle: RecycleSettings,
    /// The captures cannot be used at all: nothing is run.
    pub broken: Option<String>,
    /// There is an entry to time.
    pub timed: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CandidateSpec {
    pub id: CandidateId,
    pub job: JobId,
    /// Ranked on the entries it supports.
    pub partial: bool,
    pub build: StageSpec,
    pub verify: StageSpec,
    pub profile: StageSpec,
    /// What an earlier run of this folder left.
    pub resumed: Option<Resumed>,
}

/// What one attempt of a stage may owe and take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageSpec {
    /// The formula's sum.
    pub predicted: Bytes,
    /// What the lease reserves: predicted and what the runners may owe besides.
    pub reserved: Bytes,
    /// After which the worker is taken for stuck.
    pub deadline: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// Finished with this status; nothing is done again.
    Done { status: Status, may_profile: bool },
}

impl CandidateSpec {
    pub fn stage(&self, stage: Stage) -> &StageSpec {
        match stage {
            Stage::Build => &self.build,
            Stage::Verify => &self.verify,
            Stage::Profile => &self.profile,
        }
    }
}
