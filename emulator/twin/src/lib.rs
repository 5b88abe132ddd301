//! A twin of the CUDA driver: a library over the emulated device, with those functions of the driver that the worker's
//! backend for cards and `gpu-check` call.
//!
//! Only tests use it. There is one device and one context. The effects of every operation are complete when its call
//! returns, but the virtual clock may count it as complete later. As on a card, a kernel's sticky fault is reported
//! late: the launch succeeds, and a later call fails.

#![expect(
    clippy::missing_safety_doc,
    reason = "each has the contract of the driver's function of the same name"
)]

mod clock;
mod further;
mod graphs;
mod misbehaviour;

use std::alloc::Layout;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use opt_emulator::{Config, Device, Fault, Function, Launch, Limit, LoadError, Module};

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const INVALID_DEVICE: u32 = 101;
const INVALID_IMAGE: u32 = 200;
const INVALID_HANDLE: u32 = 400;
const NOT_FOUND: u32 = 500;
const NOT_READY: u32 = 600;
const NAME: &[u8] = b"twin of a card";
/// The time limit of a kernel. A card has none, but without one a launch in the twin might never return.
const KERNEL_TIMEOUT: Duration = Duration::from_secs(120);
/// The prefix of a file whose name ends with a pid. The file tells the twin of NVML, which is in the same folder, that
/// this process has a context.
const CONTEXT_FILE: &str = "context-";
/// The file name of the script of NVML's twin.
const NVML_SCRIPT: &str = "nvml.json";
/// The alignment of pinned memory, the same as with a card's driver, and the size of the header before it. The header
/// contains the memory's length.
const PAGE: usize = 4096;
/// The distance between handles.
const HANDLES: usize = 64;
/// The size of the L2 cache, in bytes. It is small, because a flush of it is emulated too.
const L2: c_int = 64 << 10;
const L2_CACHE_SIZE: u32 = 38;
const MULTIPROCESSORS: c_uint = 16;
const SHARED_BYTES: c_uint = 97;
const COMPUTE_CAPABILITY_MAJOR: u32 = 75;
const COMPUTE_CAPABILITY_MINOR: u32 = 76;
const JIT_ERROR_LOG: u32 = 5;
const JIT_ERROR_LOG_BYTES: u32 = 6;
const PARAM_BUFFER: usize = 1;
const PARAM_BUFFER_BYTES: usize = 2;

struct Twin {
    device: Device,
    modules: HashMap<usize, Module>,
    functions: HashMap<usize, Function>,
    next: usize,
}

static TWIN: LazyLock<Mutex<Twin>> = LazyLock::new(|| {
    Mutex::new(Twin {
        device: Device::new(Config::default()),
        modules: HashMap::new(),
        functions: HashMap::new(),
        next: 0,
    })
});

fn twin() -> MutexGuard<'static, Twin> {
    TWIN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Twin {
    fn handle(&mut self) -> usize {
        self.next += HANDLES;
        self.next
    }
}

fn code(result: Result<(), Fault>) -> u32 {
    result.map_or_else(|fault| fault.code(), |()| 0)
}

/// The error code of the device's sticky fault; 0 if there is none.
fn state() -> u32 {
    twin().device.sticky().map_or(0, Fault::code)
}

unsafe fn give<T>(to: *mut T, value: T) -> u32 {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's pointer is valid for writing one value, as the driver requires.
    unsafe { to.write(value) };
    0
}

