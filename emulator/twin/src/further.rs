//! Functions that the backend does not need for verification, among them pools, copies within the device, and event
//! times.
//!
//! Times come from the host's clock or from the virtual clock.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Instant;

use super::clock;
use super::misbehaviour::misbehave;
use super::{
    INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, code, cuMemAlloc_v2, cuMemFree_v2, give, give_handle,
    state, twin,
};

/// The CUDA version in the driver's notation.
const VERSION: c_int = 12080;
/// A PCI address that no machine has.
const PCI_ADDRESS: &[u8] = b"ffff:ff:1f.7\0";
/// The offset of `maxSize` in `CUmemPoolProps`, after two enumerations, a location of two numbers, and a pointer.
const MAX_SIZE: usize = 24;

/// Pools by handle.
static POOLS: LazyLock<Mutex<HashMap<usize, Pool>>> = LazyLock::new(Mutex::default);
/// The moments at which events were recorded, by handle.
static RECORDED: LazyLock<Mutex<HashMap<usize, Instant>>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Pool {
    /// The maximum number of allocated bytes; 0 means no limit.
    limit: usize,
    /// Sizes by address.
    live: HashMap<u64, usize>,
}

/// Only the twin has this function, so a program can find out that it does not drive a card.
#[unsafe(no_mangle)]
pub extern "C" fn opt_cuda_twin() {}

pub(crate) fn record(event: *mut c_void, stream: *mut c_void) {
    RECORDED.lock().unwrap_or_else(PoisonError::into_inner).insert(event.addr(), clock::next(stream));
}

/// Returns true if an event was reached. An event that was never recorded counts as reached, as in the driver.
pub(crate) fn is_reached(event: *mut c_void) -> bool {
    let recorded = RECORDED.lock().unwrap_or_else(PoisonError::into_inner);
    recorded.get(&event.addr()).is_none_or(|&at| at <= Instant::now())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> u32 {
    // SAFETY: see the caller's contract.
    unsafe { give(version, VERSION) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(address: *mut c_char, length: c_int, _: c_int) -> u32 {
    if usize::try_from(length).is_ok_and(|length| PCI_ADDRESS.len() <= length) {
        // SAFETY: the caller's buffer has `length` bytes.
        unsafe { std::ptr::copy_nonoverlapping(PCI_ADDRESS.as_ptr().cast(), address, PCI_ADDRESS.len()) };
        return 0;
    }
    INVALID_VALUE
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> u32 {
    clock::wait_for_all();
    state()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: *mut c_void) -> u32 {
    clock::wait(stream);
    state()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: *mut c_void) -> u32 {
    misbehave("cuMemcpyDtoDAsync_v2");
    let begun = Instant::now();
    let mut contents = vec![0; bytes];
    let mut twin = twin();
    let copied = code(twin.device.read(from, &mut contents).and_then(|()| twin.device.write(to, &contents)));
    clock::moved(stream, begun, bytes as u64);
    copied
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(ms: *mut f32, start: *mut c_void, end: *mut c_void) -> u32 {
    let recorded = RECORDED.lock().unwrap_or_else(PoisonError::into_inner);
    match (recorded.get(&start.addr()), recorded.get(&end.addr())) {
        // SAFETY: see the caller's contract.
        (Some(start), Some(end)) => unsafe { give(ms, end.duration_since(*start).as_secs_f32() * 1e3) },
        _ => INVALID_HANDLE,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolCreate(pool: *mut *mut c_void, properties: *const c_void) -> u32 {
    misbehave("cuMemPoolCreate");
    // SAFETY: the properties are those of the driver's header, and the handle is written by the call.
    let (limit, status) = unsafe {
        (properties.cast::<u8>().add(MAX_SIZE).cast::<usize>().read_unaligned(), give_handle(pool))
    };
    if status == 0 {
        // SAFETY: the call above has written it.
        let handle = unsafe { (*pool).addr() };
        let pool = Pool { limit, ..Pool::default() };
        POOLS.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, pool);
    }
    status
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolDestroy(pool: *mut c_void) -> u32 {
    let known = POOLS.lock().unwrap_or_else(PoisonError::into_inner).remove(&pool.addr());
    if known.is_some() { 0 } else { INVALID_HANDLE }
}

/// Allocates from a pool, whose limit applies to the sum of its allocations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocFromPoolAsync(
    address: *mut u64,
    bytes: usize,
    pool: *mut c_void,
    _: *mut c_void,
) -> u32 {
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(pool) = pools.get_mut(&pool.addr()) else { return INVALID_HANDLE };
    let used: usize = pool.live.values().sum();
    if 0 < pool.limit && pool.limit < used.saturating_add(bytes) {
        return OUT_OF_MEMORY;
    }
    // SAFETY: see the caller's contract.
    let status = unsafe { cuMemAlloc_v2(address, bytes) };
    if status == 0 {
        // SAFETY: the call above has written it.
        pool.live.insert(unsafe { *address }, bytes);
    }
    status
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(address: u64, _: *mut c_void) -> u32 {
    for pool in POOLS.lock().unwrap_or_else(PoisonError::into_inner).values_mut() {
        pool.live.remove(&address);
    }
    // SAFETY: takes no pointers.
    unsafe { cuMemFree_v2(address) }
}
