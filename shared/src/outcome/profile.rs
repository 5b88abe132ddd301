//! What a profile measured.

use serde::{Deserialize, Serialize};

use super::ReadReport;
use crate::units::Bytes;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profiled {
    pub entries: Vec<EntryProfile>,
    /// The end was the baseline's, not the candidate's.
    pub baseline_failed: bool,
    /// CPU numbers the runner was pinned to.
    pub cpus: Vec<u32>,
    /// The page cache before and after each batch.
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
    /// Baseline / candidate: the median of the pairs of each runner, over runners, with its 95 % interval.
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
    /// Blocks thrown away, with their pairs, because they were preempted.
    pub discarded_blocks: u32,
    pub slots_checked: u64,
    /// Time of the optional `<symbol>_plan` call.
    #[serde(with = "crate::nonfinite::option")]
    pub plan_ms: Option<f64>,
    /// Hand-off that was subtracted from every block, in microseconds.
    #[serde(with = "crate::nonfinite")]
    pub handoff_us: f64,
    /// Processes of each side that the figures come from.
    pub runners: u32,
    /// Share of the timed blocks that the worse side spent waiting for a CPU; none where the kernel does not tell.
    #[serde(with = "crate::nonfinite::option")]
    pub wait_share: Option<f64>,
    /// Of the blocks' times of a call: the least, each tenth percentile, the greatest.
    pub deciles: Vec<f64>,
    /// The same of the baseline; empty without one.
    pub baseline_deciles: Vec<f64>,
    /// Arguments that had other values in every call.
    pub varied: Vec<String>,
    /// Why none had.
    pub unvaried_because: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheStateReached {
    Warm,
    Cold,
    Rotate,
}

/// Times of the calls of one entry; each sample is one block's mean.
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
    /// 95 % interval over runners.
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
