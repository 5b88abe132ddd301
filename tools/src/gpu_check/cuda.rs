//! Safe wrappers around the driver functions that the measurements need. They contain all `unsafe` calls of CUDA in
//! this program. Kernels that are only checked run through the worker's driver instead.

use std::ffi::{CStr, CString, c_void};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cudarc::driver::sys;
use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use opt_shared::units::to_index;

use crate::Arguments;

/// The name of a function that only the twin of the driver has.
const TWIN_MARK: &[u8] = b"opt_cuda_twin\0";
/// The driver's constants `CU_LAUNCH_PARAM_…`, which mark the extra parameters of a launch.
const PARAM_END: usize = 0;
const PARAM_BUFFER: usize = 1;
const PARAM_BUFFER_BYTES: usize = 2;
/// The size of a buffer for a string that the driver returns, in bytes.
const STRING_BYTES: usize = 256;

/// Returns an error with the driver's name for the result if the call failed.
fn ok(what: &str, result: sys::CUresult) -> Result<()> {
    if result == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { bail!("{what}: {result:?}") }
}

/// Loads the driver's library. Returns true if it is the twin.
pub(crate) fn load_driver() -> Result<bool> {
    // SAFETY: `is_culib_present` only asks the loader for the library.
    ensure!(unsafe { sys::is_culib_present() }, "libcuda.so is not found");
    // SAFETY: `culib` only loads the library, which stays loaded until the process ends.
    let library = unsafe { sys::culib() };
    // SAFETY: the symbol is only looked up, never called.
    Ok(unsafe { library.get::<unsafe extern "C" fn()>(TWIN_MARK) }.is_ok())
}

#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Description {
    pub(crate) is_twin: bool,
    pub(crate) name: String,
    pub(crate) memory_bytes: u64,
    pub(crate) compute_capability: String,
    pub(crate) cuda: String,
    pub(crate) linux: String,
    /// The theoretical bandwidth of the device's memory in GB/s.
    pub(crate) memory_peak: Option<f64>,
    /// The PCI address of the device, as sysfs writes it.
    pub(crate) pci: Option<String>,
}

impl Description {
    /// Reads the properties of the device. Fails if there is no driver or no such device.
    pub(crate) fn of(arguments: &Arguments) -> Result<Self> {
        let is_twin = load_driver()?;
        let device = arguments.ordinal()?;
        let (mut version, mut name, mut bytes) = (0, [0; STRING_BYTES], 0usize);
        let room = i32::try_from(STRING_BYTES - 1)?;
        // SAFETY: each function writes to the given location, and `name` has the given length.
        unsafe {
            ok("cuInit", sys::cuInit(0))?;
            ok("cuDriverGetVersion", sys::cuDriverGetVersion(&raw mut version))?;
            ok("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), room, device))?;
            ok("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&raw mut bytes, device))?;
        }
        // SAFETY: the last byte is zero, because the length given to the driver was one byte less.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let attribute = |which| -> Result<i32> {
            let mut value = 0;
            // SAFETY: the call writes one number.
            ok("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&raw mut value, which, device) })?;
            Ok(value)
        };
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let clock = f64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?);
        let width = f64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?);
        // The memory makes two transfers in each cycle. The clock is in kHz and the width in bits.
        let memory_peak = 2.0 * clock * 1e3 * width / 8.0 / 1e9;
        let linux = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok(Self {
            is_twin,
            name,
            memory_bytes: bytes as u64,
            compute_capability: format!("{major}.{minor}"),
            cuda: format!("{}.{}", version / 1000, version % 1000 / 10),
            linux: linux.trim().to_owned(),
            memory_peak: (0.0 < memory_peak).then_some(memory_peak),
            pci: pci(device).ok(),
        })
    }
}

fn pci(device: i32) -> Result<String> {
    let mut text = [0; STRING_BYTES];
    let room = i32::try_from(STRING_BYTES - 1)?;
    // SAFETY: the buffer has one byte more than the length passed to the driver, so the string ends with a zero.
    let text = unsafe {
        ok("cuDeviceGetPCIBusId", sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), room, device))?;
        CStr::from_ptr(text.as_ptr())
    };
    Ok(text.to_string_lossy().to_lowercase())
}

/// The primary context of a device. It stays current in this thread until the process ends.
pub(crate) struct Device {
    pub(crate) ordinal: i32,
}

impl Device {
    pub(crate) fn open(arguments: &Arguments) -> Result<Self> {
        Self::initialise()?;
        Self::retain(arguments.ordinal()?)
    }

    pub(crate) fn initialise() -> Result<()> {
        // SAFETY: the call takes no pointers. It comes before all calls of other driver functions.
        ok("cuInit", unsafe { sys::cuInit(0) })
    }

