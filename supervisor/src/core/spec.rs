//! Describes a run and its units of work to the core. The description contains numbers and settings, but no paths.

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
    /// The memory of the machine that must stay available.
    pub floor: Bytes,
    /// The memory that is charged for an idle worker.
    pub idle_worker: Bytes,
    /// The minimum amount of memory that is charged for the supervisor.
    pub supervisor: Bytes,
    /// The maximum number of verifiers that work at the same time. Verifiers also build candidates.
    pub verifiers: u32,
    /// Whether to start the next worker before it is needed.
    pub spare: bool,
    /// Whether the core reacts when pages of this run are swapped out.
    pub own_swap: bool,
    /// The jobs in the order in which they are served. Their ids are indices into this list.
    pub jobs: Vec<JobSpec>,
}

/// A job without its units, because the job's source offers these during the run.
#[derive(Clone, Debug)]
pub struct JobSpec {
    pub id: JobId,
    pub recycle: RecycleSettings,
    /// Why the captures cannot be used. If set, no unit of this job is run.
    pub broken: Option<String>,
    /// The jobs that come before this one. This job's source is asked for units only when all of these jobs have ended
    /// and can get no more units.
    pub after: Vec<JobId>,
    /// The target for the total time that the job's timed steps take.
    pub budget: Duration,
}

/// A unit of work, which is a candidate or a replay. A candidate has some or all of the steps build, verify, screen,
/// profile and confirm. A replay has one step.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitSpec {
    /// The unit's id, which must be the next free one.
    pub id: UnitId,
    /// The unit's steps, in the order of their stages. There is at least one. Most units of a job share this list.
    pub route: Arc<[Step]>,
    /// Whether the unit is the baseline, beside which the other candidates of the job are timed.
    pub is_baseline: bool,
    /// Whether the unit may be ranked by the entries that it supports if it does not support all entries.
    pub partial: bool,
    /// The unit's state from an earlier part of the run. Boxed, because most units have none.
    pub resumed: Option<Box<Resumed>>,
}

/// One stage of a unit's work: which worker runs it, and the ways in which it can be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub stage: Stage,
    pub role: Role,
    /// Whether no other step of this run may run at the same time.
    pub exclusive: bool,
    /// The ways to run the step. There is at least one. The first takes the most memory, the last takes the least.
    pub ways: Arc<[StageSpec]>,
    /// The ways to run the step if it is paired, that is, timed beside the baseline. `None` if the step is never
    /// paired.
    pub paired: Option<Arc<[StageSpec]>>,
}

/// One way to run a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageSpec {
    /// The memory that the formula predicts on the host.
    pub predicted: Bytes,
    /// The memory that the step reserves on the host: `predicted` plus what runners or a compiler may owe in addition.
    pub reserved: Bytes,
    /// The memory that the step reserves on the device.
    pub device: Bytes,
    /// The maximum amount of memory that the worker may allocate on its device, emulated or not, for a kernel without
    /// host code. Zero for other work.
    pub device_cap: Bytes,
    /// The time after which the worker is assumed to be stuck.
    pub deadline: Duration,
    /// The maximum size of a batch of entries that are timed together, or that share a runner in a verification. For a
    /// build, the memory that the compiler may use.
    pub batch: Option<Bytes>,
}

impl StageSpec {
    /// Returns what a lease demands, which includes the memory of an idle worker.
    pub fn demand(&self, idle_worker: Bytes) -> Demand {
        Demand { host: self.reserved + idle_worker, device: self.device }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Resumed {
    /// The unit passed its build, and its artifact is still valid.
    Built,
    Ended {
        status: Status,
        /// Whether it ended as PASSED or UNSUPPORTED, and its artifact still exists.
        verified: bool,
        speedup: Option<Estimate>,
        /// Whether it is a baseline that failed while it was timed beside another unit.
        failed_beside: bool,
    },
}

impl Step {
    pub fn ways(&self, paired: bool) -> &[StageSpec] {
        match &self.paired {
            Some(ways) if paired => ways,
            _ => &self.ways,
        }
    }

    pub fn least(&self, paired: bool) -> Option<&StageSpec> {
        self.ways(paired).last()
    }
}

impl UnitSpec {
    /// Returns whether the unit has at least one step, the steps are in the order of their stages, and each has at
    /// least one way.
    pub fn is_well_formed(&self) -> bool {
        let has_ways =
            |step: &Step| !step.ways.is_empty() && step.paired.as_ref().is_none_or(|ways| !ways.is_empty());
        let ascends = self.route.is_sorted_by(|one, next| one.stage < next.stage);
        !self.route.is_empty() && ascends && self.route.iter().all(has_ways)
    }
}
