//! Holds the memory figures of a run that `top` shows.

use opt_shared::units::Bytes;
use serde_json::Value;

use super::answer::bytes;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Memory {
    pub ceiling: Option<Bytes>,
    pub floor: Option<Bytes>,
    pub charged: Option<Bytes>,
    pub owed: Option<Bytes>,
    /// The highest value that `owed` has had.
    pub peak: Option<Bytes>,
    pub reclaimable: Option<Bytes>,
    pub available: Option<Bytes>,
    pub device: Option<DeviceMemory>,
}

/// The memory that the run's processes hold on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DeviceMemory {
    pub held: Bytes,
    /// The highest value that `held` has had.
    pub peak: Option<Bytes>,
    pub ceiling: Bytes,
}

impl Memory {
    /// Reads the figures from the answer to `status`.
    pub(super) fn of(answer: &Value) -> Self {
        let (memory, device) = (&answer["memory"], &answer["device"]);
        let held = bytes(&device["device_owed_bytes"]).zip(bytes(&device["device_ceiling_bytes"]));
        Self {
            ceiling: bytes(&memory["host_ceiling_bytes"]),
            floor: bytes(&memory["host_floor_bytes"]),
            charged: bytes(&memory["charged_bytes"]),
            owed: bytes(&memory["owed_bytes"]),
            peak: bytes(&memory["peak_owed_bytes"]),
            reclaimable: bytes(&memory["reclaimable_bytes"]),
            available: bytes(&memory["available_bytes"]),
            device: held.map(|(held, ceiling)| DeviceMemory {
                held,
                peak: bytes(&device["device_peak_bytes"]),
                ceiling,
            }),
        }
    }
}
