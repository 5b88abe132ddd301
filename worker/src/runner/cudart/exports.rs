//! The basic functions of the CUDA runtime, which register and launch kernels and manage memory. They have C's calling
//! convention. `further` and `queries` contain the other functions.
//!
//! `__wrap_NAME` has the contract of the runtime's function `NAME`. The linker's option `--wrap` redirects calls of
//! `NAME` to it.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::{INVALID_VALUE, Image, Symbol, fat_binary, runtime};

/// `dim3`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Dim3 {
    x: c_uint,
    y: c_uint,
    z: c_uint,
}

impl Dim3 {
    fn sizes(self) -> [u32; 3] {
        [self.x, self.y, self.z]
    }
}

/// The configuration of a launch, which `<<<>>>` has pushed and the kernel's stub has not yet popped.
#[derive(Clone, Copy)]
struct Configuration {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: *mut c_void,
}

thread_local! {
    static CONFIGURATION: std::cell::Cell<Option<Configuration>> = const { std::cell::Cell::new(None) };
}

/// Writes a result to the caller's pointer. Returns a CUDA error code, which is 0, or `INVALID_VALUE` if the pointer is
/// null.
pub(super) unsafe fn give<T>(to: *mut T, value: T) -> u32 {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's pointer is valid for writing one value, as the runtime requires.
    unsafe { to.write(value) };
    0
}

pub(super) fn pointer(address: u64) -> *mut c_void {
    usize::try_from(address).map_or(std::ptr::null_mut(), std::ptr::without_provenance_mut)
}

