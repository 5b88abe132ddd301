//! Tests NVML's figures per process: whether it lists this process, what a query costs, and how outdated the answer is.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libloading::Library;

use crate::cuda::Device;
use crate::table::{Row, mib};

const QUERIES: usize = 200;
const HELD: u64 = 512 << 20;
const TIMEOUT: Duration = Duration::from_secs(4);
/// The most processes that are listed.
const MAX_PROCESSES: usize = 256;
/// The value that NVML reports for an unknown number.
const UNKNOWN: u64 = u64::MAX;

/// `nvmlProcessInfo_t` of the third version of the call.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

type Init = unsafe extern "C" fn() -> i32;
type HandleByIndex = unsafe extern "C" fn(u32, *mut *mut c_void) -> i32;
type Processes = unsafe extern "C" fn(*mut c_void, *mut u32, *mut ProcessInfo) -> i32;

struct Nvml {
    processes: Processes,
    device: *mut c_void,
    /// The library into which the function pointers point. It must stay loaded.
    _library: Library,
}

impl Nvml {
    fn open(device: u32) -> Result<Self> {
        // SAFETY: the driver's own library, whose constructors are as harmless as those of libcuda.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.context("loading libnvidia-ml.so.1")?;
        // SAFETY: names and signatures are those of NVML's public interface; the library outlives the pointers.
        unsafe {
            let init = *library.get::<Init>(b"nvmlInit_v2\0")?;
            let handle = *library.get::<HandleByIndex>(b"nvmlDeviceGetHandleByIndex_v2\0")?;
            let processes = *library.get::<Processes>(b"nvmlDeviceGetComputeRunningProcesses_v3\0")?;
            let result = init();
            ensure!(result == 0, "nvmlInit: {result}");
            let mut found = std::ptr::null_mut();
            let result = handle(device, &raw mut found);
            ensure!(result == 0, "nvmlDeviceGetHandleByIndex: {result}");
            Ok(Self { processes, device: found, _library: library })
        }
    }

    fn list(&self) -> Result<Vec<ProcessInfo>> {
        let mut all = vec![ProcessInfo::default(); MAX_PROCESSES];
        let mut count = u32::try_from(MAX_PROCESSES)?;
        // SAFETY: the array has `count` items, and the handle comes from NVML.
        let result = unsafe { (self.processes)(self.device, &raw mut count, all.as_mut_ptr()) };
        ensure!(result == 0, "nvmlDeviceGetComputeRunningProcesses: {result}");
        all.truncate(count as usize);
        Ok(all)
    }

    fn own(&self) -> Result<Option<u64>> {
        let own = std::process::id();
        let found = self.list()?.into_iter().find(|process| process.pid == own);
        Ok(found.map(|process| process.used).filter(|&used| used != UNKNOWN))
    }
}

pub(crate) fn rows(device: i32) -> Result<Vec<Row>> {
    let open = Device::open(device)?;
    let nvml = Nvml::open(u32::try_from(device).context("a device number")?)?;
    let mut times: Vec<Duration> = Vec::with_capacity(QUERIES);
    for _ in 0..QUERIES {
        let started = Instant::now();
        nvml.list()?;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    let shown = |at: usize| format!("{:.0} µs", times[at].as_secs_f64() * 1e6);
    let cost = Row::new(
        "NVML: cost of asking for all processes",
        shown(QUERIES / 2),
        format!("median of {QUERIES}; worst {}", shown(QUERIES - 1)),
    );
    let Some(used) = nvml.own()? else {
        let known = nvml.list()?.len();
        let figures = format!("{known} processes listed; NVML knows pids of the host, not of a container");
        return Ok(vec![cost, Row::new("NVML: memory of this process", "not shown", figures)]);
    };
    let own = Row::new("NVML: memory of this process", mib(used), "with a context and nothing else");
    let wait = |wanted: &dyn Fn(u64) -> bool| -> Result<Option<Duration>> {
        let started = Instant::now();
        while started.elapsed() < TIMEOUT {
            if nvml.own()?.is_some_and(wanted) {
                return Ok(Some(started.elapsed()));
            }
        }
        Ok(None)
    };
    let memory = open.allocate(HELD)?;
    let risen = wait(&|now| used + HELD / 2 <= now)?;
    open.release(memory)?;
    let fallen = wait(&|now| now < used + HELD / 2)?;
    let shown = |time: Option<Duration>| match time {
        Some(time) => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        None => format!("not within {} s", TIMEOUT.as_secs()),
    };
    let stale = Row::new(
        "NVML: how late it shows an allocation",
        shown(risen),
        format!("{}; its release: {}", mib(HELD), shown(fallen)),
    );
    Ok(vec![cost, own, stale])
}
