//! Safe wrappers of the driver functions that the probe needs. All `unsafe` calls of CUDA are in this module.

use std::ffi::{CStr, c_void};

use anyhow::{Result, bail, ensure};
use cudarc::driver::sys;
use opt_shared::units::to_index;

/// Returns an error with the driver's name of the result, unless the result is success.
fn ok(what: &str, result: sys::CUresult) -> Result<()> {
    if result == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { bail!("{what}: {result:?}") }
}

/// Loads the driver's library.
pub(crate) fn load_driver() -> Result<()> {
    // SAFETY: `is_culib_present` only asks the loader for the library.
    ensure!(unsafe { sys::is_culib_present() }, "libcuda.so is not found");
    // SAFETY: `culib` only loads the library, which stays loaded until the process ends.
    let _library = unsafe { sys::culib() };
    Ok(())
}

/// Describes the driver and the device in one line. Fails if there is no such device.
pub(crate) fn describe(device: i32) -> Result<String> {
    load_driver()?;
    let (mut version, mut name, mut bytes) = (0, [0; 128], 0usize);
    // SAFETY: each function writes to the given location, and `name` has the given length.
    unsafe {
        ok("cuInit", sys::cuInit(0))?;
        ok("cuDriverGetVersion", sys::cuDriverGetVersion(&raw mut version))?;
        ok("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), 127, device))?;
        ok("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&raw mut bytes, device))?;
    }
    // SAFETY: the last byte is zero, because the length given to the driver was one byte less.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let (major, minor) = (version / 1000, version % 1000 / 10);
    Ok(format!(
        "{name}, {}, CUDA {major}.{minor}, Linux {}, gpu-probe {}",
        crate::table::mib(bytes as u64),
        kernel.trim(),
        env!("CARGO_PKG_VERSION")
    ))
}

/// The primary context of a device, current in this thread until the process ends.
pub(crate) struct Device {
    pub(crate) ordinal: i32,
}

impl Device {
    pub(crate) fn open(ordinal: i32) -> Result<Self> {
        Self::initialise()?;
        Self::retain(ordinal)
    }

    pub(crate) fn initialise() -> Result<()> {
        // SAFETY: takes no pointers; must be called before all other driver functions.
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

    /// Free bytes of the whole device.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: the call writes both values.
        ok("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        Ok(free as u64)
    }

    pub(crate) fn allocate(&self, bytes: u64) -> Result<DeviceMemory> {
        let mut address = 0;
        // SAFETY: the call writes the address. This process never reads the memory.
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

    /// Creates a pool on this device with the maximum size `bytes`; 0 sets no maximum. The probe measures whether the
    /// driver enforces it.
    pub(crate) fn pool(&self, bytes: u64) -> Result<Pool> {
        // SAFETY: a structure of numbers and null pointers, in which zeros mean "default".
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
    address: u64,
    bytes: u64,
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
        // SAFETY: created by `pool` and not used after this. The process ends soon, so an error needs no handling.
        let _ = unsafe { sys::cuMemPoolDestroy(self.pool) };
    }
}

/// Page-locked host memory.
pub(crate) struct Pinned {
    address: *mut c_void,
    bytes: usize,
}

impl Pinned {
    /// Allocates memory. `_device` proves that this thread has a context.
    pub(crate) fn allocate(_device: &Device, bytes: usize) -> Result<Self> {
        let mut address = std::ptr::null_mut();
        // SAFETY: the call writes the address. Without flags, the memory is cached, so the host reads it quickly.
        ok("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&raw mut address, bytes, 0) })?;
        Ok(Self { address, bytes })
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the driver gave us this many bytes, and `&mut self` is the only way to them.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.bytes) }
    }

    pub(crate) fn release(self) -> Result<()> {
        // SAFETY: an address from `allocate`; `self` is consumed.
        ok("cuMemFreeHost", unsafe { sys::cuMemFreeHost(self.address) })
    }
}
