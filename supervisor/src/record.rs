//! Defines the record of a run, which `summary.json` and `report --format json` contain.
//!
//! Each field is documented in `docs/reference/results.md`. The store loads a record, the report prints it, and the
//! driver fills in scores and ranks.
//!
//! An unknown number is `null`, never 0. Times are RFC 3339 in UTC, and sizes are whole numbers of bytes. Floats that
//! JSON cannot represent are written as [`opt_shared::nonfinite`] describes.

mod compose;
mod host;
mod memory;
mod ranking;
#[cfg(test)]
pub(crate) mod sample;
mod time;
pub mod timeline;

use opt_shared::device::DeviceKind;
use opt_shared::ids::WorkerId;
use opt_shared::language::Tier;
use opt_shared::message::Role;
use opt_shared::nonfinite;
use opt_shared::outcome::{
    Blame, CacheStateReached, DeviceTiming, EntryFailure, Estimate, ReadReport, ReplayResult, Status,
    TimeSummary, WorstError,
};
use opt_shared::settings::Priority;
pub use opt_shared::stage::Stage;
use opt_shared::units::Bytes;
use serde::{Deserialize, Serialize};

pub use host::{HostRecord, TimingConditions};
pub use memory::{MemoryRecord, MemoryTotals, PhaseRecord, Sampling};
pub use ranking::Ranking;
pub use time::{NotATime, UtcTime};

/// The version of the document. It is increased by every change that could break readers.
pub const SCHEMA: u32 = 1;

/// The whole document. The types of its long lists are type parameters, so that the store can write a list row by row
/// without keeping all of it in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord<
    Jobs = Vec<JobRecord>,
    Workers = Vec<WorkerRecord>,
    Memory = MemoryRecord,
    Policy = Vec<PolicyRecord>,
> {
    pub schema: u32,
    pub run: RunInfo,
    pub host: HostRecord,
    pub jobs: Jobs,
    pub workers: Workers,
    pub memory: Memory,
    /// The replays. Empty for runs of older versions, which had no replays.
    #[serde(default)]
    pub replays: Vec<ReplayRecord>,
    pub policy: Policy,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    pub name: String,
    pub status: RunStatus,
    pub started: UtcTime,
    pub finished: Option<UtcTime>,
    pub version: String,
    pub device: String,
    pub device_kind: DeviceKind,
    pub exit_code: Option<i32>,
    /// The number of candidates that ended with the status INFRA_ERROR, and therefore have no verdict.
    pub without_verdict: u32,
    /// The command line with which the run was started first.
    pub command: Option<String>,
}

/// Defines an enum whose variants are stored and printed as fixed words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$variant_doc])* #[serde(rename = $word)] $variant,)* }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($word => Some(Self::$variant),)* _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

words! {
    RunStatus {
        Running = "RUNNING",
        /// All jobs have ended, whatever their results.
        Finished = "FINISHED",
        /// The run can be continued with `--resume`.
        Interrupted = "INTERRUPTED",
        /// An error of the host ended the run.
        Failed = "FAILED",
    }
}

