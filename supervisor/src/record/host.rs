//! Defines the record of the machine, in which a renamed field is also read and written under its old name.

use opt_shared::message::Protection;
use opt_shared::units::Bytes;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "HostFields", into = "HostFields")]
pub struct HostRecord {
    pub cpu: Option<String>,
    pub cores: Option<u32>,
    pub ram_bytes: Option<Bytes>,
    /// The name and version of the kernel, such as `Linux 6.12`.
    pub kernel: Option<String>,
    /// The protections that this machine can, or cannot, enforce on a sandbox.
    pub protections: Vec<Protection>,
    /// The conditions that disturb time measurements. `None` for runs of older versions, which did not record them.
    pub timing: Option<TimingConditions>,
}

/// Conditions that disturb time measurements: properties of the machine, and events since the run began. `None` means
/// unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimingConditions {
    pub governors: Vec<String>,
    pub smt: Option<bool>,
    #[serde(with = "opt_shared::nonfinite::option")]
    pub load_before: Option<f64>,
    #[serde(with = "opt_shared::nonfinite::option")]
    pub load_after: Option<f64>,
    #[serde(with = "opt_shared::nonfinite::option")]
    pub steal_share: Option<f64>,
    pub throttled: Option<u64>,
}

/// The serialised form of a `HostRecord`, which contains the protections under both their new and their old name.
#[derive(Serialize, Deserialize)]
struct HostFields {
    cpu: Option<String>,
    cores: Option<u32>,
    ram_bytes: Option<Bytes>,
    kernel: Option<String>,
    #[serde(default)]
    protections: Vec<Protection>,
    /// The old name of `protections`.
    #[serde(default)]
    rungs: Vec<Protection>,
    #[serde(default)]
    timing: Option<TimingConditions>,
}

impl From<HostFields> for HostRecord {
    fn from(fields: HostFields) -> Self {
        let HostFields { cpu, cores, ram_bytes, kernel, protections, rungs, timing } = fields;
        let protections = if protections.is_empty() { rungs } else { protections };
        Self { cpu, cores, ram_bytes, kernel, protections, timing }
    }
}

impl From<HostRecord> for HostFields {
    fn from(host: HostRecord) -> Self {
        let HostRecord { cpu, cores, ram_bytes, kernel, protections, timing } = host;
        Self { cpu, cores, ram_bytes, kernel, rungs: protections.clone(), protections, timing }
    }
}
