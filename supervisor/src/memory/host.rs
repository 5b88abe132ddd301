//! Describes the machine for the results: its processor, cores, memory, and version of Linux.

use opt_shared::units::Bytes;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// A description of the machine. A field is `None` if it could not be detected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub cpu: Option<String>,
    /// The number of CPUs that this process can use.
    pub cores: Option<u32>,
    pub ram: Option<Bytes>,
    /// The version of Linux.
    pub kernel: Option<String>,
}

impl Host {
    pub fn detect() -> Self {
        let wanted = RefreshKind::nothing()
            .with_cpu(CpuRefreshKind::nothing())
            .with_memory(MemoryRefreshKind::nothing().with_ram());
        let system = System::new_with_specifics(wanted).ok();
        let non_empty = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        Self {
            cpu: system.as_ref().and_then(|system| non_empty(system.cpus().first()?.brand())),
            cores: std::thread::available_parallelism()
                .ok()
                .and_then(|cores| u32::try_from(cores.get()).ok()),
            ram: system
                .as_ref()
                .map(|system| Bytes::new(system.total_memory()))
                .filter(|&ram| ram != Bytes::ZERO),
            kernel: System::kernel_long_version().ok().and_then(|kernel| non_empty(&kernel)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detect_finds_cores_memory_and_the_version_of_linux() {
        let host = Host::detect();
        assert!(host.cores.is_some_and(|cores| cores > 0));
        assert!(host.ram.is_some_and(|ram| ram > Bytes::mib(64)));
        assert!(host.kernel.is_some());
    }
}
