//! Defines the rows that the driver writes, with one type for each kind of event.

use opt_shared::ids::{CandidateId, JobId, LeaseId, WorkerId};
use opt_shared::language::Tier;
use opt_shared::message::{Report, Role};
use opt_shared::outcome::{Blame, Estimate, Status};
use opt_shared::units::Bytes;

use crate::record::{CandidateTimes, CapturesRecord, JobStatus, Ranking, SourceRecord, Stage, UtcTime};

#[derive(Clone, Debug)]
pub struct RunRow {
    pub name: String,
    pub started: UtcTime,
    pub version: String,
    pub device: String,
}

/// A job, as its plan describes it.
#[derive(Clone, Debug)]
pub struct JobRow {
    pub id: JobId,
    pub name: String,
    pub captures: CapturesRecord,
    pub baseline: Option<String>,
    pub signature_digest: Option<String>,
}

/// How a job has ended: its status and its winner.
#[derive(Clone, Debug)]
pub struct JobEnd {
    pub status: JobStatus,
    pub detail: Option<String>,
    pub winner: Option<String>,
    pub winner_confirmed: bool,
    pub ranking: Option<Ranking>,
    pub unsettled_because: Option<String>,
}

impl JobEnd {
    /// Returns the end of a job that has no ranked candidates.
    pub fn of(status: JobStatus) -> Self {
        Self {
            status,
            detail: None,
            winner: None,
            winner_confirmed: false,
            ranking: None,
            unsettled_because: None,
        }
    }
}

/// A candidate, as its plan or its submission describes it.
#[derive(Clone, Debug)]
pub struct CandidateRow {
    pub id: CandidateId,
    pub job: JobId,
    pub name: String,
    pub source: SourceRecord,
    pub tier: Tier,
    pub not_timed_because: Option<&'static str>,
}

#[derive(Clone, Debug)]
pub struct CandidateEnd {
    pub status: Status,
    pub blame: Option<Blame>,
    pub failed_stage: Option<Stage>,
    pub detail: Option<String>,
    pub feedback: Option<String>,
}

/// A candidate's score within its job. Scores are written when the job ends. They are also written when a candidate
/// ends for whose result a client is waiting.
#[derive(Clone, Debug, Default)]
pub struct ScoreRow {
    pub rank: Option<u32>,
    pub speedup: Option<Estimate>,
    pub times: CandidateTimes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttemptKey {
    pub candidate: CandidateId,
    pub stage: Stage,
    /// The number of the attempt. It starts at 1, and counting continues when a run is resumed.
    pub number: u32,
}

#[derive(Clone, Debug)]
pub struct AttemptRow {
    pub key: AttemptKey,
    pub worker: Option<WorkerId>,
    pub lease: Option<LeaseId>,
    /// The memory that the attempt's lease reserves.
    pub predicted: Option<Bytes>,
    pub started: UtcTime,
}

#[derive(Clone, Debug)]
pub struct AttemptEnd {
    pub status: Status,
    pub blame: Option<Blame>,
    pub detail: Option<String>,
    pub ms: Option<f64>,
    /// The report. `None` if the worker died before it could send one.
    pub report: Option<Report>,
}

#[derive(Clone, Copy, Debug)]
pub struct WorkerRow {
    pub id: WorkerId,
    pub role: Role,
    pub pid: u32,
    pub started: UtcTime,
}

#[derive(Clone, Debug)]
pub struct WorkerEnd {
    pub ended: UtcTime,
    pub class: String,
    pub recycled_because: Option<String>,
    pub leases: u32,
    pub peak_owed: Option<Bytes>,
    /// The largest amount of memory that was seen on the device. `None` if the worker was never seen there.
    pub peak_device: Option<Bytes>,
}

#[derive(Clone, Copy, Debug)]
pub struct PhaseRow {
    pub candidate: CandidateId,
    pub stage: Stage,
    pub worker: WorkerId,
    pub predicted: Option<Bytes>,
    pub peak_owed: Option<Bytes>,
    pub peak_reclaimable: Option<Bytes>,
    pub device: DevicePhase,
    /// How much the swapped bytes of the process tree changed from start to end.
    pub swap_delta: Option<i64>,
    /// The microseconds from the end of the run's previous phase until the lease of this phase was sent.
    pub switch_us: Option<u64>,
    pub started: UtcTime,
    pub ended: Option<UtcTime>,
}

/// The memory of a phase on the device: `predicted` is its reservation, and `peak` the highest sample. `predicted` is
/// `None` if the phase needed no card, and `peak` is `None` if the phase was never seen on one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DevicePhase {
    pub predicted: Option<Bytes>,
    pub peak: Option<Bytes>,
}

/// A phase like [`PhaseRow`], but of an attempt of a replay. It is written when the attempt ends.
#[derive(Clone, Debug)]
pub struct ReplayPhaseRow {
    pub name: String,
    pub worker: WorkerId,
    pub predicted: Bytes,
    pub peak_owed: Bytes,
    pub peak_reclaimable: Bytes,
    pub device: DevicePhase,
    pub swap_delta: Option<i64>,
    pub switch_us: Option<u64>,
    pub started: UtcTime,
    pub ended: UtcTime,
}

/// The kind of a process that is killed. Rows do not contain the pid, because by the time the row is read, the pid may
/// belong to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessKind {
    Worker,
    Runner,
}

impl ProcessKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Runner => "runner",
        }
    }
}