unsafe fn give_handle(to: *mut *mut c_void) -> u32 {
    let handle = twin().handle();
    // SAFETY: see the caller's contract.
    unsafe { give(to, std::ptr::without_provenance_mut(handle)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(_: c_uint) -> u32 {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> u32 {
    // SAFETY: see the caller's contract.
    if ordinal == 0 { unsafe { give(device, 0) } } else { INVALID_DEVICE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, _: c_int) -> u32 {
    if usize::try_from(length).is_ok_and(|length| NAME.len() < length) {
        // SAFETY: the caller's buffer has `length` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(NAME.as_ptr().cast(), name, NAME.len());
            name.add(NAME.len()).write(0);
        }
        return 0;
    }
    INVALID_VALUE
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], _: c_int) -> u32 {
    // SAFETY: see the caller's contract.
    unsafe { give(uuid, *b"twin-of-a-card-0") }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _: c_int) -> u32 {
    let memory = usize::try_from(twin().device.config().memory).unwrap_or(usize::MAX);
    // SAFETY: see the caller's contract.
    unsafe { give(bytes, memory) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, which: c_uint, _: c_int) -> u32 {
    let (major, minor) = twin().device.config().compute_capability;
    let found = match which {
        COMPUTE_CAPABILITY_MAJOR => c_int::try_from(major).unwrap_or(0),
        COMPUTE_CAPABILITY_MINOR => c_int::try_from(minor).unwrap_or(0),
        L2_CACHE_SIZE => L2,
        MULTIPROCESSORS => 7,
        SHARED_BYTES => c_int::try_from(opt_emulator::limits::SHARED_BYTES).unwrap_or(0),
        // The device is not integrated, and has no clocks.
        _ => 0,
    };
    // SAFETY: see the caller's contract.
    unsafe { give(value, found) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, _: c_int) -> u32 {
    announce_to_nvml();
    // SAFETY: see the caller's contract.
    unsafe { give_handle(context) }
}

/// Makes NVML's twin list this process, if the script of NVML's twin is in a folder of `LD_LIBRARY_PATH`.
fn announce_to_nvml() {
    let folders = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    for folder in std::env::split_paths(&folders).filter(|folder| folder.join(NVML_SCRIPT).exists()) {
        // Errors are ignored: a test whose process is missing from NVML's list fails.
        let _ = std::fs::write(folder.join(format!("{CONTEXT_FILE}{}", std::process::id())), "");
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(_: c_int) -> u32 {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(_: *mut c_void) -> u32 {
    state()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32 {
    let (memory, used) = {
        let twin = twin();
        (twin.device.config().memory, twin.device.used())
    };
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    // SAFETY: see the caller's contract.
    unsafe { give(free, size(memory - used)) + give(total, size(memory)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32 {
    let allocated = twin().device.alloc(bytes as u64);
    match allocated {
        // SAFETY: see the caller's contract.
        Ok(found) => unsafe { give(address, found) },
        Err(fault) => fault.code(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: u64) -> u32 {
    code(twin().device.free(address))
}

/// The layout of a header and this many bytes.
fn pinned_layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_add(PAGE)?, PAGE).ok()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, _: c_uint) -> u32 {
    let Some(layout) = pinned_layout(bytes) else { return INVALID_VALUE };
    // SAFETY: the layout has at least a header's length.
    let block = unsafe { std::alloc::alloc_zeroed(layout) };
    if block.is_null() {
        return OUT_OF_MEMORY;
    }
    // SAFETY: the block is longer than its header and aligned for a number, and the caller's pointer is valid.
    unsafe {
        block.cast::<usize>().write(bytes);
        give(at, block.add(PAGE).cast())
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(at: *mut c_void) -> u32 {
    // SAFETY: `at` came from `cuMemHostAlloc` and is freed once. Its block begins with the header, which has its
    // length.
    unsafe {
        let block = at.cast::<u8>().sub(PAGE);
        match pinned_layout(block.cast::<usize>().read()) {
            Some(layout) => std::alloc::dealloc(block, layout),
            None => return INVALID_VALUE,
        }
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> u32 {
    // SAFETY: the caller guarantees that `bytes` bytes are readable.
    let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) };
    code(twin().device.write(to, from))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: *mut c_void,
) -> u32 {
    let begun = Instant::now();
    // SAFETY: see the caller's contract.
    let copied = unsafe { cuMemcpyHtoD_v2(to, from, bytes) };
    clock::copied(stream, begun, bytes as u64);
    copied
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> u32 {
    // SAFETY: the caller guarantees that `bytes` bytes are writable.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), bytes) };
    code(twin().device.read(from, to))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: *mut c_void,
) -> u32 {
    let begun = Instant::now();
    // SAFETY: see the caller's contract.
    let copied = unsafe { cuMemcpyDtoH_v2(to, from, bytes) };
    clock::copied(stream, begun, bytes as u64);
    copied
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: *mut c_void) -> u32 {
    let begun = Instant::now();
    let filled = code(twin().device.fill(to, value, bytes as u64));
    clock::moved(stream, begun, bytes as u64);
    filled
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut *mut c_void, _: c_uint) -> u32 {
    // SAFETY: see the caller's contract.
    unsafe { give_handle(stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut *mut c_void, _: c_uint) -> u32 {
    // SAFETY: see the caller's contract.
    unsafe { give_handle(event) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: *mut c_void, stream: *mut c_void) -> u32 {
    further::record(event, stream);
    state()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: *mut c_void) -> u32 {
    if further::is_reached(event) { state() } else { NOT_READY }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut *mut c_void,
    image: *const c_void,
    count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> u32 {
    // SAFETY: PTX is terminated by a zero.
    let text = unsafe { CStr::from_ptr(image.cast()) };
    let Ok(text) = text.to_str() else { return INVALID_IMAGE };
    let mut twin = twin();
    match twin.device.load(text) {
        Ok(loaded) => {
            let handle = twin.handle();
            twin.modules.insert(handle, loaded);
            // SAFETY: see the caller's contract.
            unsafe { give(module, std::ptr::without_provenance_mut(handle)) }
        }
        Err(error) => {
            // SAFETY: there are `count` options and values.
            unsafe { log(&error, count, options, values) };
            error.code()
        }
    }
}

/// Writes a module's error to the log buffer, if the options have one.
unsafe fn log(error: &LoadError, count: c_uint, options: *mut c_uint, values: *mut *mut c_void) {
    let (mut buffer, mut room) = (std::ptr::null_mut::<u8>(), 0);
    for at in 0..count as usize {
        // SAFETY: there are `count` options and values.
        match unsafe { (*options.add(at), *values.add(at)) } {
            (JIT_ERROR_LOG, value) => buffer = value.cast(),
            (JIT_ERROR_LOG_BYTES, value) => room = value.addr(),
            _ => {}
        }
    }
    let text = error.to_string();
    let length = text.len().min(room.saturating_sub(1));
    if !buffer.is_null() && 0 < room {
        // SAFETY: the caller's buffer has `room` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer, length);
            buffer.add(length).write(0);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: *mut c_void) -> u32 {
    let mut twin = twin();
    match twin.modules.remove(&module.addr()) {
        Some(module) => code(twin.device.unload(&module)),
        None => INVALID_HANDLE,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut *mut c_void,
    module: *mut c_void,
    name: *const c_char,
) -> u32 {
    // SAFETY: a name is terminated by a zero.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let mut twin = twin();
    let Some(found) = twin.modules.get(&module.addr()).and_then(|it| it.function(&name)) else {
        return NOT_FOUND;
    };
    let handle = twin.handle();
    twin.functions.insert(handle, found);
    // SAFETY: see the caller's contract.
    unsafe { give(function, std::ptr::without_provenance_mut(handle)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetParamInfo(
    function: *mut c_void,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> u32 {
    let twin = twin();
    let Some(function) = twin.functions.get(&function.addr()) else { return INVALID_HANDLE };
    let Some(&(at, bytes)) = function.param_layout().get(index) else { return INVALID_VALUE };
    let number = |it: u64| usize::try_from(it).unwrap_or(usize::MAX);
    // SAFETY: see the caller's contract.
    unsafe { give(offset, number(at)) + give(size, number(bytes)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetAttribute(_: *mut c_void, _: c_uint, _: c_int) -> u32 {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: *mut c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: *mut c_void,
    _: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> u32 {
    let twin = twin();
    let Some(function) = twin.functions.get(&function.addr()).cloned() else { return INVALID_HANDLE };
    if misbehaviour::skips(function.name()) {
        return 0;
    }
    // SAFETY: `extra` has alternating names and values, and ends with a name of zero.
    let Some(buffer) = (unsafe { packed(extra) }) else { return INVALID_VALUE };
    let params = function.param_layout().into_iter().map(|(at, bytes)| {
        let at = usize::try_from(at).ok()?;
        Some(buffer.get(at..at.checked_add(usize::try_from(bytes).ok()?)?)?.to_vec())
    });
    let Some(params) = params.collect() else { return INVALID_VALUE };
    let launch = Launch {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared_bytes: u64::from(shared_bytes),
        params,
        limit: Limit { time: KERNEL_TIMEOUT, ..Limit::default() },
    };
    drop(twin);
    graphs::record(function, launch).map_or(0, |(function, launch)| run(&function, &launch, stream))
}

/// Runs a launch to its end. The virtual clock adds its time to the stream.
fn run(function: &Function, launch: &Launch, stream: *mut c_void) -> u32 {
    let begun = Instant::now();
    let launched = twin().device.launch(function, launch);
    match launched {
        Ok(summary) => {
            clock::ran(stream, begun, summary.warp_instructions);
            0
        }
        // A later call reports the fault.
        Err(fault) if fault.is_sticky() => 0,
        Err(fault) => fault.code(),
    }
}

/// Copies the buffer that holds all parameters.
unsafe fn packed(extra: *mut *mut c_void) -> Option<Vec<u8>> {
    let (mut buffer, mut bytes) = (std::ptr::null::<u8>(), 0);
    let mut at = extra;
    // SAFETY: the caller guarantees that a value follows each name that is not zero.
    unsafe {
        loop {
            match (*at).addr() {
                PARAM_BUFFER => buffer = (*at.add(1)).cast(),
                PARAM_BUFFER_BYTES => bytes = (*at.add(1)).cast::<usize>().read(),
                0 => break,
                _ => return None,
            }
            at = at.add(2);
        }
        (!buffer.is_null()).then(|| std::slice::from_raw_parts(buffer, bytes).to_vec())
    }
}