    pub(crate) fn retain(ordinal: i32) -> Result<Self> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the driver writes the context before it is used, and the context is never released.
        unsafe {
            ok("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&raw mut context, ordinal))?;
            ok("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
        }
        Ok(Self { ordinal })
    }

    /// Returns the number of free bytes on the whole device.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: the call writes both values.
        ok("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        Ok(free as u64)
    }

    pub(crate) fn allocate(&self, bytes: u64) -> Result<DeviceMemory> {
        let mut address = 0;
        // SAFETY: the call writes the address, which this process never dereferences.
        ok("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&raw mut address, to_index(bytes)) })?;
        Ok(DeviceMemory { address, bytes })
    }

    pub(crate) fn release(&self, memory: DeviceMemory) -> Result<()> {
        // SAFETY: `memory` was allocated and is consumed, so it is freed only once.
        ok("cuMemFree", unsafe { sys::cuMemFree_v2(memory.address) })
    }

    pub(crate) fn upload(&self, to: &DeviceMemory, from: &[u8]) -> Result<()> {
        ensure!(from.len() as u64 <= to.bytes, "{} bytes do not fit into {}", from.len(), to.bytes);
        // SAFETY: the destination has not been freed, and has at least this length.
        ok("cuMemcpyHtoD", unsafe {
            sys::cuMemcpyHtoD_v2(to.address, from.as_ptr().cast::<c_void>(), from.len())
        })
    }

    /// Waits until everything that was queued on any stream is done.
    pub(crate) fn synchronise(&self) -> Result<()> {
        // SAFETY: the call takes no pointers.
        ok("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    /// Copies from pinned memory. Returns the time, measured with a pair of events.
    pub(crate) fn time_upload(&self, to: &DeviceMemory, from: &Pinned) -> Result<Duration> {
        let bytes = from.bytes.min(to.len());
        self.timed(|| {
            // SAFETY: both are at least this long, and the copy is over when `timed` returns.
            ok("cuMemcpyHtoDAsync", unsafe {
                sys::cuMemcpyHtoDAsync_v2(to.address, from.address, bytes, std::ptr::null_mut())
            })
        })
    }

    pub(crate) fn time_download(&self, to: &mut Pinned, from: &DeviceMemory) -> Result<Duration> {
        let bytes = to.bytes.min(from.len());
        self.timed(|| {
            // SAFETY: both are at least this long, and the copy is over when `timed` returns.
            ok("cuMemcpyDtoHAsync", unsafe {
                sys::cuMemcpyDtoHAsync_v2(to.address, from.address, bytes, std::ptr::null_mut())
            })
        })
    }

    pub(crate) fn time_copy(&self, to: &DeviceMemory, from: &DeviceMemory) -> Result<Duration> {
        let bytes = to.len().min(from.len());
        self.timed(|| {
            // SAFETY: both are at least this long.
            ok("cuMemcpyDtoDAsync", unsafe {
                sys::cuMemcpyDtoDAsync_v2(to.address, from.address, bytes, std::ptr::null_mut())
            })
        })
    }

    /// Queues an operation between two events and waits for it. Returns the time between the events.
    fn timed(&self, queue: impl FnOnce() -> Result<()>) -> Result<Duration> {
        let (start, end) = (self.event()?, self.event()?);
        self.record(&start)?;
        let queued = queue().and_then(|()| self.record(&end));
        self.synchronise()?;
        queued?;
        self.between(&start, &end)
    }

    pub(crate) fn kernel(&self, ptx: &str, symbol: &str) -> Result<Kernel> {
        let (ptx, symbol) = (CString::new(ptx)?, CString::new(symbol)?);
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: both strings end with a zero, and each call writes one handle. The module is never unloaded.
        unsafe {
            let result = sys::cuModuleLoadDataEx(
                &raw mut module,
                ptx.as_ptr().cast(),
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            );
            ok("cuModuleLoadDataEx", result)?;
            ok("cuModuleGetFunction", sys::cuModuleGetFunction(&raw mut function, module, symbol.as_ptr()))?;
        }
        Ok(Kernel { function })
    }

    /// Queues a launch. `parameters` contains the bytes of all parameters in the layout that the kernel expects.
    pub(crate) fn launch(
        &self,
        kernel: &Kernel,
        grid: [u32; 2],
        block: [u32; 2],
        parameters: &mut [u8],
    ) -> Result<()> {
        let mut length = parameters.len();
        let mut extra: [*mut c_void; 5] = [
            std::ptr::without_provenance_mut(PARAM_BUFFER),
            parameters.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(PARAM_BUFFER_BYTES),
            (&raw mut length).cast(),
            std::ptr::without_provenance_mut(PARAM_END),
        ];
        let ([gx, gy], [bx, by]) = (grid, block);
        let (stream, params, extra) = (std::ptr::null_mut(), std::ptr::null_mut(), extra.as_mut_ptr());
        // SAFETY: the parameters and their length outlive the call, which copies them.
        ok("cuLaunchKernel", unsafe {
            sys::cuLaunchKernel(kernel.function, gx, gy, 1, bx, by, 1, 0, stream, params, extra)
        })
    }

    pub(crate) fn event(&self) -> Result<Event> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the call writes the event.
        ok("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut event, 0) })?;
        Ok(Event { event })
    }

    /// Records an event after all operations that were queued.
    pub(crate) fn record(&self, event: &Event) -> Result<()> {
        // SAFETY: the event belongs to this context.
        ok("cuEventRecord", unsafe { sys::cuEventRecord(event.event, std::ptr::null_mut()) })
    }

    /// Returns the time between two events. Both must have been recorded and be complete.
    pub(crate) fn between(&self, start: &Event, end: &Event) -> Result<Duration> {
        let mut ms = 0.0_f32;
        // SAFETY: the call writes the time, and both events are of this context.
        ok("cuEventElapsedTime", unsafe { sys::cuEventElapsedTime(&raw mut ms, start.event, end.event) })?;
        Duration::try_from_secs_f64(f64::from(ms) / 1e3).context("the time between two events")
    }

    /// Creates a pool on this device with `bytes` as its `maxSize`. The pool step tests whether the driver enforces it.
    pub(crate) fn pool(&self, bytes: u64) -> Result<Pool> {
        // SAFETY: the structure consists of numbers and pointers. Zeros are valid for both, and mean "default".
        let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = self.ordinal;
        properties.maxSize = to_index(bytes);
        let mut pool = std::ptr::null_mut();
        // SAFETY: both structures outlive the call.
        ok("cuMemPoolCreate", unsafe { sys::cuMemPoolCreate(&raw mut pool, &raw const properties) })?;
        Ok(Pool { pool })
    }
}

/// Allocated device memory. Dropping it does not free it.
pub(crate) struct DeviceMemory {
    pub(crate) address: u64,
    bytes: u64,
}

impl DeviceMemory {
    fn len(&self) -> usize {
        to_index(self.bytes)
    }
}

pub(crate) struct Kernel {
    function: sys::CUfunction,
}

/// A CUDA event, which exists until the process ends.
pub(crate) struct Event {
    event: sys::CUevent,
}

pub(crate) struct Pool {
    pool: sys::CUmemoryPool,
}

impl Pool {
    /// Allocates on the default stream, and waits until that is done.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<DeviceMemory> {
        let mut address = 0;
        let stream = std::ptr::null_mut();
        // SAFETY: the pool exists; the call writes the address.
        unsafe {
            let result = sys::cuMemAllocFromPoolAsync(&raw mut address, to_index(bytes), self.pool, stream);
            ok("cuMemAllocFromPoolAsync", result)?;
            ok("cuStreamSynchronize", sys::cuStreamSynchronize(stream))?;
        }
        Ok(DeviceMemory { address, bytes })
    }

    pub(crate) fn release(&self, memory: DeviceMemory) -> Result<()> {
        let stream = std::ptr::null_mut();
        // SAFETY: `memory` was allocated and is consumed, so it is freed only once.
        unsafe {
            ok("cuMemFreeAsync", sys::cuMemFreeAsync(memory.address, stream))?;
            ok("cuStreamSynchronize", sys::cuStreamSynchronize(stream))
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the pool was created by `Device::pool` and is not used after this. The process ends soon, so an error
        // needs no handling.
        let _ = unsafe { sys::cuMemPoolDestroy(self.pool) };
    }
}

/// Page-locked host memory.
pub(crate) struct Pinned {
    address: *mut c_void,
    bytes: usize,
}

impl Pinned {
    /// Allocates memory. The argument `_device` proves that this thread has a context.
    pub(crate) fn allocate(_device: &Device, bytes: usize) -> Result<Self> {
        let mut address = std::ptr::null_mut();
        // SAFETY: the call writes the address. Without flags, the memory is cached, so the host reads it quickly.
        ok("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&raw mut address, bytes, 0) })?;
        Ok(Self { address, bytes })
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the driver allocated this many bytes, and they can be reached only through `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.bytes) }
    }

    pub(crate) fn release(self) -> Result<()> {
        // SAFETY: the address comes from `allocate`, and `self` is consumed, so it is freed only once.
        ok("cuMemFreeHost", unsafe { sys::cuMemFreeHost(self.address) })
    }
}
