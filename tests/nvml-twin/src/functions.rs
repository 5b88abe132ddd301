//! The NVML functions of the twin, with the names and layouts of NVML's header.

use std::ffi::{CStr, c_char, c_uint};
use std::ptr;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlMemory_v2_t, nvmlProcessInfo_t, nvmlReturn_t, nvmlUtilization_t,
};

use super::play::{DeviceNow, Scene};
use super::script::Device;

const SUCCESS: nvmlReturn_t = 0;
const UNINITIALIZED: nvmlReturn_t = 1;
const INVALID_ARGUMENT: nvmlReturn_t = 2;
const NOT_SUPPORTED: nvmlReturn_t = 3;
const INSUFFICIENT_SIZE: nvmlReturn_t = 7;

type Answer = Result<(), nvmlReturn_t>;

fn code(answer: Answer) -> nvmlReturn_t {
    answer.err().unwrap_or(SUCCESS)
}

/// Returns the current state of the devices. Fails with the error code that the script gives for this function, or with
/// `UNINITIALIZED` if the script cannot be read.
fn scene(function: &str) -> Result<Scene, nvmlReturn_t> {
    let scene = Scene::now().ok_or(UNINITIALIZED)?;
    match scene.script.fails.get(function).or_else(|| scene.script.fails.get("*")) {
        Some(&code) => Err(code),
        None => Ok(scene),
    }
}

/// Calls `then` with the device that a handle stands for. A handle is the device's index, counted from one.
fn with_device<T>(
    function: &str,
    handle: nvmlDevice_t,
    then: impl FnOnce(&Device, &DeviceNow) -> Result<T, nvmlReturn_t>,
) -> Result<T, nvmlReturn_t> {
    let scene = scene(function)?;
    let index = handle.addr().checked_sub(1).ok_or(INVALID_ARGUMENT)?;
    match (scene.script.devices.get(index), scene.devices.get(index)) {
        (Some(device), Some(now)) => then(device, now),
        _ => Err(INVALID_ARGUMENT),
    }
}

fn store<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: NVML's callers pass valid pointers or null.
    unsafe { to.write(value) };
    Ok(())
}

fn store_text(to: *mut c_char, room: c_uint, text: &str) -> Answer {
    if to.is_null() || room as usize <= text.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: the caller's buffer has `room` bytes, which are enough for the text and its terminating zero.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    if Scene::now().is_some() { SUCCESS } else { UNINITIALIZED }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(_: nvmlReturn_t) -> *const c_char {
    const TEXT: &CStr = c"an error from the script";
    TEXT.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> nvmlReturn_t {
    let answer = scene("nvmlDeviceGetCount_v2")
        .and_then(|scene| store(count, c_uint::try_from(scene.devices.len()).map_err(|_| INVALID_ARGUMENT)?));
    code(answer)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, handle: *mut nvmlDevice_t) -> nvmlReturn_t {
    let answer = scene("nvmlDeviceGetHandleByIndex_v2").and_then(|scene| {
        let index = index as usize;
        if scene.devices.len() <= index {
            return Err(INVALID_ARGUMENT);
        }
        store(handle, ptr::without_provenance_mut(index + 1))
    });
    code(answer)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUUID(handle: nvmlDevice_t, to: *mut c_char, room: c_uint) -> nvmlReturn_t {
    code(with_device("nvmlDeviceGetUUID", handle, |device, _| store_text(to, room, &device.uuid)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetName(handle: nvmlDevice_t, to: *mut c_char, room: c_uint) -> nvmlReturn_t {
    code(with_device("nvmlDeviceGetName", handle, |device, _| store_text(to, room, &device.name)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: nvmlDevice_t, to: *mut nvmlMemory_v2_t) -> nvmlReturn_t {
    code(with_device("nvmlDeviceGetMemoryInfo_v2", handle, |device, now| {
        let total = device.total_mib.ok_or(NOT_SUPPORTED)? << 20;
        let used = (now.used_mib << 20).min(total);
        store(to, nvmlMemory_v2_t { version: 2, total, reserved: 0, free: total - used, used })
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUtilizationRates(
    handle: nvmlDevice_t,
    to: *mut nvmlUtilization_t,
) -> nvmlReturn_t {
    code(with_device("nvmlDeviceGetUtilizationRates", handle, |device, _| {
        store(to, nvmlUtilization_t { gpu: device.utilisation.ok_or(NOT_SUPPORTED)?, memory: 0 })
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: nvmlDevice_t,
    count: *mut c_uint,
    to: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    code(with_device("nvmlDeviceGetComputeRunningProcesses_v3", handle, |_, now| {
        list(&now.listed, count, to)
    }))
}

/// Lists no processes, because all processes of a script are compute processes.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    handle: nvmlDevice_t,
    count: *mut c_uint,
    to: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    code(with_device("nvmlDeviceGetGraphicsRunningProcesses_v3", handle, |_, _| list(&[], count, to)))
}

/// Returns a list as NVML does: stores the number of elements in `count`, and the elements if they fit.
fn list(processes: &[(u32, u64)], count: *mut c_uint, to: *mut nvmlProcessInfo_t) -> Answer {
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: `count` is the caller's pointer to the number of elements that fit.
    let room = unsafe { count.read() } as usize;
    store(count, c_uint::try_from(processes.len()).map_err(|_| INVALID_ARGUMENT)?)?;
    if room < processes.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    for (index, &(pid, mib)) in processes.iter().enumerate() {
        let info = nvmlProcessInfo_t {
            pid,
            usedGpuMemory: mib << 20,
            gpuInstanceId: u32::MAX,
            computeInstanceId: u32::MAX,
        };
        // SAFETY: the caller's count promises room for at least this many elements.
        unsafe { to.add(index).write(info) };
    }
    Ok(())
}