words! {
    JobStatus {
        /// The job has not ended.
        Pending = "PENDING",
        /// The job has a candidate that counts as a success. Usually, this is one other than the baseline that passed
        /// and was timed.
        Passed = "PASSED",
        NonePassed = "NONE_PASSED",
        /// The baseline failed. Candidates are still verified and timed, but those timed without the baseline have no
        /// speed-up.
        BaselineFailed = "BASELINE_FAILED",
        CaptureError = "CAPTURE_ERROR",
        DoesNotFit = "DOES_NOT_FIT",
        Skipped = "SKIPPED",
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord<Candidates = Vec<CandidateRecord>> {
    pub name: String,
    pub status: JobStatus,
    /// The reason for the status. `None` if the status explains itself.
    pub detail: Option<String>,
    pub captures: CapturesRecord,
    pub baseline: Option<String>,
    pub winner: Option<String>,
    /// Whether the winner was timed again in fresh processes and still won.
    #[serde(default)]
    pub winner_confirmed: bool,
    /// The figure by which candidates are ranked. `None` while nothing is ranked.
    pub ranking: Option<Ranking>,
    /// Why the ranking is unsettled, and what would settle it.
    pub unsettled_because: Option<String>,
    pub signature_digest: Option<String>,
    pub candidates: Candidates,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturesRecord {
    pub entries: Option<u64>,
    /// The total size of all files.
    pub bytes: Option<Bytes>,
    /// The total size if each repeated storage is counted only once.
    pub unique_bytes: Option<Bytes>,
    pub digest: Option<String>,
    /// The form in which the captures were read. `None` if this is unknown.
    pub form: Option<CapturesForm>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CapturesForm {
    Files,
    Store,
}

impl CapturesForm {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Store => "store",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Files, Self::Store].into_iter().find(|form| form.name() == name)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateRecord {
    pub name: String,
    /// The status. `None` until the candidate has ended.
    pub status: Option<Status>,
    pub blame: Option<Blame>,
    pub rank: Option<u32>,
    pub artifact_digest: Option<String>,
    pub detail: Option<String>,
    pub failed_stage: Option<Stage>,
    pub feedback: Option<String>,
    pub source: SourceRecord,
    /// How far the verdict can be trusted. `None` for runs of older versions, which had no tiers.
    #[serde(default)]
    pub tier: Option<Tier>,
    pub build: Option<BuildRecord>,
    pub signal: Option<String>,
    pub exit_code: Option<i32>,
    pub stderr_tail: Option<String>,
    #[serde(default)]
    pub stdout_tail: Option<String>,
    pub output_truncated: bool,
    pub failures: Vec<EntryFailure>,
    pub verify: Option<VerifyRecord>,
    pub profile: Option<ProfileRecord>,
    /// Why a candidate that passed cannot be timed, although the plan asks for it.
    #[serde(default)]
    pub not_timed_because: Option<String>,
    pub speedup: Option<Estimate>,
    pub resources: ResourcesRecord,
    pub attempts: Vec<AttemptRecord>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRecord {
    /// The first source file.
    pub path: Option<String>,
    pub other_paths: Vec<String>,
    pub digest: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BuildRecord {
    pub compiler: Option<String>,
    /// The whole command line, beginning with the compiler.
    pub flags: Vec<String>,
    pub log_head: String,
    #[serde(with = "nonfinite")]
    pub ms: f64,
    pub peak_owed_bytes: Option<Bytes>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerifyRecord {
    pub entries_run: u32,
    pub entries_passed: u32,
    pub entries_unsupported: u32,
    #[serde(with = "nonfinite")]
    pub max_absolute_error: f64,
    #[serde(with = "nonfinite")]
    pub max_relative_error: f64,
    pub worst: Option<WorstError>,
    pub validated_bytes: Bytes,
    #[serde(with = "nonfinite")]
    pub ms: f64,
    #[serde(default)]
    pub reads: ReadReport,
    #[serde(default)]
    pub output: opt_shared::outcome::OutputForm,
    /// The longest time that it took from the request for a process until the candidate was loaded in this process.
    #[serde(default, with = "nonfinite")]
    pub start_ms: f64,
    /// The memory that was measured on a device at named points of the sessions. Empty if the candidate was verified on
    /// the CPU.
    #[serde(default)]
    pub device: Vec<opt_shared::outcome::DevicePoint>,
    /// The counts of each kernel on the emulated device, which serve as a hint. Empty on other devices.
    #[serde(default)]
    pub emulated_kernels: Vec<opt_shared::outcome::EmulatedKernel>,
}

/// A candidate's times: over all timed entries, and for each of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileRecord {
    /// The stage that measured the times: a screen, a profile, or a confirmation. `None` for runs of older
    /// versions, which had only profiles.
    #[serde(default)]
    pub stage: Option<Stage>,
    #[serde(flatten)]
    pub times: CandidateTimes,
    /// Activities of the run that disturbed the timing. Nothing else should run while a candidate is timed.
    pub breaches: Vec<String>,
    pub cpus: Vec<u32>,
    #[serde(with = "nonfinite")]
    pub ms: f64,
    /// The state of the page cache before and after each batch.
    #[serde(default)]
    pub reads: ReadReport,
    pub entries: Vec<EntryTimingRecord>,
}

/// Times over all timed entries. Most are means that are weighted by the entries' weights. The driver computes them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CandidateTimes {
    /// The estimated time for calling every entry in the capture set once. Entries that the candidate does not support
    /// or that cannot be timed are left out.
    #[serde(with = "nonfinite::option")]
    pub total_time_ms: Option<f64>,
    #[serde(with = "nonfinite::option")]
    pub median_time_ms: Option<f64>,
    #[serde(with = "nonfinite::option")]
    pub mean_time_ms: Option<f64>,
    #[serde(with = "nonfinite::option")]
    pub std_time_ms: Option<f64>,
    #[serde(with = "nonfinite::option")]
    pub min_time_ms: Option<f64>,
    #[serde(with = "nonfinite::option")]
    pub max_time_ms: Option<f64>,
    #[serde(with = "nonfinite::option")]
    pub p5: Option<f64>,
    #[serde(with = "nonfinite::option")]
    pub p95: Option<f64>,
    #[serde(with = "nonfinite::option")]
    pub ci_low: Option<f64>,
    #[serde(with = "nonfinite::option")]
    pub ci_high: Option<f64>,
    pub samples: Option<u64>,
    /// Half the width of the speed-up's interval, as a share of the speed-up. If there is no speed-up, this is the
    /// largest noise of an entry that counts (see `varied_entries`).
    #[serde(with = "nonfinite::option")]
    pub noise: Option<f64>,
    /// Whether the timing converged for every entry that counts.
    pub converged: Option<bool>,
    /// The cache state that was reached for the first entry.
    pub cache_state: Option<CacheStateReached>,
    /// The largest footprint of an entry.
    pub footprint_bytes: Option<Bytes>,
    #[serde(with = "nonfinite::option")]
    pub bytes_per_second: Option<f64>,
    /// The number of timed entries whose inputs varied, and the number of those whose inputs did not. If any inputs
    /// varied, entries of the second kind count only where the candidate is clearly slower than its baseline.
    pub varied_entries: Option<u64>,
    pub unvaried_entries: Option<u64>,
    /// The number of runners in which the candidate was timed, for the entry with the fewest runners.
    pub runners: Option<u32>,
    /// The largest `wait_share` of any entry.
    #[serde(with = "nonfinite::option")]
    pub wait_share: Option<f64>,
}

impl CandidateTimes {
    /// Returns whether entries were timed, but none of them counts as varying.
    pub fn had_same_inputs(&self) -> bool {
        self.varied_entries == Some(0) && self.unvaried_entries.is_some_and(|count| 0 < count)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntryTimingRecord {
    pub entry: String,
    /// The number of entries for which this one stands. It is the size of its signature class or, if every entry is
    /// timed, 1.
    pub weight: u64,
    #[serde(flatten)]
    pub times: TimeSummary,
    #[serde(with = "nonfinite")]
    pub noise: f64,
    pub converged: bool,
    pub cache_state: CacheStateReached,
    pub priority: Priority,
    pub footprint_bytes: Bytes,
    #[serde(with = "nonfinite")]
    pub bytes_per_second: f64,
    pub speedup: Option<Estimate>,
    /// The baseline's times, in the blocks that are paired with those of this candidate.
    pub baseline: Option<TimeSummary>,
    pub calls_per_block: u32,
    pub discarded_blocks: u32,
    pub slots_checked: u64,
    #[serde(with = "nonfinite::option")]
    pub plan_ms: Option<f64>,
    #[serde(with = "nonfinite")]
    pub handoff_us: f64,
    /// The number of runners on each side of the comparison whose times were used.
    pub runners: u32,
    /// The share of the timed blocks that was spent waiting for a CPU. The figure is that of the candidate or its
    /// baseline, whichever waited more.
    #[serde(with = "nonfinite::option")]
    pub wait_share: Option<f64>,
    #[serde(default)]
    pub deciles: Vec<f64>,
    #[serde(default)]
    pub baseline_deciles: Vec<f64>,
    /// Arguments that had new values in every call.
    pub varied: Vec<String>,
    pub unvaried_because: Option<String>,
    /// Details of the timing on a device; `null` on a CPU.
    pub device: Option<DeviceTiming>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourcesRecord {
    pub runner_peak_owed_bytes: Option<Bytes>,
    /// The largest amount of memory that the lease of a single attempt reserved.
    pub predicted_bytes: Option<Bytes>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    pub stage: Stage,
    pub number: u32,
    pub worker: Option<WorkerId>,
    /// The status. `None` while the attempt runs.
    pub status: Option<Status>,
    pub started: UtcTime,
    #[serde(with = "nonfinite::option")]
    pub ms: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerRecord {
    pub id: WorkerId,
    pub role: Role,
    pub pid: u32,
    pub started: UtcTime,
    #[serde(with = "nonfinite::option")]
    pub ready_ms: Option<f64>,
    pub ended: Option<UtcTime>,
    pub end_class: Option<String>,
    pub recycled_because: Option<String>,
    pub leases: u32,
    pub peak_owed_bytes: Option<Bytes>,
    /// The peak of the device memory of the worker and its runners together. `None` if they used none.
    #[serde(default)]
    pub device_peak_bytes: Option<Bytes>,
}

/// A `[[replay]]` of the plan. Its measurements are in `result`, which is present only if the replay passed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayRecord {
    pub name: String,
    /// The status. `None` until the replay has ended.
    pub status: Option<Status>,
    pub blame: Option<Blame>,
    pub detail: Option<String>,
    pub budget_bytes: Option<Bytes>,
    /// The smallest possible budget, computed from the headers.
    pub floor_bytes: Option<Bytes>,
    /// The size of all constants (tensors that are arguments of the calls), computed from the headers.
    pub all_resident_bytes: Option<Bytes>,
    pub started: Option<UtcTime>,
    pub ended: Option<UtcTime>,
    pub worker: Option<WorkerId>,
    pub attempts: u32,
    /// The memory that the replay's lease reserved.
    pub predicted_bytes: Option<Bytes>,
    pub peak_owed_bytes: Option<Bytes>,
    #[serde(with = "nonfinite::option")]
    pub ms: Option<f64>,
    pub result: Option<ReplayResult>,
    pub failure: Option<EntryFailure>,
}

/// A decision of the policy log, with the figures that it was based on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyRecord {
    pub t: UtcTime,
    pub decision: String,
    pub reason: String,
    pub numbers: Numbers,
}

/// Figures with their names, in insertion order.
pub type Numbers = serde_json::Map<String, serde_json::Value>;

#[cfg(test)]
mod tests;
