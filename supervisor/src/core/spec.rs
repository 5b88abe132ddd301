//! What the core is told about a run before it starts: numbers and settings, no paths.

use std::sync::Arc;
use std::time::Duration;

use opt_shared::ids::{CandidateId, JobId};
use opt_shared::outcome::Status;
use opt_shared::settings::RecycleSettings;
use opt_shared::units::Bytes;

use super::event::{Order, Stage};
use super::ledger::{Ceilings, Demand};

#[derive(Clone, Debug)]
pub struct RunSpec {
    pub ceilings: Ceilings,
    pub floor: Bytes,
    /// What an idle worker is charged with.
    pub idle_worker: Bytes,
    /// What the supervisor is charged with at least.
    pub supervisor: Bytes,
    /// Verifiers side by side, at most; builds are theirs too.
    pub verifiers: u32,
    /// A worker is started before it is needed.
    pub spare: bool,
    /// No page of ours may go to swap.
    pub own_swap: bool,
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
    /// Never empty; from the largest batches to the smallest. Most candidates of a job share theirs.
    pub profile: Arc<[StageSpec]>,
    /// With the baseline beside it.
    pub paired: Arc<[StageSpec]>,
    /// Of one that stands for a replay: its only stage.
    pub replay: Option<StageSpec>,
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
    /// What it reserves on the device.
    pub device: Bytes,
    /// After which the worker is taken for stuck.
    pub deadline: Duration,
    /// Up to this, entries are together: timed in a profile, and in a runner in a verification.
    pub batch: Option<Bytes>,
}

impl StageSpec {
    /// What a worker with this lease is charged.
    pub fn demand(&self, idle_worker: Bytes) -> Demand {
        Demand { host: self.reserved + idle_worker, device: self.device }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// Finished with this status; nothing is done again.
    Done { status: Status, may_profile: bool },
}

impl CandidateSpec {
    /// The ways to do it, from the one that takes most memory to the one that takes least.
    pub fn steps(&self, order: Order) -> &[StageSpec] {
        match order {
            Order::Build { .. } => std::slice::from_ref(&self.build),
            Order::Verify { .. } => std::slice::from_ref(&self.verify),
            Order::Profile { baseline: None, .. } => &self.profile,
            Order::Profile { baseline: Some(_), .. } => &self.paired,
            Order::Replay { .. } => self.replay.as_slice(),
        }
    }

    /// What it begins with.
    pub fn first_stage(&self) -> Stage {
        if self.replay.is_some() { Stage::Replay } else { Stage::Build }
    }

    /// The least that each stage takes, the profile as it would be beside a baseline or without one.
    pub fn least(&self, stage: Stage, paired: bool) -> Option<&StageSpec> {
        match stage {
            Stage::Build => Some(&self.build),
            Stage::Verify => Some(&self.verify),
            Stage::Profile => if paired { &self.paired } else { &self.profile }.last(),
            Stage::Replay => self.replay.as_ref(),
        }
    }
}
