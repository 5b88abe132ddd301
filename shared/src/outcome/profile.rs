//! Defines what a profile measures for each entry: speed-up, times, noise, and how the entry was timed.

use serde::{Deserialize, Serialize};

use super::ReadReport;
use crate::settings::Priority;
use crate::units::Bytes;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profiled {
    pub entries: Vec<EntryProfile>,
    /// True if the baseline, not the candidate, failed.
    pub baseline_failed: bool,
    /// The CPUs that the runner was pinned to.
    pub cpus: Vec<u32>,
    /// Figures on how the captures were read, over all batches.
    pub reads: ReadReport,
    /// Other activities of the run that took place while the candidate was timed. The supervisor adds them, because a
    /// worker cannot observe them.
    #[serde(default)]
    pub breaches: Vec<String>,
}

/// A timed entry. Times are per call, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntryProfile {
    pub entry: String,
    /// The number of entries that this one represents: the size of its signature class or, if every entry is timed, 1.
    pub weight: u64,
    pub times: TimeSummary,
    pub baseline_times: Option<TimeSummary>,
    /// The time of the baseline divided by the time of the candidate, with its 95 % interval. The median over the pairs
    /// is computed for each runner, and the medians of all runners are combined. A screen has only one runner, so there
    /// it is that runner's median.
    pub speedup: Option<Estimate>,
    /// The half-width of the confidence interval divided by the estimate.
    #[serde(with = "crate::nonfinite")]
    pub noise: f64,
    /// True if the noise was at most the plan's `max_noise` when timing ended.
    pub converged: bool,
    pub cache_state: CacheStateReached,
    /// The scheduling priority of the processes in timed blocks.
    pub priority: Priority,
    /// The size of the inputs and outputs of one call.
    pub footprint: Bytes,
    /// The footprint divided by the median time.
    #[serde(with = "crate::nonfinite")]
    pub bytes_per_second: f64,
    /// The number of calls in a block of the last pair of blocks.
    pub calls_per_block: u32,
    /// The number of timed blocks, of both sides (candidate and baseline), that were discarded. Pairs of blocks that
    /// took no time are discarded. If at least half of a runner's pairs took no time, all of its pairs are discarded.
    /// Pairs with a preempted or throttled block are discarded too, unless few other pairs are left, or the candidate
    /// was disturbed much more often than its baseline.
    pub discarded_blocks: u32,
    /// The number of timed calls, of both sides together, whose outputs were compared.
    pub slots_checked: u64,
    /// Time of the optional `<symbol>_plan` call in the last process.
    #[serde(with = "crate::nonfinite::option")]
    pub plan_ms: Option<f64>,
    /// The time in microseconds that a hand-off took in the last pair of processes. It is subtracted from the times of
    /// that pair's blocks.
    #[serde(with = "crate::nonfinite")]
    pub handoff_us: f64,
    /// The number of processes of each side whose times were used.
    pub runners: u32,
    /// The share of the time of timed blocks that a side's process and the worker spent waiting for a CPU, averaged
    /// over their threads. This is the share of the side that waited more. `None` if the operating system does not
    /// report such waits.
    #[serde(with = "crate::nonfinite::option")]
    pub wait_share: Option<f64>,
    /// Distribution of the time per call over the blocks: minimum, every tenth percentile, maximum.
    pub deciles: Vec<f64>,
    /// The same distribution for the baseline; empty without a baseline.
    pub baseline_deciles: Vec<f64>,
    /// Arguments that had new values in every call.
    pub varied: Vec<String>,
    /// The reason why a kernel may have returned remembered results: no argument had new values, some arguments were
    /// too large to get new values, or the candidate gave wrong results for new values of some arguments.
    pub unvaried_because: Option<String>,
    /// True if the candidate gave wrong results for new values of some arguments, so that these arguments kept their
    /// captured values.
    #[serde(default)]
    pub narrowed: bool,
    /// Details of the timing on a device; `None` on a CPU.
    pub device: Option<DeviceTiming>,
}

impl EntryProfile {
    /// True if arguments had new values in every call, and no result can be computed from the other arguments alone.
    pub fn is_varied(&self) -> bool {
        !self.varied.is_empty() && self.unvaried_because.is_none()
    }
}

/// Details of an entry's timing on a device, over the blocks of both sides. A value that the device or its driver does
/// not report is `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceTiming {
    /// The median clock of the device's multiprocessors.
    #[serde(with = "crate::nonfinite::option")]
    pub clock_mhz: Option<f64>,
    /// The median power.
    #[serde(with = "crate::nonfinite::option")]
    pub power_watts: Option<f64>,
    /// Everything that limited the device's clock in at least one block: `power`, `heat` or `external`.
    pub limited_by: Option<Vec<String>>,
    /// The number of pairs with a block in which the clock was below 75 % of the median clock of the blocks so far.
    pub throttled_pairs: u32,
    /// The number of bytes that the device read and wrote per second during its fastest copy.
    #[serde(with = "crate::nonfinite::option")]
    pub copy_bytes_per_second: Option<f64>,
    /// The number of blocks whose calls were launched as a CUDA graph.
    pub graph_blocks: u32,
    /// The features that the driver lacks, each with the step that was left out because the feature is missing.
    pub lacks: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheStateReached {
    Warm,
    Cold,
    Rotate,
}

/// The times of one entry. A sample is the mean of a block or, in the `kernelforge` protocol, of one process's calls.
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
    /// 95 % interval over runners, widened if necessary so that it contains `median_time_ms`.
    #[serde(with = "crate::nonfinite")]
    pub ci_low: f64,
    #[serde(with = "crate::nonfinite")]
    pub ci_high: f64,
    pub samples: u32,
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
