//! How things end: one status, one blame, and the evidence.
//!
//! Owns the closed list of statuses (DESIGN "Verdicts") and what each stage reports. Who decides which status a
//! death gets is the worker's and the core's work; this file only says what the words are.

mod empty;

use serde::{Deserialize, Serialize};

use crate::capture::DType;
use crate::units::Bytes;

macro_rules! statuses {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $blame:ident;)*) => {
        /// The end of a stage, or of a candidate.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Status { $($(#[$doc])* #[serde(rename = $name)] $variant,)* }

        impl Status {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Whose fault it is; nobody's where nothing went wrong.
            pub const fn blame(self) -> Option<Blame> {
                match self { $(Self::$variant => statuses!(@ $blame),)* }
            }

            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
    (@ Nobody) => { None };
    (@ $blame:ident) => { Some(Blame::$blame) };
}

/// Whose fault an end is. A worker's and a host's ends are retried and never cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Blame {
    Candidate,
    Capture,
    Worker,
    Host,
    Plan,
}

impl Blame {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Candidate => "candidate",
            Self::Capture => "capture",
            Self::Worker => "worker",
            Self::Host => "host",
            Self::Plan => "plan",
        }
    }
}

statuses! {
    Passed, "PASSED", Nobody;
    CompileError, "COMPILE_ERROR", Candidate;
    CompileTimeout, "COMPILE_TIMEOUT", Candidate;
    /// The library could not be loaded, or died while loading (a constructor that aborts).
    LoadError, "LOAD_ERROR", Candidate;
    /// A call returned a code other than 0 and -2, or returned a value through `ret`.
    RuntimeError, "RUNTIME_ERROR", Candidate;
    /// A signal, an abort, or any exit inside a call.
    Crashed, "CRASHED", Candidate;
    Timeout, "TIMEOUT", Candidate;
    /// Only with proof: our own kill, or a size that was refused to the runner.
    HostMemoryLimit, "HOST_MEMORY_LIMIT", Candidate;
    DeviceMemoryLimit, "DEVICE_MEMORY_LIMIT", Candidate;
    LimitExceeded, "LIMIT_EXCEEDED", Candidate;
    IncorrectShape, "INCORRECT_SHAPE", Candidate;
    IncorrectDtype, "INCORRECT_DTYPE", Candidate;
    IncorrectNumerical, "INCORRECT_NUMERICAL", Candidate;
    UnwrittenOutput, "UNWRITTEN_OUTPUT", Candidate;
    OutOfBounds, "OUT_OF_BOUNDS", Candidate;
    InputMutated, "INPUT_MUTATED", Candidate;
    /// Right once, then stale or different.
    Nondeterministic, "NONDETERMINISTIC", Candidate;
    TooFast, "TOO_FAST", Candidate;
    TimingMismatch, "TIMING_MISMATCH", Candidate;
    DeferredWork, "DEFERRED_WORK", Candidate;
    /// The candidate said that it does not do this entry.
    Unsupported, "UNSUPPORTED", Candidate;
    CaptureError, "CAPTURE_ERROR", Capture;
    DoesNotFit, "DOES_NOT_FIT", Plan;
    Skipped, "SKIPPED", Plan;
    /// Worker or host; retried, never cached. The blame that is recorded says which of the two.
    InfraError, "INFRA_ERROR", Worker;
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// How a build ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BuildReport {
    pub status: Status,
    /// One line for a person: what happened.
    pub detail: String,
    pub artifact: Option<Artifact>,
    /// First line of `COMPILER --version`; none for a prebuilt library.
    pub compiler: Option<String>,
    /// The command's arguments, the compiler itself first.
    pub command: Vec<String>,
    /// The head of what the compiler printed.
    pub log_head: String,
    pub source_digest: String,
    #[serde(with = "crate::nonfinite")]
    pub ms: f64,
    /// Highest owed memory seen by the worker that ran the build; none where the kernel gave none.
    pub peak_owed: Option<Bytes>,
}

