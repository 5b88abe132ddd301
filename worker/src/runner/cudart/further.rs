//! Further functions of the CUDA runtime: launches with attributes, attributes of kernels and pointers, copies of rows,
//! queries of streams, and the device's properties in CUDA 12's layout.

use std::ffi::{c_int, c_uint, c_void};

use opt_emulator::limits;

use super::exports::{Dim3, give, launch};
use super::{INVALID_VALUE, Runtime, properties, runtime};

/// `cudaFuncAttributeMaxDynamicSharedMemorySize`.
const MAX_DYNAMIC_SHARED: c_int = 8;
/// The largest number of attributes of one launch.
const MAX_ATTRIBUTES: usize = 64;
/// The PTX version and the binary version in a kernel's attributes, which mean compute capability 8.0.
const VERSION: c_int = 80;

/// `cudaLaunchConfig_t`.
#[repr(C)]
pub(super) struct LaunchConfig {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: *mut c_void,
    attributes: *const LaunchAttribute,
    count: c_uint,
}

/// `cudaLaunchAttribute`.
#[repr(C)]
pub(super) struct LaunchAttribute {
    id: c_uint,
    padding: [u8; 4],
    value: [c_uint; 16],
}

impl LaunchAttribute {
    /// Returns the feature that the attribute requests, if the emulated device lacks it. Returns `None` if the
    /// attribute can be ignored.
    fn missing_feature(&self) -> Option<String> {
        let value = &self.value;
        match self.id {
            // These are hints for caches and the scheduler, and dependencies between launches, which never overlap
            // here.
            0 | 1 | 3 | 5..=10 | 12 | 14 => None,
            2 if value[0] == 0 => None,
            4 | 11 if value[..3].iter().all(|&size| size <= 1) => None,
            2 => Some("cooperative launches".to_owned()),
            4 | 11 => Some("clusters".to_owned()),
            id => Some(format!("the launch attribute {id}")),
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaLaunchKernelExC(
    config: *const LaunchConfig,
    host: *const c_void,
    arguments: *const *const u8,
) -> u32 {
    // SAFETY: the runtime requires a null pointer or a configuration.
    let Some(config) = (unsafe { config.as_ref() }) else { return runtime().result(INVALID_VALUE) };
    let count = usize::try_from(config.count).unwrap_or(usize::MAX);
    if count > MAX_ATTRIBUTES {
        let text = format!("a launch has {count} attributes, and at most {MAX_ATTRIBUTES} are allowed");
        return runtime().refused(INVALID_VALUE, text);
    }
    if count > 0 && config.attributes.is_null() {
        let text = format!("a launch has {count} attributes, but the pointer to them is null");
        return runtime().refused(INVALID_VALUE, text);
    }
    if count > 0 {
        // SAFETY: the runtime requires as many attributes as the configuration says.
        let attributes = unsafe { std::slice::from_raw_parts(config.attributes, count) };
        if let Some(what) = attributes.iter().find_map(LaunchAttribute::missing_feature) {
            return runtime().unsupported(&format!("the emulated device does not support {what}"));
        }
    }
    // SAFETY: the caller passes the arguments of `cudaLaunchKernel`.
    unsafe { launch(host, config.grid, config.block, arguments, config.shared) }
}

/// `cudaFuncAttributes` of CUDA 12 and 13.
#[repr(C)]
pub(super) struct FuncAttributes {
    static_shared: usize,
    constant: usize,
    local: usize,
    max_threads: c_int,
    registers: c_int,
    ptx_version: c_int,
    binary_version: c_int,
    cache_mode: c_int,
    max_dynamic_shared: c_int,
    carveout: c_int,
    cluster: [c_int; 6],
    reserved: [c_int; 16],
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaFuncGetAttributes(
    to: *mut FuncAttributes,
    host: *const c_void,
) -> u32 {
    let mut runtime = runtime();
    let function = match runtime.function(host.addr()) {
        Ok((function, ..)) => function,
        Err(code) => return code,
    };
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let attributes = FuncAttributes {
        static_shared: size(function.static_shared_bytes()),
        constant: 0,
        local: size(function.local_bytes()),
        max_threads: properties::signed(function.max_threads().into()),
        // PTX does not limit registers. With this number, a multiprocessor can run its largest number of threads.
        registers: properties::REGISTERS / properties::THREADS_PER_MULTIPROCESSOR,
        ptx_version: VERSION,
        binary_version: VERSION,
        cache_mode: 0,
        max_dynamic_shared: properties::signed(
            runtime.dynamic_shared(host.addr(), function.static_shared_bytes()),
        ),
        carveout: -1,
        cluster: [0; 6],
        reserved: [0; 16],
    };
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, attributes) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaFuncSetAttribute(
    host: *const c_void,
    attribute: c_int,
    value: c_int,
) -> u32 {
    let mut runtime = runtime();
    let (function, _, name) = match runtime.function(host.addr()) {
        Ok(found) => found,
        Err(code) => return code,
    };
    // Other attributes are hints, or concern clusters. They have no effect, and launches with clusters are refused.
    if attribute != MAX_DYNAMIC_SHARED {
        return 0;
    }
    let most = properties::shared_bytes().saturating_sub(function.static_shared_bytes());
    match u64::try_from(value).ok().filter(|wanted| *wanted <= most) {
        Some(wanted) => {
            runtime.dynamic_shared.insert(host.addr(), wanted);
            0
        }
        None => {
            let what = format!(
                "a block of `{name}` can have at most {most} bytes of dynamic shared memory, not {value}"
            );
            runtime.refused(INVALID_VALUE, what)
        }
    }
}

impl Runtime {
    /// Returns the largest dynamic shared memory that a launch of the kernel may request, in bytes.
    pub(super) fn dynamic_shared(&self, host: usize, static_bytes: u64) -> u64 {
        let usual = limits::STATIC_SHARED_BYTES.saturating_sub(static_bytes);
        self.dynamic_shared.get(&host).copied().map_or(usual, |raised| raised.max(usual))
    }
}

/// The fields of `cudaPointerAttributes` in CUDA 12. Later versions append fields, which are not written.
#[repr(C)]
pub(super) struct PointerAttributes {
    kind: c_int,
    device: c_int,
    on_device: *const c_void,
    on_host: *const c_void,
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaPointerGetAttributes(
    to: *mut PointerAttributes,
    pointer: *const c_void,
) -> u32 {
    let on_device = runtime().is_on_device(pointer.addr());
    let attributes = if on_device {
        PointerAttributes { kind: 2, device: 0, on_device: pointer, on_host: std::ptr::null() }
    } else {
        // All memory of the host is reported as memory that is not registered with CUDA.
        PointerAttributes { kind: 0, device: -2, on_device: std::ptr::null(), on_host: pointer }
    };
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, attributes) }
}

/// Copies `height` rows of `width` bytes. A pitch is the distance between two rows, in bytes.
///
/// # Safety
/// The requirements of `Runtime::copy` apply to every row.
unsafe fn copy_rows(
    (to, to_pitch): (*mut c_void, usize),
    (from, from_pitch): (*const c_void, usize),
    (width, height): (usize, usize),
    kind: c_int,
) -> u32 {
    let mut runtime = runtime();
    if width > to_pitch || width > from_pitch {
        return runtime
            .refused(INVALID_VALUE, format!("a row of a copy has {width} bytes, more than its pitch"));
    }
    let (to, from) = (to.expose_provenance(), from.expose_provenance());
    for row in 0..height {
        let at = |start: usize, pitch: usize| start.wrapping_add(row.wrapping_mul(pitch));
        // SAFETY: the caller's obligation.
        let code = unsafe { runtime.copy(at(to, to_pitch), at(from, from_pitch), width, kind) };
        if code != 0 {
            return code;
        }
    }
    0
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaMemcpy2D(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { copy_rows((to, to_pitch), (from, from_pitch), (width, height), kind) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaMemcpy2DAsync(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
    _: *mut c_void,
) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { copy_rows((to, to_pitch), (from, from_pitch), (width, height), kind) }
}

/// Reports that no stream is being captured, because this runtime has no graphs.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaStreamIsCapturing(_: *mut c_void, to: *mut c_int) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, 0) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaStreamGetFlags(_: *mut c_void, to: *mut c_uint) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, 0) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaStreamGetPriority(_: *mut c_void, to: *mut c_int) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, 0) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaDeviceGetStreamPriorityRange(
    least: *mut c_int,
    greatest: *mut c_int,
) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function, which allows either pointer to be null.
    unsafe {
        give(least, 0);
        give(greatest, 0);
    }
    0
}

/// `cudaGetDeviceProperties` of CUDA 12, whose structure has a different layout than that of CUDA 13.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaGetDeviceProperties_v2(to: *mut u8, _: c_int) -> u32 {
    // SAFETY: only code that was compiled for CUDA 12 calls this symbol, because its headers rename
    // `cudaGetDeviceProperties` to it. So the caller's structure has the size of `CUDA_12`.
    unsafe { properties::write(to, &properties::CUDA_12, super::MEMORY) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_runtime() {
        assert_eq!(size_of::<LaunchAttribute>(), 72);
        assert_eq!(size_of::<LaunchConfig>(), 56);
        assert_eq!(size_of::<FuncAttributes>(), 144);
        assert_eq!(size_of::<PointerAttributes>(), 24);
    }

    #[test]
    fn attributes_that_change_a_launch_are_refused_by_name() {
        let with = |id, first| {
            let mut value = [0; 16];
            value[0] = first;
            LaunchAttribute { id, padding: [0; 4], value }.missing_feature()
        };
        for (id, value) in [(2, 0), (4, 1), (6, 1), (8, 5), (14, 50)] {
            assert_eq!(with(id, value), None, "attribute {id}");
        }
        for (id, value, says) in [(2, 1, "cooperative"), (4, 2, "clusters"), (13, 1, "attribute 13")] {
            assert!(with(id, value).is_some_and(|why| why.contains(says)), "attribute {id}");
        }
    }
}