unsafe fn text(name: *const c_char) -> String {
    // SAFETY: the runtime requires a NUL-terminated string.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap___cudaRegisterFatBinary(wrapper: *const c_void) -> *mut *mut c_void {
    let mut runtime = runtime();
    // SAFETY: nvcc generates this call, and passes a pointer to the wrapper of the fat binary that it has embedded in
    // the library.
    let code = unsafe { fat_binary::device_code(wrapper, runtime.card) };
    runtime.images.push(Image { text: code.text, machine_code: code.machine_code, module: None });
    // The handle is the image's index plus 1, because it must not be null.
    std::ptr::without_provenance_mut(runtime.images.len())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap___cudaRegisterFatBinaryEnd(_: *mut *mut c_void) {}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap___cudaUnregisterFatBinary(_: *mut *mut c_void) {}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap___cudaInitModule(_: *mut *mut c_void) -> c_char {
    0
}

fn register(handle: usize, host: usize, name: String) {
    let symbol = Symbol { image: handle.wrapping_sub(1), name };
    runtime().symbols.insert(host, symbol);
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap___cudaRegisterFunction(
    handle: *mut *mut c_void,
    host: *const c_void,
    _: *mut c_char,
    name: *const c_char,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_int,
) {
    // SAFETY: the caller keeps the contract of the runtime's function.
    register(handle.addr(), host.addr(), unsafe { text(name) });
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap___cudaRegisterVar(
    handle: *mut *mut c_void,
    host: *const c_void,
    _: *mut c_char,
    name: *const c_char,
    _: c_int,
    _: usize,
    _: c_int,
    _: c_int,
) {
    // SAFETY: the caller keeps the contract of the runtime's function.
    register(handle.addr(), host.addr(), unsafe { text(name) });
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap___cudaPushCallConfiguration(
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: *mut c_void,
) -> c_uint {
    CONFIGURATION.set(Some(Configuration { grid, block, shared, stream }));
    0
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap___cudaPopCallConfiguration(
    grid: *mut Dim3,
    block: *mut Dim3,
    shared: *mut usize,
    stream: *mut *mut c_void,
) -> u32 {
    let Some(found) = CONFIGURATION.take() else { return runtime().result(super::INVALID_CONFIGURATION) };
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe {
        give(grid, found.grid)
            .max(give(block, found.block))
            .max(give(shared, found.shared))
            .max(give(stream, found.stream))
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap___cudaGetKernel(
    kernel: *mut *const c_void,
    host: *const c_void,
) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(kernel, host) }
}

/// Launches a kernel.
///
/// # Safety
/// `arguments` must point to an array with one pointer for each parameter of the kernel. Each of these pointers must
/// point to a readable value of the parameter's size.
pub(super) unsafe fn launch(
    host: *const c_void,
    grid: Dim3,
    block: Dim3,
    arguments: *const *const u8,
    shared: usize,
) -> u32 {
    let mut runtime = runtime();
    let (function, image, name) = match runtime.function(host.addr()) {
        Ok(found) => found,
        Err(code) => return code,
    };
    let most = runtime.dynamic_shared(host.addr(), function.static_shared_bytes());
    if most < shared as u64 {
        let what = format!(
            "a launch of `{name}` requests {shared} bytes of dynamic shared memory; the limit is {most} bytes \
             (cudaFuncSetAttribute with cudaFuncAttributeMaxDynamicSharedMemorySize can raise it as far as the device allows)"
        );
        return runtime.refused(INVALID_VALUE, what);
    }
    let parameter = |(index, bytes): (usize, u64)| {
        let bytes = usize::try_from(bytes).unwrap_or(0);
        // SAFETY: the caller's obligation.
        unsafe { std::slice::from_raw_parts(arguments.add(index).read(), bytes) }.to_vec()
    };
    let params = function.param_sizes().into_iter().enumerate().map(parameter).collect();
    runtime.launch(&function, (image, &name), (grid.sizes(), block.sizes()), shared as u64, params)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaLaunchKernel(
    host: *const c_void,
    grid: Dim3,
    block: Dim3,
    arguments: *const *const u8,
    shared: usize,
    _: *mut c_void,
) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { launch(host, grid, block, arguments, shared) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap___cudaLaunchKernel(
    host: *const c_void,
    grid: Dim3,
    block: Dim3,
    arguments: *const *const u8,
    shared: usize,
    _: *mut c_void,
) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { launch(host, grid, block, arguments, shared) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaMalloc(to: *mut *mut c_void, bytes: usize) -> u32 {
    let mut runtime = runtime();
    if bytes == 0 {
        // SAFETY: the caller keeps the contract of the runtime's function.
        return unsafe { give(to, std::ptr::null_mut()) };
    }
    match runtime.allocate(bytes as u64) {
        // SAFETY: the caller keeps the contract of the runtime's function.
        Ok(address) => unsafe { give(to, pointer(address)) },
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaMallocAsync(
    to: *mut *mut c_void,
    bytes: usize,
    _: *mut c_void,
) -> u32 {
    let mut runtime = runtime();
    if bytes == 0 {
        // SAFETY: the caller keeps the contract of the runtime's function.
        return unsafe { give(to, std::ptr::null_mut()) };
    }
    match runtime.allocate(bytes as u64) {
        // SAFETY: the caller keeps the contract of the runtime's function.
        Ok(address) => unsafe { give(to, pointer(address)) },
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaFree(at: *mut c_void) -> u32 {
    if at.is_null() {
        return 0;
    }
    runtime().free(at.addr() as u64)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaFreeAsync(at: *mut c_void, _: *mut c_void) -> u32 {
    if at.is_null() {
        return 0;
    }
    runtime().free(at.addr() as u64)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaMallocHost(to: *mut *mut c_void, bytes: usize) -> u32 {
    // SAFETY: C's allocator has no requirements.
    let memory = unsafe { libc::calloc(1, bytes.max(1)) };
    if memory.is_null() {
        return runtime().result(super::OUT_OF_MEMORY);
    }
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, memory) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaHostAlloc(to: *mut *mut c_void, bytes: usize, _: c_uint) -> u32 {
    // SAFETY: C's allocator has no requirements.
    let memory = unsafe { libc::calloc(1, bytes.max(1)) };
    if memory.is_null() {
        return runtime().result(super::OUT_OF_MEMORY);
    }
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { give(to, memory) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaFreeHost(at: *mut c_void) -> u32 {
    // SAFETY: by the runtime's contract, `at` is null or came from `cudaMallocHost` or `cudaHostAlloc`.
    unsafe { libc::free(at) };
    0
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaMemcpy(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { runtime().copy(to.expose_provenance(), from.expose_provenance(), bytes, kind) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
    _: *mut c_void,
) -> u32 {
    // SAFETY: the caller keeps the contract of the runtime's function.
    unsafe { runtime().copy(to.expose_provenance(), from.expose_provenance(), bytes, kind) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaMemset(at: *mut c_void, value: c_int, bytes: usize) -> u32 {
    runtime().fill(at.addr() as u64, value.to_le_bytes()[0], bytes as u64)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaMemsetAsync(
    at: *mut c_void,
    value: c_int,
    bytes: usize,
    _: *mut c_void,
) -> u32 {
    runtime().fill(at.addr() as u64, value.to_le_bytes()[0], bytes as u64)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaMemcpyToSymbol(
    symbol: *const c_void,
    from: *const c_void,
    bytes: usize,
    offset: usize,
    kind: c_int,
) -> u32 {
    let mut runtime = runtime();
    match runtime.part_of_variable(symbol.addr(), offset, bytes) {
        // SAFETY: the caller keeps the contract of the runtime's function.
        Ok(to) => unsafe { runtime.copy(to, from.expose_provenance(), bytes, kind) },
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaMemcpyToSymbolAsync(
    symbol: *const c_void,
    from: *const c_void,
    bytes: usize,
    offset: usize,
    kind: c_int,
    _: *mut c_void,
) -> u32 {
    let mut runtime = runtime();
    match runtime.part_of_variable(symbol.addr(), offset, bytes) {
        // SAFETY: the caller keeps the contract of the runtime's function.
        Ok(to) => unsafe { runtime.copy(to, from.expose_provenance(), bytes, kind) },
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaMemcpyFromSymbol(
    to: *mut c_void,
    symbol: *const c_void,
    bytes: usize,
    offset: usize,
    kind: c_int,
) -> u32 {
    let mut runtime = runtime();
    match runtime.part_of_variable(symbol.addr(), offset, bytes) {
        // SAFETY: the caller keeps the contract of the runtime's function.
        Ok(from) => unsafe { runtime.copy(to.expose_provenance(), from, bytes, kind) },
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaGetSymbolAddress(
    to: *mut *mut c_void,
    symbol: *const c_void,
) -> u32 {
    let mut runtime = runtime();
    match runtime.variable(symbol.addr()) {
        // SAFETY: the caller keeps the contract of the runtime's function.
        Ok((address, _)) => unsafe { give(to, pointer(address)) },
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __wrap_cudaGetSymbolSize(to: *mut usize, symbol: *const c_void) -> u32 {
    let found = runtime().variable(symbol.addr());
    match found {
        // SAFETY: the caller keeps the contract of the runtime's function.
        Ok((_, bytes)) => unsafe { give(to, usize::try_from(bytes).unwrap_or(usize::MAX)) },
        Err(code) => code,
    }
}
