//! Memory in the document: totals of the run, and each worker's time in a stage.

use opt_shared::ids::WorkerId;
use opt_shared::units::Bytes;
use serde::{Deserialize, Serialize};

use super::{Stage, UtcTime};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryRecord<Phases = Vec<PhaseRecord>> {
    #[serde(flatten)]
    pub totals: MemoryTotals,
    pub phases: Phases,
}

/// Memory of the whole process tree over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryTotals {
    pub host_ceiling_bytes: Option<Bytes>,
    pub predicted_peak_owed_bytes: Option<Bytes>,
    pub peak_owed_bytes: Option<Bytes>,
    pub peak_reclaimable_bytes: Option<Bytes>,
    pub min_available_bytes: Option<Bytes>,
    pub swap_peak_bytes: Option<Bytes>,
    /// What the whole machine swapped since the run was started or resumed, whoever's pages they were: context.
    pub machine_swapped_in_bytes: Option<Bytes>,
    pub machine_swapped_out_bytes: Option<Bytes>,
    /// Of a run on a card: what its processes may hold there together, and the most that they were seen to hold.
    #[serde(default)]
    pub device_ceiling_bytes: Option<Bytes>,
    #[serde(default)]
    pub device_peak_bytes: Option<Bytes>,
    /// How closely runners were watched.
    pub sampling: Option<Sampling>,
}

/// What the watching of memory guarantees where no limit of the kernel holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampling {
    /// The fastest that any runner was seen to fill memory, or what is assumed before.
    pub worst_fill_bytes_per_second: Bytes,
    /// The longest that a sample came after it was due.
    pub worst_delay_us: u64,
    /// How far a runner can have been above its limit before it was seen.
    pub overshoot_bound_bytes: Bytes,
}

impl Sampling {
    fn and_then(self, later: Self) -> Self {
        Self {
            worst_fill_bytes_per_second: self
                .worst_fill_bytes_per_second
                .max(later.worst_fill_bytes_per_second),
            worst_delay_us: self.worst_delay_us.max(later.worst_delay_us),
            overshoot_bound_bytes: self.overshoot_bound_bytes.max(later.overshoot_bound_bytes),
        }
    }
}

impl MemoryTotals {
    /// Joins this time and a later one of a resumed run: the higher peaks, the least available memory, the later ceiling.
    #[must_use]
    pub fn and_then(self, later: Self) -> Self {
        let least = match (self.min_available_bytes, later.min_available_bytes) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Self {
            host_ceiling_bytes: later.host_ceiling_bytes.or(self.host_ceiling_bytes),
            predicted_peak_owed_bytes: self.predicted_peak_owed_bytes.max(later.predicted_peak_owed_bytes),
            peak_owed_bytes: self.peak_owed_bytes.max(later.peak_owed_bytes),
            peak_reclaimable_bytes: self.peak_reclaimable_bytes.max(later.peak_reclaimable_bytes),
            min_available_bytes: least,
            swap_peak_bytes: self.swap_peak_bytes.max(later.swap_peak_bytes),
            machine_swapped_in_bytes: self.machine_swapped_in_bytes.max(later.machine_swapped_in_bytes),
            machine_swapped_out_bytes: self.machine_swapped_out_bytes.max(later.machine_swapped_out_bytes),
            device_ceiling_bytes: later.device_ceiling_bytes.or(self.device_ceiling_bytes),
            device_peak_bytes: self.device_peak_bytes.max(later.device_peak_bytes),
            sampling: match (self.sampling, later.sampling) {
                (Some(one), Some(other)) => Some(one.and_then(other)),
                (one, other) => one.or(other),
            },
        }
    }
}

/// One worker's time in a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseRecord {
    pub stage: Stage,
    /// For a replay, its own name.
    pub job: String,
    /// None for a replay, whose calls are several candidates'.
    pub candidate: Option<String>,
    pub worker: WorkerId,
    pub predicted_bytes: Option<Bytes>,
    pub peak_owed_bytes: Option<Bytes>,
    pub peak_reclaimable_bytes: Option<Bytes>,
    /// What its lease reserved on the device, and the most that was held there. None where it needed no card, or was not
    /// seen there.
    #[serde(default)]
    pub device_predicted_bytes: Option<Bytes>,
    #[serde(default)]
    pub device_peak_bytes: Option<Bytes>,
    /// Change of swapped bytes of the whole tree over this time; less in swap is negative.
    pub swap_delta_bytes: Option<i64>,
    /// Microseconds in which nothing was at work, from the end of the phase before it until its lease was sent. None for
    /// the first, and where something ran beside its start.
    pub switch_us: Option<u64>,
    pub started: UtcTime,
    pub ended: Option<UtcTime>,
}
