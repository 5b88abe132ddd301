//! Defines the events that the core handles, and the actions that it returns.
//!
//! Events come from the driver's sources (workers, samples, signals, the clock). The driver carries out the actions.
//! Both are plain data: figures, names, texts and reports, without descriptors or handles.

use std::time::Duration;

use opt_shared::ids::{JobId, LeaseId, UnitId, WorkerId};
use opt_shared::message::{KillReason, Report, Role};
use opt_shared::outcome::{Blame, Status};
use opt_shared::room::Room;
pub use opt_shared::stage::Stage;
use opt_shared::units::Bytes;

use super::recycle::RecycleReason;
pub use super::request::{Answer, Control};
use super::spec::UnitSpec;

/// A time, given as the time since the run started, from a monotonic clock.
pub type Moment = Duration;

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A worker sent its hello, with the right version.
    WorkerReady {
        worker: WorkerId,
    },
    /// A worker was not started, sent no valid hello, or could not be watched. If `alive` is set, the worker must be
    /// killed, and `WorkerGone` follows.
    WorkerNotReady {
        worker: WorkerId,
        why: String,
        alive: bool,
    },
    /// A worker has died. `OrphansEnded` follows if some of its runners are still alive.
    WorkerGone {
        worker: WorkerId,
        how: String,
        left_runners: bool,
    },
    /// The last runner that a dead worker left behind has ended.
    OrphansEnded {
        worker: WorkerId,
    },
    /// A worker has started a runner, which waits for `Action::AllowRunner`. In all events and actions, a compiler is
    /// also called a runner.
    RunnerStarted {
        worker: WorkerId,
        lease: LeaseId,
        pid: u32,
        limit: Bytes,
        /// The total size of the memory files that the runner maps.
        shared: Bytes,
    },
    /// A worker asks for its runner to be killed.
    KillWanted {
        worker: WorkerId,
        pid: u32,
        reason: KillReason,
    },
    RunnerDied {
        worker: WorkerId,
        pid: u32,
    },
    Finished {
        worker: WorkerId,
        lease: LeaseId,
        report: Box<Report>,
    },
    /// A worker reports that it cannot continue.
    WorkerFault {
        worker: WorkerId,
        detail: String,
    },
    Sample(Sample),
    DeviceSample(DeviceSample),
    DeviceLost {
        why: String,
    },
    /// A source offers units. `Action::Replied` follows.
    Offered {
        job: JobId,
        units: Vec<UnitSpec>,
        by: Offer,
    },
    /// A source takes a unit back. `Action::Replied` follows.
    Withdrawn {
        unit: UnitId,
    },
    /// The operating system reports that processes on this machine are waiting for memory.
    Pressure,
    /// A reading of the room that is left for builds: disk space, files and processes.
    Room(Room),
    /// A user's request. `Action::Answered` follows.
    Control(Control),
    /// The user interrupted the run. The first interrupt drains the run, and the second kills everything. If an open
    /// run has only replays left to do, the first interrupt starts the replays, the second drains the run, and the
    /// third kills everything.
    Interrupt,
    /// The reason for killing a worker has been recorded, and the signal has been sent.
    KillSent {
        worker: WorkerId,
    },
    StoreStalled {
        why: String,
        /// The number of rows that wait to be written.
        rows: u64,
    },
    /// The database has written all waiting rows.
    StoreBack {
        /// The number of blocks of samples that were dropped while the database did not accept rows.
        samples_dropped: u64,
    },
    /// Time has passed, and nothing else has happened.
    Tick,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    pub processes: Vec<ProcessSample>,
    pub supervisor_owed: Bytes,
    /// `MemAvailable`; `None` if it could not be read.
    pub available: Option<Bytes>,
    /// `MemFree`, which unlike `MemAvailable` contains no estimate. It is reported, but no decision depends on it.
    pub free: Option<Bytes>,
    /// `VmSwap` of the supervisor and all sampled processes, without the descendants of compilers.
    pub swapped: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessSample {
    pub process: Process,
    /// Anonymous memory, swap and page tables, plus shared memory outside known memory files. For a worker, this
    /// includes the memory files that it holds. Memory that a runner shares with a living zygote counts only for the
    /// zygote.
    pub owed: Bytes,
    pub reclaimable: Bytes,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSample {
    /// The living processes of this run that hold memory on the device, with the memory that each holds.
    pub processes: Vec<(Process, Bytes)>,
    /// The ended workers for which NVML still lists a process (the worker itself or a runner), and the memory that
    /// these processes hold.
    pub left: Vec<(WorkerId, Bytes)>,
    /// The memory that processes of other programs hold.
    pub others: Bytes,
    pub other_processes: u32,
    /// The used memory that belongs to no process that this run can see. `None` if the amount is unknown.
    pub unattributed: Option<Bytes>,
    /// The free memory. `None` if the device shares the host's memory.
    pub free: Option<Bytes>,
    /// How busy the device is with this and other programs, in per cent.
    pub utilisation: Option<u32>,
}

/// A process of this run. A runner is identified by its worker and its pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Process {
    Worker(WorkerId),
    /// The process that some of the worker's runners are forked from.
    Zygote(WorkerId),
    Runner(WorkerId, u32),
}

