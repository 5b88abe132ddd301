//! The measurements of a profile.

use serde::{Deserialize, Serialize};

use super::ReadReport;
use crate::settings::Priority;
use crate::units::Bytes;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profiled {
    pub entries: Vec<EntryProfile>,
    /// True if the baseline failed and not the candidate.
    pub baseline_failed: bool,
    /// The CPUs that the runner was pinned to.
    pub cpus: Vec<u32>,
    /// Figures on how the captures were read, over all batches.
    pub reads: ReadReport,
    /// Other activities of the run while the candidate was timed. The supervisor adds them, because a worker cannot see
    /// them.
    #[serde(default)]
    pub breaches: Vec<String>,
}

/// A timed entry. Times are per call, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntryProfile {
    pub entry: String,
    /// Number of entries that this one stands for: those of its signature class or, if every entry is timed, 1.
    pub weight: u64,
    pub times: TimeSummary,
    pub baseline_times: Option<TimeSummary>,
    /// Time of the baseline divided by time of the candidate. This is the median over each runner's pairs, combined
    /// over runners, with its 95 % interval. In a screen, it is the median over the pairs of a single runner.
    pub speedup: Option<Estimate>,
    /// Half-width of the interval divided by the estimate.
    #[serde(with = "crate::nonfinite")]
    pub noise: f64,
    /// True if the noise was at most the plan's `max_noise` when timing ended.
    pub converged: bool,
    pub cache_state: CacheStateReached,
    /// The priority that the timed blocks had.
    pub priority: Priority,
    /// The size of the inputs and outputs of one call.
    pub footprint: Bytes,
    /// The footprint divided by the median time.
    #[serde(with = "crate::nonfinite")]
    pub bytes_per_second: f64,
    /// Calls in a block of the last pair.
    pub calls_per_block: u32,
    /// Timed blocks of both sides that do not count. Pairs that took no time do not count. If at least half of a
    /// runner's pairs took no time, none of its pairs count. Pairs with a preempted or throttled block count only if
    /// few others are left, or if the candidate was disturbed much more often than its baseline.
    pub discarded_blocks: u32,
    /// Timed calls whose outputs were compared, of both sides together.
    pub slots_checked: u64,
    /// Time of the optional `<symbol>_plan` call in the last process.
    #[serde(with = "crate::nonfinite::option")]
    pub plan_ms: Option<f64>,
    /// Time of a hand-off in the last pair of processes, in microseconds. It is subtracted from the pair's blocks.
    #[serde(with = "crate::nonfinite")]
    pub handoff_us: f64,
    /// Number of processes of each side whose times count.
    pub runners: u32,
    /// Share of the timed blocks that a side's process and the worker spent waiting for a CPU, on average over the
    /// threads. The figure is that of the side with the larger share. `None` if the operating system does not report
    /// it.
    #[serde(with = "crate::nonfinite::option")]
    pub wait_share: Option<f64>,
    /// Distribution of the time per call over the blocks: minimum, every tenth percentile, maximum.
    pub deciles: Vec<f64>,
    /// The same distribution for the baseline; empty without a baseline.
    pub baseline_deciles: Vec<f64>,
    /// Arguments that had new values in every call.
    pub varied: Vec<String>,
    /// The reason why a kernel may have remembered results: no argument had new values, some were too large for them, or
    /// the candidate was wrong for new values of some.
    pub unvaried_because: Option<String>,
    /// True if the candidate was wrong for new values of some arguments, which therefore kept their values.
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

/// Details of an entry's timing on a device, over the blocks of both sides. Figures that the device or its driver does
/// not report are `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceTiming {
    /// The median clock of the device's multiprocessors.
    #[serde(with = "crate::nonfinite::option")]
    pub clock_mhz: Option<f64>,
    /// The median power.
    #[serde(with = "crate::nonfinite::option")]
    pub power_watts: Option<f64>,
    /// The causes that limited the device's clock in any block: `power`, `heat` or `external`.
    pub limited_by: Option<Vec<String>>,
    /// Pairs in which a block had less than 75 % of the median clock of the blocks so far.
    pub throttled_pairs: u32,
    /// Bytes read and written per second in the device's fastest copy.
    #[serde(with = "crate::nonfinite::option")]
    pub copy_bytes_per_second: Option<f64>,
    /// Blocks whose calls were launched as a graph.
    pub graph_blocks: u32,
    /// The features that the driver lacks, each with the step that was left out because of it.
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
