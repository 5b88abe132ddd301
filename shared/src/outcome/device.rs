//! The memory of a device and of its worker at named points of an attempt's sessions.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// A point of a session at which memory is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPoint {
    /// Before the session allocates anything.
    Start,
    /// An input has been uploaded.
    Uploaded,
    /// All inputs and outputs are on the device.
    BeforeWorkspace,
    /// A call is over.
    Called,
    /// The session has released its own memory.
    Released,
}

/// The largest figures at one point, over all sessions of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePoint {
    pub point: MemoryPoint,
    /// The bytes that we have allocated, in whole grains of the device.
    pub placed_bytes: Bytes,
    /// The used bytes of the whole device by all processes, as its driver reports them.
    pub used_bytes: Bytes,
    /// The worker's resident memory at that moment.
    pub resident_bytes: Bytes,
}

impl DevicePoint {
    /// Merges another sample of the same point.
    pub fn absorb(&mut self, other: &Self) {
        self.placed_bytes = self.placed_bytes.max(other.placed_bytes);
        self.used_bytes = self.used_bytes.max(other.used_bytes);
        self.resident_bytes = self.resident_bytes.max(other.resident_bytes);
    }
}
