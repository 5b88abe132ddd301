//! Defines what a report says about the device of an attempt: its memory at named points of the sessions, and what the
//! emulated device counted.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// A point in a session at which the memory in use is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPoint {
    /// Before the session allocates anything.
    Start,
    /// After an input has been uploaded.
    Uploaded,
    /// When all inputs and outputs are on the device, before workspaces are allocated.
    BeforeWorkspace,
    /// After a call.
    Called,
    /// After the session has released its own memory.
    Released,
}

/// The largest values that were measured at one point, over all sessions of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePoint {
    pub point: MemoryPoint,
    /// The bytes that we have allocated, rounded up to the device's allocation unit.
    pub placed_bytes: Bytes,
    /// The bytes that all processes together use on the whole device, as its driver reports them.
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

/// What the emulated device counted while it ran a kernel, summed over the first call of each entry. These are counts,
/// not times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmulatedKernel {
    pub symbol: String,
    pub launches: u64,
    pub warp_instructions: u64,
    /// The number of branches that only some of a warp's active lanes took.
    pub divergent_branches: u64,
    /// The accesses to shared memory. Each pass over the memory's banks is a part of an access.
    pub shared: Traffic,
    /// The accesses to global memory. Each sector of 32 bytes that is accessed is a part of an access.
    pub global: Traffic,
}

/// The accesses that warps made to one kind of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// The number of accesses. In each of them, up to 32 lanes take part.
    pub accesses: u64,
    pub parts: u64,
    /// The number of parts that would have sufficed to access the same number of bytes.
    pub fewest_parts: u64,
    /// The instruction with the largest number of unnecessary parts, such as `PTX line 12, relu.cu:7`. If there were
    /// several launches, it is taken from the launch with the most unnecessary parts. `None` if no part was
    /// unnecessary.
    pub worst: Option<String>,
    /// The number of unnecessary parts of all instructions in that launch, if there was more than one launch.
    #[serde(skip)]
    pub worst_launch: Option<u64>,
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
        let unnecessary = |it: &Self| it.worst_launch.unwrap_or(it.parts.saturating_sub(it.fewest_parts));
        let (so_far, more) = (unnecessary(self), unnecessary(&other));
        if other.worst.is_some() && (self.worst.is_none() || so_far < more) {
            self.worst = other.worst;
        }
        self.worst_launch = Some(so_far.max(more));
        self.accesses += other.accesses;
        self.parts += other.parts;
        self.fewest_parts += other.fewest_parts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_place_is_from_the_launch_with_the_most_unnecessary_parts() {
        let launch = |parts, fewest_parts, worst: Option<&str>| Traffic {
            accesses: 1,
            parts,
            fewest_parts,
            worst: worst.map(str::to_owned),
            worst_launch: None,
        };
        let mut sum = launch(20, 10, Some("first"));
        // Each launch is compared with the worst launch so far, and not with the sum over all launches.
        for (parts, fewest, place, worst) in [
            (15, 14, Some("small"), "first"),
            (40, 25, Some("large"), "large"),
            (900, 900, None, "large"),
            (26, 13, Some("late"), "large"),
        ] {
            sum.absorb(launch(parts, fewest, place));
            assert_eq!(sum.worst.as_deref(), Some(worst));
        }
        assert_eq!((sum.accesses, sum.parts, sum.fewest_parts), (5, 1001, 962));
    }
}