impl Process {
    /// Returns the worker itself, or the worker that the process belongs to.
    pub const fn worker(self) -> WorkerId {
        match self {
            Self::Worker(worker) | Self::Zygote(worker) | Self::Runner(worker, _) => worker,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The source answers `Action::Wanted`. If `more` is set, the source may be asked again.
    Asked { more: bool },
    /// The source offers units that it was not asked for, such as users' submissions.
    Unasked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub unit: UnitId,
    pub stage: Stage,
    /// The baseline that is timed beside the unit.
    pub beside: Option<UnitId>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Asks a job's source for `capacity` more units. `Event::Offered` follows later.
    Wanted {
        job: JobId,
        capacity: u32,
    },
    StartWorker {
        worker: WorkerId,
        role: Role,
    },
    Start {
        worker: WorkerId,
        lease: LeaseId,
        order: Order,
        attempt: u32,
        reserved: Bytes,
        /// The maximum size of a batch of entries that share a runner or are timed together. For a build, the memory
        /// that the compiler may use.
        batch: Option<Bytes>,
        /// The maximum amount of memory that the worker may allocate on its device.
        device_cap: Bytes,
        /// How long a timed step may take. The job's remaining budget is shared equally by all units that still have a
        /// timed step.
        share: Duration,
    },
    /// Tells an idle worker to exit.
    Shutdown {
        worker: WorkerId,
    },
    /// Kills a worker as soon as the reason for the kill is on disk.
    KillWorker {
        worker: WorkerId,
        reason: KillReason,
    },
    /// Lets a runner begin.
    AllowRunner {
        worker: WorkerId,
        pid: u32,
    },
    KillRunner {
        worker: WorkerId,
        pid: u32,
        reason: KillReason,
    },
    /// Lets a worker reap a dead runner. If the core ordered the kill of the runner, `killed` is the reason.
    MayReap {
        worker: WorkerId,
        pid: u32,
        killed: Option<KillReason>,
        peak_owed: Bytes,
    },
    /// An attempt ended, with or without a valid report.
    AttemptEnded {
        lease: LeaseId,
        order: Order,
        attempt: u32,
        ended: AttemptEnd,
    },
    /// The final state of a unit, for its source.
    UnitDone {
        unit: UnitId,
        status: Status,
        blame: Option<Blame>,
        detail: String,
    },
    /// A baseline failed while it was timed beside another unit. Its own verdict does not change.
    BaselineLost {
        baseline: UnitId,
    },
    JobDone {
        job: JobId,
        baseline_failed: bool,
    },
    WorkerEnded {
        worker: WorkerId,
        class: WorkerEndClass,
        recycled: Option<RecycleReason>,
        leases: u32,
        peak_owed: Bytes,
        /// `None` if the worker did not use the device, or no sample of the device was taken meanwhile.
        peak_device: Option<Bytes>,
    },
    Policy(PolicyRow),
    PhaseEnded(PhaseRow),
    /// Answers the request that was just handled.
    Answered(Answer),
    /// Answers the source that has just offered units or taken one back.
    Replied(Answer),
    /// The run is over. The driver does not wait for workers that have not ended.
    Stop {
        reason: StopReason,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum AttemptEnd {
    /// The attempt ended with this report, which counts.
    Accepted(Box<Report>),
    /// The attempt ended through no fault of the unit, and is repeated.
    Retried { why: String, blame: Blame },
    /// The attempt has no result and is not repeated, because no attempts are left, the user cancelled the unit, or the
    /// device was lost.
    GivenUp { why: String, blame: Blame },
    /// The run ended during the attempt. A resumed run repeats it.
    Abandoned { why: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerEndClass {
    /// The worker ended as ordered.
    Ended,
    Killed,
    NotReady,
    /// The worker died without an order, for an unknown reason.
    Unknown,
}

impl WorkerEndClass {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Killed => "killed",
            Self::NotReady => "not_ready",
            Self::Unknown => "unknown",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// All jobs are over.
    Finished,
    /// A signal or a request ended the run.
    Interrupted,
    /// Too many workers failed, a killed worker did not end, or a wait was too long.
    HostFailure { why: String },
}

#[derive(Clone, Debug, PartialEq)]
pub struct PolicyRow {
    pub decision: &'static str,
    pub reason: String,
    pub numbers: Vec<(&'static str, u64)>,
}

/// The measurements of one worker during one lease.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseRow {
    pub order: Order,
    pub worker: WorkerId,
    pub predicted: Bytes,
    pub peak_owed: Bytes,
    pub peak_reclaimable: Bytes,
    /// The lease's reservation on the device.
    pub predicted_device: Bytes,
    /// `None` if the worker did not use the device, or no sample of the device was taken meanwhile.
    pub peak_device: Option<Bytes>,
    pub started: Moment,
    pub ended: Moment,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_end_names_are_stable() {
        let classes = [
            WorkerEndClass::Ended,
            WorkerEndClass::Killed,
            WorkerEndClass::NotReady,
            WorkerEndClass::Unknown,
        ];
        assert_eq!(classes.map(WorkerEndClass::name), ["ended", "killed", "not_ready", "unknown"]);
    }
}
