//! What the core is told about a run and about each unit of work: numbers and settings, no paths.

use std::sync::Arc;
use std::time::Duration;

use opt_shared::ids::{JobId, UnitId};
use opt_shared::message::Role;
use opt_shared::outcome::{Estimate, Status};
use opt_shared::settings::RecycleSettings;
use opt_shared::units::Bytes;

use super::event::Stage;
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
    /// In the order in which they are served; ids are their places.
    pub jobs: Vec<JobSpec>,
}

#[derive(Clone, Debug)]
pub struct JobSpec {
    pub id: JobId,
    pub recycle: RecycleSettings,
    /// The captures cannot be used at all: nothing is run.
    pub broken: Option<String>,
    /// Its source is asked once these have ended, and nothing more can come to them.
    pub after: Vec<JobId>,
    /// What all its timed steps together should take.
    pub budget: Duration,
}

/// One piece of work with all its steps. A candidate goes through build, verify, screen, profile and confirm, or some of them; a replay has one step.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitSpec {
    /// The next free one.
    pub id: UnitId,
    /// Never empty, in the order of their stages. Most units of a job share theirs.
    pub route: Arc<[Step]>,
    /// The others of its job are timed beside it.
    pub is_baseline: bool,
    /// Ranked on the entries it supports.
    pub partial: bool,
    /// What an earlier run of this folder left.
    pub resumed: Option<Resumed>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub stage: Stage,
    /// Who does it.
    pub role: Role,
    /// Nothing else of ours runs beside it.
    pub alone: bool,
    /// The ways to do it, never none, from the one that takes most memory to the one that takes least.
    pub ways: Arc<[StageSpec]>,
    /// The same with the job's baseline beside it; none where it is never done so.
    pub paired: Option<Arc<[StageSpec]>>,
}

/// What one attempt of a step may owe and take.
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

/// Finished before; nothing is done again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resumed {
    pub status: Status,
    /// It passed its verification, and what it was verified with is still there.
    pub verified: bool,
    /// How many times as fast as the baseline it was.
    pub merit: Option<Estimate>,
}

impl Step {
    /// Beside the baseline, or without one.
    pub fn ways(&self, paired: bool) -> &[StageSpec] {
        match &self.paired {
            Some(ways) if paired => ways,
            _ => &self.ways,
        }
    }

    /// The way that takes least.
    pub fn least(&self, paired: bool) -> Option<&StageSpec> {
        self.ways(paired).last()
    }
}

impl UnitSpec {
    /// It has steps in the order of their stages, and each can be done in some way.
    pub fn is_whole(&self) -> bool {
        let has_ways =
            |step: &Step| !step.ways.is_empty() && step.paired.as_ref().is_none_or(|ways| !ways.is_empty());
        let ascends = self.route.is_sorted_by(|one, next| one.stage < next.stage);
        !self.route.is_empty() && ascends && self.route.iter().all(has_ways)
    }
}
