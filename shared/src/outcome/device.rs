//! What a device reports about an attempt: memory at named points of its sessions, and counts of the emulated device.

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

/// What a kernel did on the emulated device, over the first call of each entry. These are counts, not times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmulatedKernel {
    pub symbol: String,
    pub launches: u64,
    pub warp_instructions: u64,
    /// Branches that only some of a warp's active lanes took.
    pub divergent_branches: u64,
    /// Accesses to shared memory. Their parts are passes over its banks.
    pub shared: Traffic,
    /// Accesses to global memory. Their parts are sectors of 32 bytes.
    pub global: Traffic,
}

/// Accesses of warps to one kind of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// The number of accesses, each of which has up to 32 lanes.
    pub accesses: u64,
    pub parts: u64,
    /// The parts that would be enough for the same bytes.
    pub fewest_parts: u64,
    /// The place in a launch with the most unnecessary parts, such as `PTX line 12, relu.cu:7`. It is from the first
    /// launch that has such a place, or from a later one with more parts than all launches before it. `None` if no part
    /// is unnecessary.
    pub worst: Option<String>,
}

impl EmulatedKernel {
    /// Adds another launch of the same kernel.
    pub fn absorb(&mut self, other: Self) {
        self.launches += other.launches;
        self.warp_instructions += other.warp_instructions;
        self.divergent_branches += other.divergent_branches;
        self.shared.absorb(other.shared);
        self.global.absorb(other.global);
    }
}

impl Traffic {
    fn absorb(&mut self, other: Self) {
        if self.worst.is_none() || self.parts < other.parts {
            self.worst = other.worst.or_else(|| self.worst.take());
        }
        self.accesses += other.accesses;
        self.parts += other.parts;
        self.fewest_parts += other.fewest_parts;
    }
}
