//! What lay on a device, and in the worker beside it, at named points of the sessions of an attempt.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// A point of a session at which memory is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPoint {
    /// Before anything of a session was placed.
    Start,
    /// An input has been uploaded.
    Uploaded,
    /// All inputs and outputs are there.
    BeforeWorkspace,
    /// A call is over.
    Called,
    /// What a session had for itself was given back.
    Released,
}

/// The most that was seen at one point, over all sessions of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePoint {
    pub point: MemoryPoint,
    /// By our own count: in whole grains of the device.
    pub placed_bytes: Bytes,
    /// Of the whole device, as its driver says, whoever has it.
    pub used_bytes: Bytes,
    /// Resident memory of the worker at that moment.
    pub resident_bytes: Bytes,
}

impl DevicePoint {
    /// Takes in one more look at the same point.
    pub fn absorb(&mut self, other: &Self) {
        self.placed_bytes = self.placed_bytes.max(other.placed_bytes);
        self.used_bytes = self.used_bytes.max(other.used_bytes);
        self.resident_bytes = self.resident_bytes.max(other.resident_bytes);
    }
}
