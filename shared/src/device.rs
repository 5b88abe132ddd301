//! The devices on which kernels run: the CPU, a CUDA device, or an emulated one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The device on which all kernels of a run are executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    #[default]
    Cpu,
    /// A card, by its number in the CUDA driver, which depends on `CUDA_VISIBLE_DEVICES`.
    Cuda(u32),
    /// An emulator that executes PTX on the CPU and checks every access. Kernels on it are never timed.
    Emulated,
}

/// A device without its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    Cpu,
    Cuda,
    Emulated,
}

const CUDA_PREFIX: &str = "cuda:";

impl Device {
    pub const fn kind(self) -> DeviceKind {
        match self {
            Self::Cpu => DeviceKind::Cpu,
            Self::Cuda(_) => DeviceKind::Cuda,
            Self::Emulated => DeviceKind::Emulated,
        }
    }

    /// Parses a device's name: `cpu`, `cuda:0` or `emulated`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "cpu" => Some(Self::Cpu),
            "emulated" => Some(Self::Emulated),
            card => {
                let number = card.strip_prefix(CUDA_PREFIX)?.parse().ok()?;
                // Each card has only one name: `cuda:+1` and `cuda:007` are refused.
                Some(Self::Cuda(number)).filter(|device| device.to_string() == card)
            }
        }
    }

    /// True if the device can run kernels without host code.
    pub const fn runs_device_code(self) -> bool {
        !matches!(self, Self::Cpu)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "{CUDA_PREFIX}{number}"),
            Self::Emulated => f.write_str("emulated"),
        }
    }
}

impl DeviceKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Emulated => "emulated",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Cpu, Self::Cuda, Self::Emulated].into_iter().find(|kind| kind.name() == name)
    }

    /// The reason why kernels cannot be timed on such a device; `None` if they can.
    pub const fn not_timed(self) -> Option<&'static str> {
        match self {
            Self::Cpu | Self::Cuda => None,
            Self::Emulated => Some("the emulated device does not model time"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_parse_back() {
        for device in [Device::Cpu, Device::Cuda(0), Device::Cuda(17), Device::Emulated] {
            assert_eq!(Device::from_name(&device.to_string()), Some(device));
            assert_eq!(DeviceKind::from_name(device.kind().name()), Some(device.kind()));
        }
        for name in
            ["", "cuda", "cuda:", "cuda:-1", "cuda:+1", "cuda:01", "cuda:4294967296", "gpu", "CPU", "auto"]
        {
            assert_eq!(Device::from_name(name), None, "{name}");
        }
    }
}
