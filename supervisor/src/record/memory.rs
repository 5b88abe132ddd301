//! Defines the record of a run's memory: its totals, and one phase for each stage that a worker ran.

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

/// The figures of the whole process tree and of the machine over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryTotals {
    pub host_ceiling_bytes: Option<Bytes>,
    /// The highest prediction among the phases that have ended, plus the supervisor's reservation. The prediction
    /// excludes what candidates and compilers may owe in addition.
    pub predicted_peak_owed_bytes: Option<Bytes>,
    pub peak_owed_bytes: Option<Bytes>,
    pub peak_reclaimable_bytes: Option<Bytes>,
    pub min_available_bytes: Option<Bytes>,
    pub swap_peak_bytes: Option<Bytes>,
    /// The swap traffic of the whole machine, including other programs, since the run was started or resumed. If the
    /// run has several parts, this is the highest of their figures.
    pub machine_swapped_in_bytes: Option<Bytes>,
    pub machine_swapped_out_bytes: Option<Bytes>,
    /// The limit on the device memory of all processes of the run.
    #[serde(default)]
    pub device_ceiling_bytes: Option<Bytes>,
    /// The observed peak of the device memory of all processes of the run.
    #[serde(default)]
    pub device_peak_bytes: Option<Bytes>,
    /// How closely the samples followed the memory of runners and compilers.
    pub sampling: Option<Sampling>,
}

/// Figures that show how far a runner or compiler can exceed its limit if only sampling enforces it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampling {
    /// The highest rate at which a runner or compiler filled memory, or the assumed initial rate if no observed rate
    /// was higher.
    pub worst_fill_bytes_per_second: Bytes,
    /// The longest delay of a sample.
    pub worst_delay_us: u64,
    /// The maximum amount by which a runner or compiler can have exceeded its limit before a sample showed this.
    pub overshoot_bound_bytes: Bytes,
    /// The longest time for which the main loop was busy between two waits for events. The time in which the loop
    /// waited for a CPU is not included.
    #[serde(default)]
    pub worst_turn_us: Option<u64>,
}

impl Sampling {
    fn combined_with(self, later: Self) -> Self {
        Self {
            worst_fill_bytes_per_second: self
                .worst_fill_bytes_per_second
                .max(later.worst_fill_bytes_per_second),
            worst_delay_us: self.worst_delay_us.max(later.worst_delay_us),
            overshoot_bound_bytes: self.overshoot_bound_bytes.max(later.overshoot_bound_bytes),
            worst_turn_us: self.worst_turn_us.max(later.worst_turn_us),
        }
    }
}

impl MemoryTotals {
    /// Combines these totals with later ones. The two may be from two samples, or from two parts of a resumed run. The
    /// result has the higher peaks and swap traffic, the lower available memory, the later ceilings, and the worse
    /// sampling.
    #[must_use]
    pub fn combined_with(self, later: Self) -> Self {
        let min_available = match (self.min_available_bytes, later.min_available_bytes) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Self {
            host_ceiling_bytes: later.host_ceiling_bytes.or(self.host_ceiling_bytes),
            predicted_peak_owed_bytes: self.predicted_peak_owed_bytes.max(later.predicted_peak_owed_bytes),
            peak_owed_bytes: self.peak_owed_bytes.max(later.peak_owed_bytes),
            peak_reclaimable_bytes: self.peak_reclaimable_bytes.max(later.peak_reclaimable_bytes),
            min_available_bytes: min_available,
            swap_peak_bytes: self.swap_peak_bytes.max(later.swap_peak_bytes),
            machine_swapped_in_bytes: self.machine_swapped_in_bytes.max(later.machine_swapped_in_bytes),
            machine_swapped_out_bytes: self.machine_swapped_out_bytes.max(later.machine_swapped_out_bytes),
            device_ceiling_bytes: later.device_ceiling_bytes.or(self.device_ceiling_bytes),
            device_peak_bytes: self.device_peak_bytes.max(later.device_peak_bytes),
            sampling: match (self.sampling, later.sampling) {
                (Some(one), Some(other)) => Some(one.combined_with(other)),
                (one, other) => one.or(other),
            },
        }
    }
}

/// One stage that one worker ran, with its memory and the times at which it began and ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseRecord {
    pub stage: Stage,
    /// The name of the job or of the replay.
    pub job: String,
    /// `None` for a replay, in which several candidates are called.
    pub candidate: Option<String>,
    pub worker: WorkerId,
    /// The memory that the phase was predicted to owe without candidates and compilers. The phase's lease reserved
    /// more.
    pub predicted_bytes: Option<Bytes>,
    pub peak_owed_bytes: Option<Bytes>,
    pub peak_reclaimable_bytes: Option<Bytes>,
    /// The device memory that the phase's lease reserved. `None` if the phase needs no device.
    #[serde(default)]
    pub device_predicted_bytes: Option<Bytes>,
    /// The largest amount of device memory that was observed. `None` if the phase used none.
    #[serde(default)]
    pub device_peak_bytes: Option<Bytes>,
    /// The change of the whole process tree's swapped memory during this phase. It is negative if less memory is
    /// swapped out at the end than at the start.
    pub swap_delta_bytes: Option<i64>,
    /// The time, in microseconds, from the end of the run's previous phase until the lease for this phase was sent.
    /// `None` for the first phase, and for a phase that began while another phase was running.
    pub switch_us: Option<u64>,
    pub started: UtcTime,
    pub ended: Option<UtcTime>,
}