/// A built library, kept in the run's `artifacts` folder under its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// BLAKE3 of the file, in hex.
    pub digest: String,
    pub path: std::path::PathBuf,
}

/// How the death of a runner showed itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnerEnd {
    /// Name of the signal that ended it (`SIGSEGV`), if one did.
    pub signal: Option<String>,
    pub exit_code: Option<i32>,
    /// Tail of what it wrote to standard error, as text.
    pub stderr_tail: String,
    /// It wrote more than is kept.
    pub output_truncated: bool,
    /// A SIGKILL ended it that nobody of ours sent, and there was no namespace to say that it came from outside.
    pub unknown_sender: bool,
}

/// How a verification ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerifyReport {
    pub status: Status,
    pub detail: String,
    pub entries_run: u32,
    pub entries_passed: u32,
    /// Entries the candidate declared unsupported.
    pub entries_unsupported: u32,
    /// Those entries.
    pub unsupported: Vec<crate::ids::EntryId>,
    #[serde(with = "crate::nonfinite")]
    pub max_absolute_error: f64,
    #[serde(with = "crate::nonfinite")]
    pub max_relative_error: f64,
    /// The entry and place of the largest relative L2 error among compared outputs.
    pub worst: Option<WorstError>,
    /// At most three.
    pub failures: Vec<EntryFailure>,
    /// Captured bytes that were gone through.
    pub bytes_validated: Bytes,
    pub output_truncated: bool,
    pub end: Option<RunnerEnd>,
    #[serde(with = "crate::nonfinite")]
    pub ms: f64,
    /// Highest owed memory of a runner, as far as the worker could see.
    pub runner_peak_owed: Bytes,
    /// How the captures were read, over all entries.
    #[serde(default)]
    pub reads: ReadReport,
}

/// What became of inputs that were not in the page cache, and of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadReport {
    /// Large inputs that were left to be read page by page, as a candidate touches them.
    pub page_by_page: u32,
    /// Of those: parts of so many were read ahead, because they were seen to be read as a whole.
    pub turned: u32,
    /// What had been touched of them when that was seen.
    pub turned_after_bytes: Bytes,
    /// Large inputs left to the kernel's own read-ahead, because it does not tell what is in the cache.
    pub left_to_kernel: u32,
    /// Touched by candidates and not in the cache: read page by page.
    pub touched_bytes: Bytes,
    /// Read ahead of them.
    pub ahead_bytes: Bytes,
    /// Of the captures' files in the page cache, summed over the moments before and after each entry, where the kernel
    /// tells: their difference is what was left behind.
    pub cached_before_bytes: Option<Bytes>,
    pub cached_after_bytes: Option<Bytes>,
}

