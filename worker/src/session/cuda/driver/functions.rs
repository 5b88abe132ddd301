//! The functions of the CUDA driver. All are looked up before the first one is called, so a missing one is never
//! called.
//!
//! cudarc finds the library and provides its types. Its wrappers of the driver's functions are not used, because they
//! panic if a symbol is missing, and because its error type has no value for newer codes. Here, an error code is a
//! plain number.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule, CUstream,
    CUuuid,
};

use super::DriverError;
use super::code::Code;

#[derive(Debug, thiserror::Error)]
pub(crate) enum NoDriver {
    #[error("no CUDA driver is installed here: libcuda.so is not found")]
    Library,
    #[error("the CUDA driver that is installed here is too old, or is not a driver: it has no `{0}`")]
    Symbol(&'static str),
    #[error("the CUDA driver cannot open device {ordinal}: {error}")]
    Device { ordinal: u32, error: DriverError },
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal: fn($($argument:ty),*);)*) => {
        /// The driver's functions, with the parameters of its documentation. Each returns a `CUresult`.
        #[derive(Clone, Copy)]
        pub(super) struct Functions { $($(#[$doc])* pub(super) $name: unsafe extern "C" fn($($argument),*) -> u32,)* }

        impl Functions {
            fn find(library: &'static libloading::Library) -> Result<Self, NoDriver> {
                // SAFETY: the names are the driver's functions, and the types are from its header.
                Ok(Self { $($name: unsafe {
                    *library.get(concat!($symbol, "\0").as_bytes()).map_err(|_| NoDriver::Symbol($symbol))?
                },)* })
            }
        }
    };
}

functions! {
    init = "cuInit": fn(c_uint);
    device = "cuDeviceGet": fn(*mut CUdevice, c_int);
    name = "cuDeviceGetName": fn(*mut c_char, c_int, CUdevice);
    uuid = "cuDeviceGetUuid_v2": fn(*mut CUuuid, CUdevice);
    total = "cuDeviceTotalMem_v2": fn(*mut usize, CUdevice);
    attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_uint, CUdevice);
    retain = "cuDevicePrimaryCtxRetain": fn(*mut CUcontext, CUdevice);
    release = "cuDevicePrimaryCtxRelease_v2": fn(CUdevice);
    set_current = "cuCtxSetCurrent": fn(CUcontext);
    memory = "cuMemGetInfo_v2": fn(*mut usize, *mut usize);
    allocate = "cuMemAlloc_v2": fn(*mut CUdeviceptr, usize);
    free = "cuMemFree_v2": fn(CUdeviceptr);
    host_allocate = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost": fn(*mut c_void);
    upload = "cuMemcpyHtoDAsync_v2": fn(CUdeviceptr, *const c_void, usize, CUstream);
    download = "cuMemcpyDtoHAsync_v2": fn(*mut c_void, CUdeviceptr, usize, CUstream);
    read = "cuMemcpyDtoH_v2": fn(*mut c_void, CUdeviceptr, usize);
    fill = "cuMemsetD8Async": fn(CUdeviceptr, u8, usize, CUstream);
    stream = "cuStreamCreate": fn(*mut CUstream, c_uint);
    event = "cuEventCreate": fn(*mut CUevent, c_uint);
    record = "cuEventRecord": fn(CUevent, CUstream);
    query = "cuEventQuery": fn(CUevent);
    load = "cuModuleLoadDataEx": fn(*mut CUmodule, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    unload = "cuModuleUnload": fn(CUmodule);
    function = "cuModuleGetFunction": fn(*mut CUfunction, CUmodule, *const c_char);
    launch = "cuLaunchKernel": fn(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void
    );
    set_function_attribute = "cuFuncSetAttribute": fn(CUfunction, c_uint, c_int);
}

/// Functions that a driver may lack. Kernels are verified without them.
#[derive(Clone, Copy)]
pub(super) struct Further {
    pub(super) parameter_info: Option<ParameterInfo>,
    /// `cuEventElapsedTime`.
    pub(super) elapsed: Option<Elapsed>,
    /// `cuMemcpyDtoDAsync`.
    pub(super) copy: Option<CopyWithin>,
    pub(super) graphs: Option<Graphs>,
}

pub(super) type ParameterInfo = unsafe extern "C" fn(CUfunction, usize, *mut usize, *mut usize) -> u32;
pub(super) type Elapsed = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> u32;
pub(super) type CopyWithin = unsafe extern "C" fn(CUdeviceptr, CUdeviceptr, usize, CUstream) -> u32;

/// The functions that record launches in a graph and launch it.
#[derive(Clone, Copy)]
pub(super) struct Graphs {
    pub(super) begin: unsafe extern "C" fn(CUstream, c_uint) -> u32,
    pub(super) end: unsafe extern "C" fn(CUstream, *mut CUgraph) -> u32,
    pub(super) instantiate: unsafe extern "C" fn(*mut CUgraphExec, CUgraph, u64) -> u32,
    pub(super) launch: unsafe extern "C" fn(CUgraphExec, CUstream) -> u32,
    pub(super) drop_executable: unsafe extern "C" fn(CUgraphExec) -> u32,
    pub(super) drop: unsafe extern "C" fn(CUgraph) -> u32,
}

impl Functions {
    /// Loads the driver, which stays loaded until the process ends.
    pub(super) fn load() -> Result<(Self, Further), NoDriver> {
        // SAFETY: this loads the driver's library. Every CUDA program runs its start-up code.
        if !unsafe { sys::is_culib_present() } {
            return Err(NoDriver::Library);
        }
        // SAFETY: as above; the library has just been found.
        let library = unsafe { sys::culib() };
        Ok((Self::find(library)?, Further::find(library)))
    }
}

impl Further {
    fn find(library: &'static libloading::Library) -> Self {
        // SAFETY: the names are the driver's functions, and the types are from its header.
        unsafe {
            let graphs = || {
                Some(Graphs {
                    begin: *library.get(b"cuStreamBeginCapture_v2\0").ok()?,
                    end: *library.get(b"cuStreamEndCapture\0").ok()?,
                    instantiate: *library.get(b"cuGraphInstantiateWithFlags\0").ok()?,
                    launch: *library.get(b"cuGraphLaunch\0").ok()?,
                    drop_executable: *library.get(b"cuGraphExecDestroy\0").ok()?,
                    drop: *library.get(b"cuGraphDestroy\0").ok()?,
                })
            };
            Self {
                parameter_info: library.get(b"cuFuncGetParamInfo\0").ok().map(|it| *it),
                elapsed: library.get(b"cuEventElapsedTime\0").ok().map(|it| *it),
                copy: library.get(b"cuMemcpyDtoDAsync_v2\0").ok().map(|it| *it),
                graphs: graphs(),
            }
        }
    }
}

pub(super) fn ok(call: &'static str, code: u32) -> Result<(), DriverError> {
    if code == 0 { Ok(()) } else { Err(DriverError::new(call, Code(code))) }
}
