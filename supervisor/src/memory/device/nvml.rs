//! Makes all calls to NVML, NVIDIA's library for monitoring devices, and converts its answers.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use opt_shared::units::Bytes;

use super::{DeviceError, DeviceIdentity, DeviceTotals, Listed, Reading};

/// The environment variable that names a library to load instead of the driver's `libnvidia-ml.so.1`.
pub const LIBRARY_VARIABLE: &str = "OPT_NVML_LIBRARY";
/// The name of the driver's library. It ends in a version, because the plain `libnvidia-ml.so` exists only if
/// development files are installed.
const LIBRARY: &str = "libnvidia-ml.so.1";

pub struct Nvml {
    inner: nvml_wrapper::Nvml,
}

impl Nvml {
    pub fn open() -> Result<Self, DeviceError> {
        let path = std::env::var_os(LIBRARY_VARIABLE).unwrap_or_else(|| OsString::from(LIBRARY));
        Self::open_library(&path)
    }

    pub(crate) fn open_library(path: &OsStr) -> Result<Self, DeviceError> {
        let inner = nvml_wrapper::Nvml::builder().lib_path(path).init().map_err(|error| {
            DeviceError::Absent { why: format!("{}: {}", path.display(), with_causes(&error)) }
        })?;
        Ok(Self { inner })
    }

    pub fn devices(&self) -> Result<Vec<DeviceIdentity>, DeviceError> {
        let count = self.inner.device_count().map_err(failed("counting devices"))?;
        (0..count).map(|index| self.identity(index)).collect()
    }

    /// Finds a card by its UUID. NVML's number cannot identify a card, because a CUDA driver may number the cards in
    /// another order, and `CUDA_VISIBLE_DEVICES` hides cards from that driver.
    pub fn device_with_uuid(&self, uuid: &str) -> Result<DeviceIdentity, DeviceError> {
        let devices = self.devices()?;
        let count = devices.len();
        let found = devices.into_iter().find(|device| device.uuid.eq_ignore_ascii_case(uuid));
        found.ok_or_else(|| DeviceError::NotListed { uuid: uuid.to_owned(), count })
    }

    pub fn identity(&self, index: u32) -> Result<DeviceIdentity, DeviceError> {
        let device = self.device(index)?;
        Ok(DeviceIdentity {
            index,
            uuid: device.uuid().map_err(failed("asking for the device's UUID"))?,
            name: device.name().map_err(failed("asking for the device's name"))?,
        })
    }

    fn device(&self, index: u32) -> Result<Device<'_>, DeviceError> {
        self.inner.device_by_index(index).map_err(|error| match error {
            NvmlError::InvalidArg | NvmlError::NotFound => {
                DeviceError::NoSuchDevice { wanted: index, count: self.inner.device_count().unwrap_or(0) }
            }
            error => failed("opening the device")(error),
        })
    }

    pub fn read(&self, index: u32) -> Result<Reading, DeviceError> {
        let device = self.device(index)?;
        // Processes are read before the totals, so that the totals do not include processes that ended before they
        // could be listed.
        let mut processes = listed(device.running_compute_processes())?;
        // A process that has both a compute and a graphics context is in both lists, with the same figure.
        for (pid, bytes) in listed(device.running_graphics_processes())? {
            let recorded = processes.entry(pid).or_insert(bytes);
            *recorded = (*recorded).max(bytes);
        }
        let totals = supported(device.memory_info(), "asking for the device's memory")?;
        let utilisation = supported(device.utilization_rates(), "asking for the device's utilisation")?;
        Ok(Reading {
            totals: totals.map(|it| DeviceTotals { total: Bytes::new(it.total), used: Bytes::new(it.used) }),
            processes: processes.into_iter().map(|(pid, bytes)| Listed { pid, bytes }).collect(),
            utilisation: utilisation.map(|it| it.gpu),
        })
    }
}

/// Returns the listed processes with their memory. On a partitioned device, NVML lists a process once for each instance
/// that the process uses, so these figures are added up.
fn listed(answer: Result<Vec<ProcessInfo>, NvmlError>) -> Result<BTreeMap<u32, Option<Bytes>>, DeviceError> {
    let mut all: BTreeMap<u32, Option<Bytes>> = BTreeMap::new();
    for process in supported(answer, "listing the device's processes")?.unwrap_or_default() {
        let bytes = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(Bytes::new(bytes)),
            UsedGpuMemory::Unavailable => None,
        };
        let total = all.entry(process.pid).or_default();
        *total = match (*total, bytes) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
    }
    Ok(all)
}

/// Returns the answer to a query, or `None` if the device does not support the query.
fn supported<T>(answer: Result<T, NvmlError>, operation: &'static str) -> Result<Option<T>, DeviceError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(NvmlError::NotSupported) => Ok(None),
        Err(error) => Err(failed(operation)(error)),
    }
}

fn failed(operation: &'static str) -> impl Fn(NvmlError) -> DeviceError {
    move |error| match error {
        NvmlError::GpuLost => DeviceError::Lost { operation, why: error.to_string() },
        error => DeviceError::Failed { operation, why: with_causes(&error) },
    }
}

/// Returns the error's message together with the messages of its causes. If the library cannot be loaded, these include
/// the loader's message.
fn with_causes(error: &NvmlError) -> String {
    opt_shared::causes::chain(error)
}
