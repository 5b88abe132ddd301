//! The driver's functions that the probe needs, each with its error as text. The only `unsafe` towards CUDA.

use std::ffi::{CStr, c_void};

use anyhow::{Result, bail, ensure};
use cudarc::driver::sys;
use opt_shared::units::to_index;

/// What the driver said, by its own name for it.
fn ok(what: &str, result: sys::CUresult) -> Result<()> {
    if result == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { bail!("{what}: {result:?}") }
}

/// Loads the driver's library.
pub(crate) fn driver_is_there() -> Result<()> {
    // SAFETY: it only asks the loader for the library.
    ensure!(unsafe { sys::is_culib_present() }, "libcuda.so is not found");
    // SAFETY: likewise; the library stays loaded from here on.
    let _stays = unsafe { sys::culib() };
    Ok(())
}

/// Driver and device, in a line; an error where there is none.
pub(crate) fn driver(device: i32) -> Result<String> {
    driver_is_there()?;
    let (mut version, mut name, mut bytes) = (0, [0; 128], 0usize);
    // SAFETY: each function writes to the place it is given, and `name` has the length that is said.
    unsafe {
        ok("cuInit", sys::cuInit(0))?;
        ok("cuDriverGetVersion", sys::cuDriverGetVersion(&raw mut version))?;
        ok("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), 127, device))?;
        ok("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&raw mut bytes, device))?;
    }
    // SAFETY: the last byte is zero: the driver was told of one less.
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
        // SAFETY: the driver's own precondition for everything else; no arguments.
        ok("cuInit", unsafe { sys::cuInit(0) })
    }

    pub(crate) fn retain(ordinal: i32) -> Result<Self> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the context is written before it is used, and is never released.
        unsafe {
            ok("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&raw mut context, ordinal))?;
            ok("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
        }
        Ok(Self { ordinal })
    }

    /// Free bytes of the whole device.
    pub(crate) fn free(&self) -> Result<u64> {
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: both are written by the call.
        ok("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        Ok(free as u64)
    }

    pub(crate) fn allocate(&self, bytes: u64) -> Result<u64> {
        let mut address = 0;
        // SAFETY: the address is written by the call; the memory is never read by us.
        ok("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&raw mut address, to_index(bytes)) })?;
        Ok(address)
    }

    pub(crate) fn release(&self, address: u64) -> Result<()> {
        // SAFETY: an address of `allocate`, given back once by its callers.
        ok("cuMemFree", unsafe { sys::cuMemFree_v2(address) })
    }

    pub(crate) fn upload(&self, address: u64, from: &[u8]) -> Result<()> {
        // SAFETY: callers pass a destination of at least this length.
        ok("cuMemcpyHtoD", unsafe {
            sys::cuMemcpyHtoD_v2(address, from.as_ptr().cast::<c_void>(), from.len())
        })
    }

    /// A pool on this device that shall hold at most `bytes`; 0 sets no limit.
    pub(crate) fn pool(&self, bytes: u64) -> Result<Pool> {
        // SAFETY: a structure of numbers and null pointers, for which zeros mean "default".
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
    /// On the default stream, and waited for.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<u64> {
        let mut address = 0;
        let stream = std::ptr::null_mut();
        // SAFETY: the pool lives; the address is written by the call.
        unsafe {
            let result = sys::cuMemAllocFromPoolAsync(&raw mut address, to_index(bytes), self.pool, stream);
            ok("cuMemAllocFromPoolAsync", result)?;
            ok("cuStreamSynchronize", sys::cuStreamSynchronize(stream))?;
        }
        Ok(address)
    }

    pub(crate) fn release(&self, address: u64) -> Result<()> {
        let stream = std::ptr::null_mut();
        // SAFETY: an address of `allocate`, given back once by its callers.
        unsafe {
            ok("cuMemFreeAsync", sys::cuMemFreeAsync(address, stream))?;
            ok("cuStreamSynchronize", sys::cuStreamSynchronize(stream))
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: made by `pool` and not used after this. The process ends soon; an error has no remedy.
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
        // SAFETY: the address is written by the call. Flags 0: cached, so that reading it back is fast.
        ok("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&raw mut address, bytes, 0) })?;
        Ok(Self { address, bytes })
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the driver gave us this many bytes, and `&mut self` is the only way to them.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.bytes) }
    }

    pub(crate) fn free(self) -> Result<()> {
        // SAFETY: from `allocate`, and consumed here.
        ok("cuMemFreeHost", unsafe { sys::cuMemFreeHost(self.address) })
    }
}
