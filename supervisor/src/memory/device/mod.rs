//! Samples devices through NVML: the memory of each process and of the whole device. This never creates a CUDA context.
//!
//! NVML is loaded at run time, and its absence is not an error. Figures that NVML does not report are `None`. For
//! example, NVML reports no totals on machines with unified memory. `watch` samples in its own thread, because a driver
//! with a problem can take seconds to answer.

pub mod attribution;
mod nvml;
pub mod watch;

use opt_shared::units::Bytes;

pub use self::nvml::{LIBRARY_VARIABLE, Nvml};

/// A device as NVML lists it. `index` is NVML's number, in the order of PCI addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    pub index: u32,
    pub uuid: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The memory of the device. `None` if NVML reports no totals, because host and device share one memory.
    pub totals: Option<DeviceTotals>,
    /// The compute and graphics processes. Each process is listed once.
    pub processes: Vec<Listed>,
    /// The share of the last sample period in which a kernel ran, in per cent.
    pub utilisation: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTotals {
    pub total: Bytes,
    /// The used memory, without the driver's own reserve.
    pub used: Bytes,
}

/// A process with memory on the device, as NVML lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    pub pid: u32,
    /// The memory of the process. `None` if NVML lists the process without a figure.
    pub bytes: Option<Bytes>,
}

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("NVML could not be loaded: {why} (it comes with the NVIDIA driver)")]
    Absent { why: String },
    #[error("{operation} failed: NVML says `{why}`")]
    Failed { operation: &'static str, why: String },
    /// The device is lost. Only a reset or a reboot restores it.
    #[error(
        "the device is lost: NVML says `{why}` during {operation} (reset it with nvidia-smi -r, or restart the machine)"
    )]
    Lost { operation: &'static str, why: String },
    #[error("there is no device {wanted}: NVML lists {count} devices, numbered from 0")]
    NoSuchDevice { wanted: u32, count: u32 },
    #[error(
        "NVML does not list the card {uuid} among its {count} devices, so its memory cannot be watched (instances of a \
         partitioned card are not supported)"
    )]
    NotListed { uuid: String, count: usize },
}

/// Two totals count as equal if they differ by at most this share of the larger one. They may differ, because the
/// driver and Linux each reserve some memory.
const SAME_MEMORY: f64 = 0.05;

/// Guesses whether the device shares the host's memory. It probably does if NVML reports no totals, or if the device
/// has about as much memory as the machine. Only the card's driver can tell for certain.
pub fn shares_host_memory(device: Option<DeviceTotals>, machine: Bytes) -> bool {
    let Some(device) = device else { return true };
    let (larger, smaller) = (device.total.max(machine), device.total.min(machine));
    larger - smaller <= larger.fraction(SAME_MEMORY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_inferred_from_missing_or_equal_totals() {
        let totals = |gib| Some(DeviceTotals { total: Bytes::gib(gib), used: Bytes::ZERO });
        let machine = Bytes::gib(128);
        assert!(shares_host_memory(None, machine));
        assert!(shares_host_memory(totals(128), machine));
        assert!(shares_host_memory(totals(122), machine), "the driver reserves some");
        assert!(!shares_host_memory(totals(80), machine));
        assert!(!shares_host_memory(totals(180), machine));
    }
}