impl ReadReport {
    /// One entry's figures on top of those before it.
    pub fn absorb(&mut self, entry: &Self) {
        self.page_by_page += entry.page_by_page;
        self.turned += entry.turned;
        self.turned_after_bytes += entry.turned_after_bytes;
        self.left_to_kernel += entry.left_to_kernel;
        self.touched_bytes += entry.touched_bytes;
        self.ahead_bytes += entry.ahead_bytes;
        for (all, one) in [
            (&mut self.cached_before_bytes, entry.cached_before_bytes),
            (&mut self.cached_after_bytes, entry.cached_after_bytes),
        ] {
            *all = one.map(|one| all.unwrap_or_default() + one).or(*all);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorstError {
    pub entry: String,
    pub output: String,
    #[serde(with = "crate::nonfinite")]
    pub relative_l2: f64,
}

/// One entry that did not pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntryFailure {
    pub entry: String,
    pub status: Status,
    /// One line: what happened.
    pub detail: String,
    /// One short text per argument: `input: float32[4, 8]`, `eps: 1e-05`.
    pub args: Vec<String>,
    pub mismatch: Option<Mismatch>,
}

/// Where and how an output differs from what was recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Path of the output leaf: `output`, or `output[1]`.
    pub output: String,
    pub dtype: DType,
    pub shape: Vec<u64>,
    /// Coordinates of the first bad element.
    pub index: Vec<u64>,
    /// Values as text, so that NaN and infinities survive.
    pub expected: String,
    pub actual: String,
    #[serde(with = "crate::nonfinite")]
    pub absolute_error: f64,
    #[serde(with = "crate::nonfinite")]
    pub relative_error: f64,
    #[serde(with = "crate::nonfinite")]
    pub relative_l2: f64,
    pub elements: u64,
    pub failed: u64,
    pub actual_nan: u64,
    pub actual_inf: u64,
    pub expected_nan: u64,
    pub expected_inf: u64,
    /// Least and greatest finite value, as text; none where nothing is finite.
    pub expected_range: Option<[String; 2]>,
    pub actual_range: Option<[String; 2]>,
    /// The first eight bad elements.
    pub bad_indices: Vec<Vec<u64>>,
    pub pattern: Pattern,
    pub tolerance: ToleranceUsed,
}

/// What the bad elements have in common.
///
/// Not internally tagged: the channel's format describes nothing, so it cannot read such an enum back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Every element is bad.
    All,
    /// From some element to the end.
    Tail {
        from: u64,
    },
    /// Whole rows of the first axis, from this one on.
    FromRow {
        row: u64,
    },
    /// Every bad element still holds the poison the output was filled with.
    StillPoisoned,
    Scattered,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToleranceUsed {
    #[serde(with = "crate::nonfinite")]
    pub rtol: f64,
    #[serde(with = "crate::nonfinite")]
    pub atol: f64,
    #[serde(with = "crate::nonfinite")]
    pub rel_l2: f64,
}

/// How a profile ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileReport {
    pub status: Status,
    pub detail: String,
    pub entries: Vec<EntryProfile>,
    pub failures: Vec<EntryFailure>,
    pub end: Option<RunnerEnd>,
    /// The end was the baseline's, not the candidate's.
    pub baseline_failed: bool,
    #[serde(with = "crate::nonfinite")]
    pub ms: f64,
    pub runner_peak_owed: Bytes,
    pub output_truncated: bool,
    /// CPU numbers the runner was pinned to.
    pub cpus: Vec<u32>,
    /// Of the page cache before and after each batch.
    #[serde(default)]
    pub reads: ReadReport,
}

/// One timed entry. Times are of one call, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntryProfile {
    pub entry: String,
    /// How many entries of the capture set are alike (same signature class).
    pub weight: u64,
    pub times: TimeSummary,
    pub baseline_times: Option<TimeSummary>,
    /// Median paired ratio baseline / candidate with its 95 % bootstrap interval.
    pub speedup: Option<Estimate>,
    /// Half-width of the interval over the estimate.
    #[serde(with = "crate::nonfinite")]
    pub noise: f64,
    pub converged: bool,
    pub cache_state: CacheStateReached,
    pub footprint: Bytes,
    #[serde(with = "crate::nonfinite")]
    pub bytes_per_second: f64,
    /// Calls in one block.
    pub calls_per_block: u32,
    /// Blocks thrown away because of a major fault.
    pub discarded_blocks: u32,
    pub slots_checked: u64,
    /// Time of the optional `<symbol>_plan` call.
    #[serde(with = "crate::nonfinite::option")]
    pub plan_ms: Option<f64>,
    /// Hand-off that was subtracted from every block, in microseconds.
    #[serde(with = "crate::nonfinite")]
    pub handoff_us: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheStateReached {
    Warm,
    Cold,
    Rotate,
}

/// Of the calls of one entry, each sample being one block's mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeSummary {
    #[serde(with = "crate::nonfinite")]
    pub median_time_ms: f64,
    #[serde(with = "crate::nonfinite")]
    pub mean_time_ms: f64,
    #[serde(with = "crate::nonfinite")]
    pub std_time_ms: f64,
    #[serde(with = "crate::nonfinite")]
    pub min_time_ms: f64,
    #[serde(with = "crate::nonfinite")]
    pub max_time_ms: f64,
    #[serde(with = "crate::nonfinite")]
    pub p5: f64,
    #[serde(with = "crate::nonfinite")]
    pub p95: f64,
    /// 95 % bootstrap interval of the median.
    #[serde(with = "crate::nonfinite")]
    pub ci_low: f64,
    #[serde(with = "crate::nonfinite")]
    pub ci_high: f64,
    pub samples: u32,
}

