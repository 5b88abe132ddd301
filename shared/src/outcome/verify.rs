//! Defines the results of a verification.

use serde::{Deserialize, Serialize};

use super::{DevicePoint, EmulatedKernel, ReadReport};
use crate::ids::EntryId;
use crate::units::Bytes;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    pub entries_run: u32,
    pub entries_passed: u32,
    /// Number of entries with the status `UNSUPPORTED`.
    pub entries_unsupported: u32,
    /// The ids of those entries.
    pub unsupported: Vec<EntryId>,
    #[serde(with = "crate::nonfinite")]
    pub max_absolute_error: f64,
    #[serde(with = "crate::nonfinite")]
    pub max_relative_error: f64,
    /// The entry and output with the largest relative L2 error.
    pub worst: Option<WorstError>,
    /// Total size of the captures of all entries that were run.
    pub bytes_validated: Bytes,
    /// Statistics of how the captures were read, over all entries.
    pub reads: ReadReport,
    /// The memory in use on the device at named points of the sessions. Empty if the candidate was verified on the CPU.
    #[serde(default)]
    pub device: Vec<DevicePoint>,
    /// What the emulated device counted for each kernel. Empty on other devices.
    #[serde(default)]
    pub emulated_kernels: Vec<EmulatedKernel>,
    #[serde(default)]
    pub output: OutputForm,
    /// The longest time, in milliseconds, from requesting a process until the candidate was loaded in that process. For
    /// the first Python process of a worker, this includes the start of the zygote.
    #[serde(default, with = "crate::nonfinite")]
    pub start_ms: f64,
}

/// How the results of a candidate get into the output tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputForm {
    /// The candidate writes them.
    #[default]
    Written,
    /// The candidate returns its own tensors, which are copied within the call.
    Returned,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorstError {
    pub entry: String,
    pub output: String,
    #[serde(with = "crate::nonfinite")]
    pub relative_l2: f64,
}
