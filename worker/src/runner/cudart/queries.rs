//! The functions of the CUDA runtime that deal with streams, events, errors and properties. They have C's calling
//! convention.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use rustix::process::{Resource, getrlimit};

use super::exports::give;
use super::{properties, runtime};

/// The CUDA version that the driver and the runtime report, which is 13.0.
const VERSION: c_int = 13_000;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaStreamCreate(to: *mut *mut c_void) -> u32 {
    let handle = runtime().new_handle();
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, std::ptr::without_provenance_mut(handle)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaStreamCreateWithFlags(to: *mut *mut c_void, _: c_uint) -> u32 {
    let handle = runtime().new_handle();
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, std::ptr::without_provenance_mut(handle)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaStreamCreateWithPriority(
    to: *mut *mut c_void,
    _: c_uint,
    _: c_int,
) -> u32 {
    let handle = runtime().new_handle();
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, std::ptr::without_provenance_mut(handle)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaEventCreate(to: *mut *mut c_void) -> u32 {
    let handle = runtime().new_handle();
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, std::ptr::without_provenance_mut(handle)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaEventCreateWithFlags(to: *mut *mut c_void, _: c_uint) -> u32 {
    let handle = runtime().new_handle();
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, std::ptr::without_provenance_mut(handle)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaStreamSynchronize(_: *mut c_void) -> u32 {
    // Every operation is complete when its call returns. So this function and the next four only report whether the
    // device has a fault.
    let mut runtime = runtime();
    let code = runtime.device.sticky().map_or(0, opt_emulator::Fault::code);
    runtime.result(code)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaStreamQuery(_: *mut c_void) -> u32 {
    let mut runtime = runtime();
    let code = runtime.device.sticky().map_or(0, opt_emulator::Fault::code);
    runtime.result(code)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaEventSynchronize(_: *mut c_void) -> u32 {
    let mut runtime = runtime();
    let code = runtime.device.sticky().map_or(0, opt_emulator::Fault::code);
    runtime.result(code)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaEventQuery(_: *mut c_void) -> u32 {
    let mut runtime = runtime();
    let code = runtime.device.sticky().map_or(0, opt_emulator::Fault::code);
    runtime.result(code)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaDeviceSynchronize() -> u32 {
    let mut runtime = runtime();
    let code = runtime.device.sticky().map_or(0, opt_emulator::Fault::code);
    runtime.result(code)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaStreamDestroy(_: *mut c_void) -> u32 {
    0
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaEventDestroy(_: *mut c_void) -> u32 {
    0
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaStreamWaitEvent(_: *mut c_void, _: *mut c_void, _: c_uint) -> u32 {
    0
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaEventRecord(_: *mut c_void, _: *mut c_void) -> u32 {
    0
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaEventRecordWithFlags(
    _: *mut c_void,
    _: *mut c_void,
    _: c_uint,
) -> u32 {
    0
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaFuncSetCacheConfig(_: *const c_void, _: c_int) -> u32 {
    0
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaDeviceSetLimit(_: c_int, _: usize) -> u32 {
    0
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaGetLastError() -> u32 {
    let mut runtime = runtime();
    // As on a card, a fault that made the device unusable is reported again.
    let code = runtime.last;
    runtime.last = runtime.device.sticky().map_or(0, opt_emulator::Fault::code);
    code
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaPeekAtLastError() -> u32 {
    runtime().last
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaGetErrorString(code: u32) -> *const c_char {
    error(code).1.as_ptr()
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaGetErrorName(code: u32) -> *const c_char {
    error(code).0.as_ptr()
}

fn error(code: u32) -> (&'static CStr, &'static CStr) {
    match code {
        0 => (c"cudaSuccess", c"no error"),
        1 => (c"cudaErrorInvalidValue", c"invalid argument"),
        2 => (c"cudaErrorMemoryAllocation", c"out of memory"),
        9 => (c"cudaErrorInvalidConfiguration", c"invalid configuration argument"),
        13 => (c"cudaErrorInvalidSymbol", c"invalid device symbol"),
        98 => (c"cudaErrorInvalidDeviceFunction", c"invalid device function"),
        101 => (c"cudaErrorInvalidDevice", c"invalid device ordinal"),
        209 => {
            (c"cudaErrorNoKernelImageForDevice", c"no kernel image is available for execution on the device")
        }
        218 => (c"cudaErrorInvalidPtx", c"a PTX JIT compilation failed"),
        700 => (c"cudaErrorIllegalAddress", c"an illegal memory access was encountered"),
        701 => (c"cudaErrorLaunchOutOfResources", c"too many resources requested for launch"),
        702 => (c"cudaErrorLaunchTimeout", c"the launch timed out and was terminated"),
        710 => (c"cudaErrorAssert", c"device-side assert triggered"),
        716 => (c"cudaErrorMisalignedAddress", c"misaligned address"),
        719 => (c"cudaErrorLaunchFailure", c"unspecified launch failure"),
        801 => (c"cudaErrorNotSupported", c"operation not supported"),
        _ => (c"cudaErrorUnknown", c"unknown error"),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaGetDevice(to: *mut c_int) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, 0) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaGetDeviceCount(to: *mut c_int) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, 1) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaDriverGetVersion(to: *mut c_int) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, VERSION) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaRuntimeGetVersion(to: *mut c_int) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, VERSION) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaSetDevice(device: c_int) -> u32 {
    if device == 0 { 0 } else { runtime().result(super::INVALID_DEVICE) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaDeviceGetAttribute(
    to: *mut c_int,
    attribute: c_int,
    _: c_int,
) -> u32 {
    match properties::attribute(attribute) {
        // SAFETY: the caller keeps the contract of the runtime's function.
        Some(value) => unsafe { give(to, value) },
        None => runtime()
            .unsupported(&format!("the emulated device does not know the device attribute {attribute}")),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaGetDeviceProperties(to: *mut u8, _: c_int) -> u32 {
    // SAFETY: the caller's structure has this size in CUDA 13, whose `cudaGetDeviceProperties` has this name.
    unsafe { properties::write(to, &properties::CUDA_13, super::MEMORY) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaMemGetInfo(free: *mut usize, total: *mut usize) -> u32 {
    // The device's memory is memory of this process, which Linux limits.
    let limit = getrlimit(Resource::Data).current.unwrap_or(super::MEMORY).min(super::MEMORY);
    let free_bytes = limit.saturating_sub(runtime().device.used());
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(free, size(free_bytes)).max(give(total, size(super::MEMORY))) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    to: *mut c_int,
    _: *const c_void,
    threads: c_int,
    shared: usize,
) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, properties::blocks(threads, shared as u64)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    to: *mut c_int,
    _: *const c_void,
    threads: c_int,
    shared: usize,
    _: c_uint,
) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, properties::blocks(threads, shared as u64)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaEventElapsedTime(
    to: *mut f32,
    _: *mut c_void,
    _: *mut c_void,
) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, 0.0) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaEventElapsedTime_v2(
    to: *mut f32,
    _: *mut c_void,
    _: *mut c_void,
) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, 0.0) }
}
