//! The results of a verification.

use serde::{Deserialize, Serialize};

use super::{DevicePoint, EmulatedKernel, ReadReport};
use crate::ids::EntryId;
use crate::units::Bytes;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    pub entries_run: u32,
    pub entries_passed: u32,
    /// Number of entries that ended as `UNSUPPORTED`.
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
    /// Figures on how the captures were read, over all entries.
    pub reads: ReadReport,
    /// Memory of the device at named points. Empty if the candidate was verified on the CPU.
    #[serde(default)]
    pub device: Vec<DevicePoint>,
    /// The counts of each kernel on the emulated device. Empty on other devices.
    #[serde(default)]
    pub emulated_kernels: Vec<EmulatedKernel>,
    #[serde(default)]
    pub output: OutputForm,
    /// The longest time from the request for a process until the candidate was loaded in it, in milliseconds. The first
    /// Python process of a worker also waits for the zygote.
    #[serde(default, with = "crate::nonfinite")]
    pub start_ms: f64,
}

/// The way in which a candidate's results get into its outputs.
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
