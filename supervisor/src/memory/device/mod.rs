//! Samples of devices: what each process and the whole device hold, through NVML. No context of ours is ever made.
//!
//! NVML is found when the program runs; a machine without it is no error. What NVML does not say is `None`: machines with
//! unified memory have no totals. Which process of ours a pid stands for is `attribution`'s; `watch` asks in a thread of its own,
//! because a driver in trouble can take seconds to answer.

pub mod attribution;
mod nvml;
pub mod watch;

use opt_shared::units::Bytes;

pub use self::nvml::{LIBRARY_VARIABLE, Nvml};

/// What a device is called. `index` is NVML's, which counts in the order of PCI addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    pub index: u32,
    pub uuid: String,
    pub name: String,
}

/// One look at a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// None where NVML has no totals: host and device share one memory.
    pub totals: Option<DeviceTotals>,
    /// Compute and graphics processes, each once.
    pub processes: Vec<Listed>,
    /// Per cent of the last sample period in which a kernel ran.
    pub utilisation: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTotals {
    pub total: Bytes,
    /// Without what the driver keeps for itself.
    pub used: Bytes,
}

/// A process with memory on the device, as NVML lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    pub pid: u32,
    /// None where NVML lists the process and cannot say how much it holds.
    pub bytes: Option<Bytes>,
}

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("NVML could not be loaded: {why} (it comes with the NVIDIA driver)")]
    Absent { why: String },
    #[error("{operation} failed: NVML says `{why}`")]
    Failed { operation: &'static str, why: String },
    /// It has fallen off the bus, or its driver gave it up. Only a reset or a reboot brings it back.
    #[error(
        "the device is lost: NVML says `{why}` during {operation} (reset it with nvidia-smi -r, or restart the machine)"
    )]
    Lost { operation: &'static str, why: String },
    #[error("there is no device {wanted}: NVML lists {count}")]
    NoSuchDevice { wanted: u32, count: u32 },
}

/// How far two totals may differ and still be one memory: the driver and the kernel keep some of it for themselves.
const SAME_MEMORY: f64 = 0.05;

/// Whether host and device share one memory, as far as totals say: NVML has none on such machines, or the device's is
/// that of the machine.
pub fn shares_host_memory(device: Option<DeviceTotals>, machine: Bytes) -> bool {
    let Some(device) = device else { return true };
    let (larger, smaller) = (device.total.max(machine), device.total.min(machine));
    larger - smaller <= larger.fraction(SAME_MEMORY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_told_by_missing_or_equal_totals() {
        let of = |gib| Some(DeviceTotals { total: Bytes::gib(gib), used: Bytes::ZERO });
        let machine = Bytes::gib(128);
        assert!(shares_host_memory(None, machine));
        assert!(shares_host_memory(of(128), machine));
        assert!(shares_host_memory(of(122), machine), "the driver keeps some for itself");
        assert!(!shares_host_memory(of(80), machine));
        assert!(!shares_host_memory(of(180), machine));
    }
}
