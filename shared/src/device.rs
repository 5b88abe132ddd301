//! Where kernels run: the processor, a CUDA device, or one that is emulated.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a run's kernels run on. One for a whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    #[default]
    Cpu,
    /// A card, by the number that the driver gives it.
    Cuda(u32),
    /// PTX, carried out on the CPU with every access checked. It is never timed.
    Emulated,
}

/// The same without the number: what a result says of where its figures come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    Cpu,
    Cuda,
    Emulated,
}

/// How a card is named, with its number behind it.
const CUDA: &str = "cuda:";

impl Device {
    pub const fn kind(self) -> DeviceKind {
        match self {
            Self::Cpu => DeviceKind::Cpu,
            Self::Cuda(_) => DeviceKind::Cuda,
            Self::Emulated => DeviceKind::Emulated,
        }
    }

    /// The device of a name: `cpu`, `cuda:0`, `emulated`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "cpu" => Some(Self::Cpu),
            "emulated" => Some(Self::Emulated),
            card => {
                let number = card.strip_prefix(CUDA)?.parse().ok()?;
                // One name for each: not `cuda:+1`, not `cuda:007`.
                Some(Self::Cuda(number)).filter(|device| device.to_string() == card)
            }
        }
    }

    /// Whether it runs kernels that have no host code, and nothing else.
    pub const fn runs_device_code(self) -> bool {
        !matches!(self, Self::Cpu)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "{CUDA}{number}"),
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

    /// Why nothing is timed on it, where nothing can be.
    pub const fn not_timed(self) -> Option<&'static str> {
        match self {
            Self::Cpu | Self::Cuda => None,
            Self::Emulated => Some("the emulated device has no time of its own"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_and_its_name_are_one() {
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
