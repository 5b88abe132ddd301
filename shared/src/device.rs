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

/// The kind of a device, without the number that identifies one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    Cpu,
    Cuda,
    Emulated,
}

/// The compute capability of a card, which determines the machine code that it can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ComputeCapability {
    pub major: u8,
    pub minor: u8,
}

const CUDA_PREFIX: &str = "cuda:";
/// The first major version of the capability that has instructions, such as `wgmma`, which are available only to code
/// compiled for exactly one capability.
const FIRST_WITH_OWN_INSTRUCTIONS: u8 = 9;

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

    /// The reason why kernels cannot be timed on this kind of device; `None` if they can be timed.
    pub const fn not_timed(self) -> Option<&'static str> {
        match self {
            Self::Cpu | Self::Cuda => None,
            Self::Emulated => Some("the emulated device does not model time"),
        }
    }
}

/// The properties of a card that host code uses to choose its launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardShape {
    pub capability: ComputeCapability,
    pub multiprocessors: u32,
    /// The largest shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

impl ComputeCapability {
    /// Parses a capability from a version such as `9.0`.
    pub fn from_name(name: &str) -> Option<Self> {
        let (major, minor) = name.split_once('.')?;
        let found = Self { major: major.parse().ok()?, minor: minor.parse().ok()? };
        Some(found).filter(|found| found.to_string() == name)
    }

    /// The name by which compilers know the machine code of this capability with all of its instructions, such as
    /// `sm_80` or `sm_90a`.
    pub fn machine_code(self) -> String {
        let own = if self.major >= FIRST_WITH_OWN_INSTRUCTIONS { "a" } else { "" };
        format!("sm_{}{}{own}", self.major, self.minor)
    }

    /// The number that compilers use for this capability, such as 90.
    pub fn number(self) -> u32 {
        u32::from(self.major) * 10 + u32::from(self.minor)
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compute_capabilities_parse_and_name_their_machine_code() {
        for (name, code, number) in
            [("7.5", "sm_75", 75), ("8.0", "sm_80", 80), ("9.0", "sm_90a", 90), ("12.1", "sm_121a", 121)]
        {
            let found = ComputeCapability::from_name(name).expect("a capability");
            assert_eq!(
                (found.to_string(), found.machine_code(), found.number()),
                (name.into(), code.into(), number)
            );
        }
        for name in ["", "9", "9.", ".0", "9.00", "9.0a", "-1.0", "300.0"] {
            assert_eq!(ComputeCapability::from_name(name), None, "{name}");
        }
    }

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
