//! What a replay measured.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// There is a result only where every step agreed with the schedule and with its capture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Replayed {
    pub result: Option<Box<ReplayResult>>,
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
    /// The part of it that was spent waiting for tensors.
    #[serde(with = "crate::nonfinite")]
    pub stall_ms: f64,
    /// The rest of it: what a replay that keeps everything would take once all is there.
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