/// How a replay ended. There is a result only where every step agreed with the schedule and with its capture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayReport {
    pub status: Status,
    pub detail: String,
    /// The call that was not right, if there was one.
    pub failures: Vec<EntryFailure>,
    pub end: Option<RunnerEnd>,
    pub result: Option<Box<ReplayResult>>,
    #[serde(with = "crate::nonfinite")]
    pub ms: f64,
    pub runner_peak_owed: Bytes,
    pub output_truncated: bool,
}

/// A whole replay, measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayResult {
    pub budget_bytes: Bytes,
    /// The smallest budget that would have done.
    pub floor_bytes: Bytes,
    /// All tensors at once, each in whole pages: the pool of a replay that keeps everything.
    pub all_resident_bytes: Bytes,
    pub pinned_bytes: Bytes,
    pub peak_pool_bytes: Bytes,
    /// Copied into the pool.
    pub bytes_moved: Bytes,
    /// Distinct tensors, each once: what a replay that keeps everything copies.
    pub unique_bytes: Bytes,
    pub constants: u64,
    pub uses: u64,
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
    #[serde(with = "crate::nonfinite")]
    pub total_ms: f64,
    /// Of it, waiting for tensors.
    #[serde(with = "crate::nonfinite")]
    pub stall_ms: f64,
    /// Of it, everything else: what a replay that keeps everything would take once all is there.
    #[serde(with = "crate::nonfinite")]
    pub compute_ms: f64,
    /// The copy queue was at work for so long, beside it.
    #[serde(with = "crate::nonfinite")]
    pub copy_ms: f64,
    /// BLAKE3 of the recording: equal where catalog and schedule are.
    pub recording_digest: String,
    /// BLAKE3 of all outputs, in order: equal where every byte is.
    pub outputs_digest: String,
    /// All steps are counted above; no more than `MOST_REPORTED_STEPS` are here.
    pub steps: Vec<ReplayStep>,
    pub step_count: u64,
}

/// Steps that are reported one by one.
pub const MOST_REPORTED_STEPS: usize = 1000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayStep {
    pub job: String,
    pub entry: String,
    pub candidate: String,
    #[serde(with = "crate::nonfinite")]
    pub ms: f64,
    #[serde(with = "crate::nonfinite")]
    pub stall_ms: f64,
    /// The kernel's call alone, with its hand-off.
    #[serde(with = "crate::nonfinite")]
    pub call_ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    #[serde(with = "crate::nonfinite")]
    pub value: f64,
    #[serde(with = "crate::nonfinite")]
    pub ci_low: f64,
    #[serde(with = "crate::nonfinite")]
    pub ci_high: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The channel's format describes nothing: what needs to look ahead cannot be read back from it.
    #[test]
    fn every_pattern_and_every_number_crosses_the_channel() {
        let (sender, receiver) = ipc_channel::ipc::channel().expect("channel");
        let patterns = [
            Pattern::All,
            Pattern::Tail { from: 3 },
            Pattern::FromRow { row: 4 },
            Pattern::StillPoisoned,
            Pattern::Scattered,
        ];
        for pattern in patterns {
            for value in [1.5, f64::INFINITY, f64::NEG_INFINITY] {
                let sent = (pattern.clone(), Estimate { value, ci_low: 0.0, ci_high: -0.0 });
                sender.send(sent.clone()).expect("sends");
                assert_eq!(receiver.recv().expect("receives"), sent);
            }
        }
    }

    #[test]
    fn status_names_lead_back() {
        for &status in Status::ALL {
            assert_eq!(Status::from_name(status.name()), Some(status));
        }
    }
}
