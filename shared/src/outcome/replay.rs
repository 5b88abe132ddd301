//! The measurements of a replay.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// The body of a replay's report. The result is present only if every step agreed with the schedule and with its
/// capture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Replayed {
    pub result: Option<Box<ReplayResult>>,
}

/// The measurements of a whole replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayResult {
    pub budget_bytes: Bytes,
    /// The smallest possible budget.
    pub floor_bytes: Bytes,
    /// Size of all tensors, each in whole units of the pool (`formula::pool_grain`). This is the pool of a replay that
    /// keeps everything.
    pub all_resident_bytes: Bytes,
    /// The part of the pool that pinned constants take.
    pub pinned_bytes: Bytes,
    pub peak_pool_bytes: Bytes,
    /// Bytes copied into the pool.
    pub bytes_moved: Bytes,
    /// Bytes of all distinct tensors, which a replay that keeps everything would copy.
    pub unique_bytes: Bytes,
    pub constants: u64,
    pub uses: u64,
    /// The number of uses whose constant was already in the pool or being loaded.
    pub hits: u64,
    /// The number of uses for which no load had been started.
    pub misses: u64,
    pub evictions: u64,
    #[serde(with = "crate::nonfinite")]
    pub total_ms: f64,
    /// The part of `total_ms` spent waiting for tensors.
    #[serde(with = "crate::nonfinite")]
    pub stall_ms: f64,
    /// The rest of `total_ms`. It approximates the time with all tensors already in the pool.
    #[serde(with = "crate::nonfinite")]
    pub compute_ms: f64,
    /// Time during which the copy queue was busy.
    #[serde(with = "crate::nonfinite")]
    pub copy_ms: f64,
    /// BLAKE3 of the recording. Two recordings have the same one if their catalogs and schedules are equal.
    pub recording_digest: String,
    /// BLAKE3 of all outputs in order. Two replays have the same one if all bytes are equal.
    pub outputs_digest: String,
    /// The first steps, at most `MAX_REPORTED_STEPS`. The figures above include all steps.
    pub steps: Vec<ReplayStep>,
    pub step_count: u64,
}

/// Largest number of steps that are reported individually.
pub const MAX_REPORTED_STEPS: usize = 1000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayStep {
    pub job: String,
    pub entry: String,
    pub candidate: String,
    #[serde(with = "crate::nonfinite")]
    pub ms: f64,
    #[serde(with = "crate::nonfinite")]
    pub stall_ms: f64,
    /// The time of the kernel's call with the hand-off, but without the rest of the step.
    #[serde(with = "crate::nonfinite")]
    pub call_ms: f64,
}
