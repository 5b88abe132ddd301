//! Everything that can happen to a run, and everything that can be done about it: two closed enums.
//!
//! Events come from the driver's sources (workers, samples, signals, the clock); actions go to its hands. Both hold
//! numbers and names only: no descriptor, path or handle.

use std::time::Duration;

use opt_shared::ids::{JobId, LeaseId, UnitId, WorkerId};
use opt_shared::message::{KillReason, Report, Role};
use opt_shared::outcome::{Blame, Status};
pub use opt_shared::stage::Stage;
use opt_shared::units::Bytes;

use super::recycle::RecycleReason;
pub use super::request::{Answer, Control};
use super::spec::UnitSpec;

/// Time since the run started, by a clock that only moves forward.
pub type Moment = Duration;

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A worker has said hello with the right version.
    WorkerReady {
        worker: WorkerId,
    },
    /// It could not be started, or did not say hello in time. Its death follows if it ever lived.
    WorkerNotReady {
        worker: WorkerId,
        why: String,
        alive: bool,
    },
    /// A worker's pidfd fired and it has been reaped. `Returned` follows if runners of it are still there.
    WorkerGone {
        worker: WorkerId,
        how: String,
        left_runners: bool,
    },
    /// The last runner of a dead worker is gone.
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
    /// A worker asks for its runner's end.
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
    /// A worker says that it cannot go on.
    WorkerFault {
        worker: WorkerId,
        detail: String,
    },
    Sample(Sample),
    /// A source has units for a job, or none: `Action::Replied` follows.
    Offered {
        job: JobId,
        units: Vec<UnitSpec>,
        by: Offer,
    },
    /// Its source takes a unit back: `Action::Replied` follows.
    Withdrawn {
        unit: UnitId,
    },
    /// The kernel says that processes of this machine wait for memory.
    Pressure,
    /// A request of the user's: `Action::Answered` follows.
    Control(Control),
    /// The user asked for the end: once to drain, twice to kill.
    Interrupt,
    /// The reason of a worker's kill is on record, and the signal sent.
    KillSent {
        worker: WorkerId,
    },
    /// The run's database takes no rows: it is locked or full, or its disk stands still.
    StoreStalled {
        why: String,
        /// Rows that wait.
        rows: u64,
    },
    /// It has taken all that waited.
    StoreBack {
        /// Blocks of samples that were given up meanwhile.
        samples_dropped: u64,
    },
    /// Nothing but time.
    Tick,
}

/// What the machine looked like at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    pub processes: Vec<ProcessSample>,
    pub supervisor_owed: Bytes,
    /// MemAvailable; none where it could not be read.
    pub available: Option<Bytes>,
    /// MemFree: what no guess of the kernel's is in. Context only.
    pub free: Option<Bytes>,
    /// VmSwap of all processes of ours.
    pub swapped: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessSample {
    pub process: Process,
    /// Anonymous, swapped and page-table bytes, and shared ones beyond the known memfds.
    pub owed: Bytes,
    pub reclaimable: Bytes,
    /// On the device.
    pub device: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Process {
    Worker(WorkerId),
    Runner(WorkerId, u32),
}

/// How a source comes to offer something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// In answer to `Action::Wanted`. `more`: it may be asked again.
    Asked { more: bool },
    /// The source offers units by itself, as users submit.
    Unasked,
}

/// A step of a unit that a worker is given to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub unit: UnitId,
    pub stage: Stage,
    /// The baseline that is timed beside it.
    pub beside: Option<UnitId>,
}

/// What is to be done. The driver does each in order and reports back in events.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A job has room for so many more units: its source is asked. `Event::Offered` is the answer, sooner or later.
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
        /// Entries share a runner, or are timed together, up to this.
        batch: Option<Bytes>,
        /// What a step that is timed may take, so that the others of its job have as much.
        share: Duration,
    },
    /// The worker is to end by itself: it is idle.
    Shutdown {
        worker: WorkerId,
    },
    /// Intent has to be on disk before the signal.
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
    /// An attempt ended, one way or another.
    AttemptEnded {
        lease: LeaseId,
        order: Order,
        attempt: u32,
        ended: AttemptEnd,
    },
    /// What came of a unit, for its source.
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
    },
    Policy(PolicyRow),
    PhaseEnded(PhaseRow),
    /// To the request that was just handled.
    Answered(Answer),
    /// To the source that has just offered something or taken it back.
    Replied(Answer),
    /// Everything is over and every worker gone.
    Stop {
        reason: StopReason,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum AttemptEnd {
    /// The report stands.
    Stands(Box<Report>),
    /// Not the unit's fault; it is done again.
    Retried { why: String, blame: Blame },
    /// Not the unit's fault, and there is no further try.
    GivenUp { why: String, blame: Blame },
    /// The run ended under it; a resumed run does it again.
    Abandoned { why: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerEndClass {
    /// It ended when it was told to.
    Ended,
    /// We killed it.
    Killed,
    /// It never became ready.
    NotReady,
    /// Nobody ordered it and nothing explains it.
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
    /// Too many workers failed: the host is to blame.
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
    pub started: Moment,
    pub ended: Moment,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_under_these_names_stays_readable() {
        let classes = [
            WorkerEndClass::Ended,
            WorkerEndClass::Killed,
            WorkerEndClass::NotReady,
            WorkerEndClass::Unknown,
        ];
        assert_eq!(classes.map(WorkerEndClass::name), ["ended", "killed", "not_ready", "unknown"]);
    }
}
