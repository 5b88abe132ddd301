//! Safe wrappers of the driver functions that the probe needs. All `unsafe` calls of CUDA are in this module.

use std::ffi::{CStr, c_void};

use anyhow::{Result, bail, ensure};
use cudarc::driver::sys;
use opt_shared::units::to_index;

/// Converts a result of the driver to an error with the driver's name for it.
fn ok(what: &str, result: sys::CUresult) -> Result<()> {
    if result == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { bail!("{what}: {result:?}") }
}

/// Loads the driver's library.
pub(crate) fn driver_is_there() -> Result<()> {
    // SAFETY: only asks the loader for the library.
    ensure!(unsafe { sys::is_culib_present() }, "libcuda.so is not found");
    // SAFETY: as above; the library stays loaded.
    let _stays = unsafe { sys::culib() };
    Ok(())
}

/// Describes the driver and the device in one line. Fails if there is no such device.
pub(crate) fn driver(device: i32) -> Result<String> {
    driver_is_there()?;
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
    pub(crate) fn free(&self) -> Result<u64> {
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: the call writes both values.
        ok("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        Ok(free as u64)
    }

    pub(crate) fn allocate(&self, bytes: u64) -> Result<u64> {
        let mut address = 0;
        // SAFETY: the call writes the address. This process never reads the memory.
        ok("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&raw mut address, to_index(bytes)) })?;
        Ok(address)
    }

    pub(crate) fn release(&self, address: u64) -> Result<()> {
        // SAFETY: an address from `allocate`, which callers release once.
        ok("cuMemFree", unsafe { sys::cuMemFree_v2(address) })
    }

    pub(crate) fn upload(&self, address: u64, from: &[u8]) -> Result<()> {
        // SAFETY: callers pass a destination of at least this length.
        ok("cuMemcpyHtoD", unsafe {
            sys::cuMemcpyHtoD_v2(address, from.as_ptr().cast::<c_void>(), from.len())
        })
    }

    /// Creates a pool on this device that should hold at most `bytes`; 0 sets no limit.
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

pub(crate) struct Pool {
    pool: sys::CUmemoryPool,
}

impl Pool {
    /// Allocates on the default stream, and waits until that is done.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<u64> {
        let mut address = 0;
        let stream = std::ptr::null_mut();
        // SAFETY: the pool exists; the call writes the address.
        unsafe {
            let result = sys::cuMemAllocFromPoolAsync(&raw mut address, to_index(bytes), self.pool, stream);
            ok("cuMemAllocFromPoolAsync", result)?;
            ok("cuStreamSynchronize", sys::cuStreamSynchronize(stream))?;
        }
        Ok(address)
    }

    pub(crate) fn release(&self, address: u64) -> Result<()> {
        let stream = std::ptr::null_mut();
        // SAFETY: an address from `allocate`, which callers release once.
        unsafe {
            ok("cuMemFreeAsync", sys::cuMemFreeAsync(address, stream))?;
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
    pub(crate) fn allocate(_device: &Device, bytes: usize) -> Result<Self> {
        let mut address = std::ptr::null_mut();
        // SAFETY: the call writes the address. Flags 0: cached, so that reading it back is fast.
        ok("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&raw mut address, bytes, 0) })?;
        Ok(Self { address, bytes })
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the driver gave us this many bytes, and `&mut self` is the only way to them.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.bytes) }
    }

    pub(crate) fn free(self) -> Result<()> {
        // SAFETY: an address from `allocate`; `self` is consumed.
        ok("cuMemFreeHost", unsafe { sys::cuMemFreeHost(self.address) })
    }
}
