//! The machine in a run's document, with the old name of a field that was renamed.

use opt_shared::message::Protection;
use opt_shared::units::Bytes;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "HostFields", into = "HostFields")]
pub struct HostRecord {
    pub cpu: Option<String>,
    pub cores: Option<u32>,
    pub ram_bytes: Option<Bytes>,
    pub kernel: Option<String>,
    /// What this machine can enforce on runners, and what it cannot.
    pub protections: Vec<Protection>,
}

/// A `HostRecord` as it is written. This version writes the protections under their old name, too.
#[derive(Serialize, Deserialize)]
struct HostFields {
    cpu: Option<String>,
    cores: Option<u32>,
    ram_bytes: Option<Bytes>,
    kernel: Option<String>,
    #[serde(default)]
    protections: Vec<Protection>,
    /// What `protections` was called before.
    #[serde(default)]
    rungs: Vec<Protection>,
}

impl From<HostFields> for HostRecord {
    fn from(fields: HostFields) -> Self {
        let HostFields { cpu, cores, ram_bytes, kernel, protections, rungs } = fields;
        let protections = if protections.is_empty() { rungs } else { protections };
        Self { cpu, cores, ram_bytes, kernel, protections }
    }
}

impl From<HostRecord> for HostFields {
    fn from(host: HostRecord) -> Self {
        let HostRecord { cpu, cores, ram_bytes, kernel, protections } = host;
        Self { cpu, cores, ram_bytes, kernel, rungs: protections.clone(), protections }
    }
}
