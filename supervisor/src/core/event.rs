//! The two closed enums at the core's boundary: everything that can happen to a run, and everything it can do.
//!
//! Events come from the driver's sources (workers, samples, signals, the clock); the driver carries out the
//! actions. Both hold only numbers and names: no descriptor, path or handle.

use std::time::Duration;

use opt_shared::ids::{JobId, LeaseId, UnitId, WorkerId};
use opt_shared::message::{KillReason, Report, Role};
use opt_shared::outcome::{Blame, Status};
pub use opt_shared::stage::Stage;
use opt_shared::units::Bytes;

use super::recycle::RecycleReason;
pub use super::request::{Answer, Control};
use super::spec::UnitSpec;

/// Time since the run started, from a monotonic clock.
pub type Moment = Duration;

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A worker sent its hello, with the right version.
    WorkerReady {
        worker: WorkerId,
    },
    /// A worker could not be started, or sent no hello in time. If it ever lived, its death follows.
    WorkerNotReady {
        worker: WorkerId,
        why: String,
        alive: bool,
    },
    /// A worker's pidfd fired and it has been reaped. `Returned` follows if some of its runners are still alive.
    WorkerGone {
        worker: WorkerId,
        how: String,
        left_runners: bool,
    },
    /// The last runner of a dead worker has ended.
    Returned {
        worker: WorkerId,
    },
    RunnerStarted {
        worker: WorkerId,
        lease: LeaseId,
        pid: u32,
        limit: Bytes,
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
    /// It is gone from its bus, or its driver has given it up.
    DeviceLost {
        why: String,
    },
    /// A source offers units for a job, or says that it has none. `Action::Replied` follows.
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
    /// A user's request. `Action::Answered` follows.
    Control(Control),
    /// The user interrupted the run: the first interrupt drains, the second kills.
    Interrupt,
    /// The reason for killing a worker is on record, and the signal has been sent.
    KillSent {
        worker: WorkerId,
    },
    /// The run's database takes no rows: it is locked or full, or its disk hangs.
    StoreStalled {
        why: String,
        /// Number of rows waiting to be written.
        rows: u64,
    },
    /// The database has written all waiting rows.
    StoreBack {
        /// Number of sample blocks that were dropped meanwhile.
        samples_dropped: u64,
    },
    /// Time has passed; nothing else happened.
    Tick,
}

/// Memory of the machine and of our processes at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    pub processes: Vec<ProcessSample>,
    pub supervisor_owed: Bytes,
    /// `MemAvailable`; `None` if it could not be read.
    pub available: Option<Bytes>,
    /// `MemFree`, which unlike `MemAvailable` contains no estimate. For information only.
    pub free: Option<Bytes>,
    /// `VmSwap` of all our processes.
    pub swapped: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessSample {
    pub process: Process,
    /// Anonymous, swapped and page-table bytes, plus shared bytes that are not in known memory files.
    pub owed: Bytes,
    pub reclaimable: Bytes,
}

/// What the device looked like at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSample {
    /// Living processes of ours that hold something on it.
    pub processes: Vec<(Process, Bytes)>,
    /// Workers that are gone and that it still lists, they or their runners.
    pub left: Vec<(WorkerId, Bytes)>,
    /// What processes of others hold, and how many there are.
    pub others: Bytes,
    pub other_processes: u32,
    /// In use, and held by nobody that can be named. None where it cannot be known.
    pub unattributed: Option<Bytes>,
    /// None where it has no memory of its own.
    pub free: Option<Bytes>,
    /// Per cent of its time.
    pub utilisation: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Process {
    Worker(WorkerId),
    /// What some of its runners are copies of.
    Zygote(WorkerId),
    Runner(WorkerId, u32),
}

impl Process {
    /// The worker that it is, or that it belongs to.
    pub const fn worker(self) -> WorkerId {
        match self {
            Self::Worker(worker) | Self::Zygote(worker) | Self::Runner(worker, _) => worker,
        }
    }
}

/// Why a source offers something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It answers `Action::Wanted`. `more`: it may be asked again.
    Asked { more: bool },
    /// It offers units unasked, as user submissions do.
    Unasked,
}

/// A step of a unit, as it is given to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub unit: UnitId,
    pub stage: Stage,
    /// The baseline to be timed beside it.
    pub beside: Option<UnitId>,
}

/// An instruction to the driver, which carries them out in order and reports back through events.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A job has room for this many more units, so its source is asked. `Event::Offered` follows sooner or later.
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
        /// Largest batch of entries that share a runner or are timed together.
        batch: Option<Bytes>,
        /// How long a timed step may take, so that the others of its job get as much time.
        share: Duration,
    },
    /// Tells an idle worker to end.
    Shutdown {
        worker: WorkerId,
    },
    /// Kills a worker, after the reason is on disk.
    KillWorker {
        worker: WorkerId,
        reason: KillReason,
    },
    AllowRunner {
        worker: WorkerId,
        pid: u32,
    },
    KillRunner {
        worker: WorkerId,
        pid: u32,
        reason: KillReason,
    },
    MayReap {
        worker: WorkerId,
        pid: u32,
        killed: Option<KillReason>,
        peak_owed: Bytes,
    },
    /// An attempt ended, in one way or another.
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
        /// None where it was never seen on the device.
        peak_device: Option<Bytes>,
    },
    Policy(PolicyRow),
    PhaseEnded(PhaseRow),
    /// Answers the request that was just handled.
    Answered(Answer),
    /// Answers the source that has just offered units or taken one back.
    Replied(Answer),
    /// The run is over and every worker is gone.
    Stop {
        reason: StopReason,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum AttemptEnd {
    /// The report counts.
    Stands(Box<Report>),
    /// The unit is not to blame; the attempt is repeated.
    Retried { why: String, blame: Blame },
    /// The unit is not to blame, but there are no attempts left.
    GivenUp { why: String, blame: Blame },
    /// The run ended during the attempt; a resumed run repeats it.
    Abandoned { why: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerEndClass {
    /// It ended as it was told to.
    Ended,
    /// We killed it.
    Killed,
    /// It never became ready.
    NotReady,
    /// It died without an order, for no known reason.
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
    Finished,
    Interrupted,
    /// Too many workers failed, so the host is to blame.
    HostTrouble {
        why: String,
    },
}

/// One decision about memory or workers, with its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyRow {
    pub decision: &'static str,
    pub reason: String,
    pub numbers: Vec<(&'static str, u64)>,
}

/// One worker's time in one stage, measured.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseRow {
    pub order: Order,
    pub worker: WorkerId,
    pub predicted: Bytes,
    pub peak_owed: Bytes,
    pub peak_reclaimable: Bytes,
    /// What its lease reserved on the device, and the most that it was seen to hold there; none where it was not seen there.
    pub predicted_device: Bytes,
    pub peak_device: Option<Bytes>,
    pub started: Moment,
    pub ended: Moment,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_names_stay_readable() {
        let classes = [
            WorkerEndClass::Ended,
            WorkerEndClass::Killed,
            WorkerEndClass::NotReady,
            WorkerEndClass::Unknown,
        ];
        assert_eq!(classes.map(WorkerEndClass::name), ["ended", "killed", "not_ready", "unknown"]);
    }
}
