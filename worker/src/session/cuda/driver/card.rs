//! A card, accessed through the machine's CUDA driver.
//!
//! Uses the primary context, which becomes current in the thread that opens the card. Copies and calls have separate
//! streams, and neither waits for the legacy stream.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUcontext, CUdevice, CUevent, CUfunction, CUmodule, CUstream};
use opt_shared::formula::CARD_GRAIN;
use opt_shared::units::Bytes;

use super::code::Code;
use super::functions::{Functions, Further, NoDriver, ok};
use super::gauges::Gauges;
use super::packed::packed;
use super::stamps::{MadeGraphs, Stamps};
use super::timing::{GraphId, Stamp};
use super::{
    Card, DeviceMemory, Driver, DriverError, FunctionId, Launch, Mark, ModuleId, Pinned, Queue, Site,
};
use crate::session::pace::Pace;

/// The amount of dynamic shared memory, in bytes, that a kernel may use without requesting more.
const PLAIN_SHARED: u32 = 48 << 10;
/// The size of the buffer for the error log of a module.
const LOG: usize = 8 << 10;
/// The size of the buffer for the card's name and its final zero.
const NAME: i32 = 256;

/// The time limit for copying memory of the host to the card with `write`. A write takes microseconds to milliseconds.
const WRITE_LIMIT: Duration = Duration::from_secs(60);

const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_DISABLE_TIMING: c_uint = 2;
const ATTRIBUTE_INTEGRATED: c_uint = 18;
const ATTRIBUTE_L2: c_uint = 38;
const JIT_ERROR_LOG: c_uint = 5;
const JIT_ERROR_LOG_BYTES: c_uint = 6;
const FUNCTION_MAX_DYNAMIC_SHARED: c_uint = 8;
/// The markers `CU_LAUNCH_PARAM_END`, `…_BUFFER_POINTER` and `…_BUFFER_SIZE`.
const PARAM_END: usize = 0;
const PARAM_BUFFER: usize = 1;
const PARAM_BUFFER_BYTES: usize = 2;

pub(crate) struct CardDriver {
    functions: Functions,
    further: Further,
    card: Card,
    device: CUdevice,
    context: CUcontext,
    copies: CUstream,
    calls: CUstream,
    modules: BTreeMap<u64, CUmodule>,
    kernels: BTreeMap<u64, CUfunction>,
    /// The offsets of the parameters of those kernels whose parameters were queried.
    offsets: BTreeMap<u64, Vec<usize>>,
    /// The number of the last mark, module or kernel.
    last_number: u64,
    /// The events of the marks that are not known to have been reached, keyed by the mark's number.
    recorded: BTreeMap<u64, CUevent>,
    /// Events that can be reused.
    idle: Vec<CUevent>,
    stamps: Stamps,
    graphs: MadeGraphs,
    /// Loaded when the pace is first read.
    gauges: Option<Gauges>,
    /// Set when the context is given up. Memory is not freed afterwards, because that could wait for a kernel that
    /// never ends.
    given_up: Arc<AtomicBool>,
}

// SAFETY: the handles belong to the process, not to a thread. The driver accepts them in every thread in which their
// context is current, which `enter_thread` ensures, and `&mut self` allows one thread at a time.
unsafe impl Send for CardDriver {}

impl CardDriver {
    pub(crate) fn open(ordinal: u32) -> Result<Self, NoDriver> {
        let (functions, further) = Functions::load()?;
        Self::on(functions, further, ordinal).map_err(|error| NoDriver::Device { ordinal, error })
    }

    fn on(functions: Functions, further: Further, ordinal: u32) -> Result<Self, DriverError> {
        let device = device_of(&functions, ordinal)?;
        let mut context = std::ptr::null_mut();
        let (mut copies, mut calls) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the order that the driver requires; each function writes through the pointer that it gets.
        unsafe {
            ok("cuDevicePrimaryCtxRetain", (functions.retain)(&raw mut context, device))?;
            ok("cuCtxSetCurrent", (functions.set_current)(context))?;
            ok("cuStreamCreate", (functions.stream)(&raw mut copies, STREAM_NON_BLOCKING))?;
            ok("cuStreamCreate", (functions.stream)(&raw mut calls, STREAM_NON_BLOCKING))?;
        }
        let card = describe(&functions, device)?;
        Ok(Self {
            functions,
            further,
            card,
            device,
            context,
            copies,
            calls,
            modules: BTreeMap::new(),
            kernels: BTreeMap::new(),
            offsets: BTreeMap::new(),
            last_number: 0,
            recorded: BTreeMap::new(),
            idle: Vec::new(),
            stamps: Stamps::default(),
            graphs: MadeGraphs::default(),
            gauges: None,
            given_up: Arc::default(),
        })
    }

    fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    fn stream(&self, queue: Queue) -> CUstream {
        match queue {
            Queue::Copies => self.copies,
            Queue::Calls => self.calls,
        }
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn kernel(&self, function: FunctionId) -> Result<CUfunction, DriverError> {
        let unknown = DriverError::new("looking up a kernel", Code::INVALID_HANDLE);
        self.kernels.get(&function.0).copied().ok_or(unknown)
    }
}

/// The driver's handle for a device. Needs no context.
pub(super) fn device_of(functions: &Functions, ordinal: u32) -> Result<CUdevice, DriverError> {
    let no_such = DriverError::new("cuDeviceGet", Code::INVALID_DEVICE);
    let number = i32::try_from(ordinal).map_err(|_| no_such)?;
    let mut device = 0;
    // SAFETY: the order that the driver requires; the second call writes the handle.
    unsafe {
        ok("cuInit", (functions.init)(0))?;
        ok("cuDeviceGet", (functions.device)(&raw mut device, number))?;
    }
    Ok(device)
}

/// Describes a device. Needs no context.
pub(super) fn describe(functions: &Functions, device: CUdevice) -> Result<Card, DriverError> {
    let mut name = [0; 256];
    // SAFETY: a plain structure of the driver's interface, for which all zeros are valid.
    let mut uuid = unsafe { std::mem::zeroed() };
    let (mut total, mut integrated, mut l2) = (0, 0, 0);
    // SAFETY: each function writes through the pointer that it gets. The name ends with a zero, because the size passed
    // to the driver is one byte smaller than the buffer.
    let name = unsafe {
        ok("cuDeviceGetName", (functions.name)(name.as_mut_ptr(), NAME - 1, device))?;
        ok("cuDeviceGetUuid", (functions.uuid)(&raw mut uuid, device))?;
        ok("cuDeviceTotalMem", (functions.total)(&raw mut total, device))?;
        ok("cuDeviceGetAttribute", (functions.attribute)(&raw mut integrated, ATTRIBUTE_INTEGRATED, device))?;
        ok("cuDeviceGetAttribute", (functions.attribute)(&raw mut l2, ATTRIBUTE_L2, device))?;
        CStr::from_ptr(name.as_ptr())
    };
    Ok(Card {
        name: name.to_string_lossy().into_owned(),
        uuid: Some(uuid_text(uuid.bytes.map(|byte| byte.to_le_bytes()[0]))),
        total: Bytes::from(total),
        integrated: integrated != 0,
        grain: CARD_GRAIN,
        l2: Bytes::new(u64::try_from(l2).unwrap_or(0)),
        checks_accesses: false,
    })
}

/// The UUID as NVML writes it.
fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

impl Driver for CardDriver {
    fn enter_thread(&mut self) -> Result<(), DriverError> {
        // SAFETY: the context is retained until the driver is dropped.
        ok("cuCtxSetCurrent", unsafe { (self.functions.set_current)(self.context) })
    }

    fn card(&self) -> &Card {
        &self.card
    }

    fn memory(&mut self) -> Result<DeviceMemory, DriverError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are written by the call.
        ok("cuMemGetInfo", unsafe { (self.functions.memory)(&raw mut free, &raw mut total) })?;
        Ok(DeviceMemory { free: Bytes::from(free), total: Bytes::from(total) })
    }

    fn allocate(&mut self, bytes: Bytes) -> Result<u64, DriverError> {
        let mut address = 0;
        // SAFETY: the address is written by the call.
        ok("cuMemAlloc", unsafe { (self.functions.allocate)(&raw mut address, bytes.to_usize()) })?;
        Ok(address)
    }

    fn free(&mut self, address: u64) -> Result<(), DriverError> {
        if self.is_given_up() {
            return Ok(());
        }
        // SAFETY: the driver keeps a list of its allocations, and refuses other addresses.
        ok("cuMemFree", unsafe { (self.functions.free)(address) })
    }

    fn pinned(&mut self, bytes: Bytes) -> Result<Pinned, DriverError> {
        super::pinned::allocate(&self.functions, bytes, &self.given_up)
    }

    unsafe fn upload(&mut self, to: u64, from: *const u8, bytes: usize) -> Result<(), DriverError> {
        // SAFETY: as the caller has promised.
        ok("cuMemcpyHtoDAsync", unsafe { (self.functions.upload)(to, from.cast(), bytes, self.copies) })
    }

    unsafe fn download(&mut self, into: *mut u8, from: u64, bytes: usize) -> Result<(), DriverError> {
        // SAFETY: as the caller has promised.
        ok("cuMemcpyDtoHAsync", unsafe { (self.functions.download)(into.cast(), from, bytes, self.copies) })
    }

    fn fill(&mut self, queue: Queue, at: u64, value: u8, bytes: Bytes) -> Result<(), DriverError> {
        let stream = self.stream(queue);
        // SAFETY: the driver touches only device memory here, and refuses addresses that it did not allocate.
        ok("cuMemsetD8Async", unsafe { (self.functions.fill)(at, value, bytes.to_usize(), stream) })
    }

    fn read(&mut self, from: u64, into: &mut [u8]) -> Result<(), DriverError> {
        // SAFETY: the destination is borrowed until the call returns, and the copy is over then.
        ok("cuMemcpyDtoH", unsafe { (self.functions.read)(into.as_mut_ptr().cast(), from, into.len()) })
    }

    fn write(&mut self, to: u64, bytes: &[u8]) -> Result<(), DriverError> {
        // `cuMemcpyHtoD` may return before bytes from pageable memory have arrived, and launches do not wait for its
        // stream.
        // SAFETY: from pageable memory, the call returns only after it has read the source.
        ok("cuMemcpyHtoDAsync", unsafe {
            (self.functions.upload)(to, bytes.as_ptr().cast(), bytes.len(), self.copies)
        })?;
        let (arrived, started) = (self.mark(Queue::Copies)?, Instant::now());
        while !self.is_over(arrived)? {
            if WRITE_LIMIT < started.elapsed() {
                return Err(DriverError::new("waiting for cuMemcpyHtoDAsync", Code::NOT_READY));
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn mark(&mut self, queue: Queue) -> Result<Mark, DriverError> {
        let event = match self.idle.pop() {
            Some(event) => event,
            None => {
                let mut event = std::ptr::null_mut();
                // SAFETY: the event is written by the call.
                ok("cuEventCreate", unsafe { (self.functions.event)(&raw mut event, EVENT_DISABLE_TIMING) })?;
                event
            }
        };
        // SAFETY: an event and a stream of this context.
        ok("cuEventRecord", unsafe { (self.functions.record)(event, self.stream(queue)) })?;
        let number = self.number();
        self.recorded.insert(number, event);
        Ok(Mark(number))
    }

    fn is_over(&mut self, mark: Mark) -> Result<bool, DriverError> {
        if self.is_given_up() {
            return Err(DriverError::new("cuEventQuery", Code::CONTEXT_IS_DESTROYED));
        }
        let Some(&event) = self.recorded.get(&mark.0) else { return Ok(true) };
        // SAFETY: an event that was recorded and not destroyed.
        let code = unsafe { (self.functions.query)(event) };
        if code == Code::NOT_READY.0 {
            return Ok(false);
        }
        ok("cuEventQuery", code)?;
        self.recorded.remove(&mark.0);
        self.idle.push(event);
        Ok(true)
    }

    fn load(&mut self, image: &[u8]) -> Result<ModuleId, DriverError> {
        // PTX has to end with a zero byte. Machine code contains its own length, so the byte does no harm there.
        let mut image = image.to_vec();
        image.push(0);
        let mut log = vec![0_u8; LOG];
        let mut options = [JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(LOG - 1)];
        let mut module = std::ptr::null_mut();
        // SAFETY: two options with their values. The log is one byte longer than the size passed, and all of them
        // outlive the call.
        let code = unsafe {
            (self.functions.load)(
                &raw mut module,
                image.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if let Err(error) = ok("cuModuleLoadDataEx", code) {
            let text = CStr::from_bytes_until_nul(&log).map(|log| log.to_string_lossy().trim().to_owned());
            let text = text.ok().filter(|text| !text.is_empty());
            let site = text.map(|text| Box::new(Site { text, ..Site::default() }));
            return Err(DriverError { site, ..error });
        }
        let number = self.number();
        self.modules.insert(number, module);
        Ok(ModuleId(number))
    }

    fn unload(&mut self, module: ModuleId) -> Result<(), DriverError> {
        let Some(module) = self.modules.remove(&module.0).filter(|_| !self.is_given_up()) else {
            return Ok(());
        };
        // SAFETY: loaded once and unloaded once; no later launch uses it.
        ok("cuModuleUnload", unsafe { (self.functions.unload)(module) })
    }

    fn function(&mut self, module: ModuleId, symbol: &str) -> Result<FunctionId, DriverError> {
        let not_found = || DriverError::new("cuModuleGetFunction", Code::NOT_FOUND);
        let module = self.modules.get(&module.0).copied().ok_or_else(not_found)?;
        let symbol = CString::new(symbol).map_err(|_| not_found())?;
        let mut function = std::ptr::null_mut();
        // SAFETY: a module that is loaded, and a name that ends with a zero.
        let code = unsafe { (self.functions.function)(&raw mut function, module, symbol.as_ptr()) };
        ok("cuModuleGetFunction", code)?;
        let number = self.number();
        self.kernels.insert(number, function);
        Ok(FunctionId(number))
    }

    fn parameters(&mut self, function: FunctionId) -> Result<Option<Vec<usize>>, DriverError> {
        let (number, function) = (function.0, self.kernel(function)?);
        let Some(info) = self.further.parameter_info else { return Ok(None) };
        let (mut sizes, mut offsets) = (Vec::new(), Vec::new());
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: a kernel of a loaded module; both numbers are written by the call.
            match unsafe { info(function, sizes.len(), &raw mut offset, &raw mut size) } {
                0 => {
                    sizes.push(size);
                    offsets.push(offset);
                }
                code if Code(code) == Code::INVALID_VALUE => {
                    self.offsets.insert(number, offsets);
                    return Ok(Some(sizes));
                }
                code => return ok("cuFuncGetParamInfo", code).map(|()| None),
            }
        }
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), DriverError> {
        let function = self.kernel(launch.function)?;
        if PLAIN_SHARED < launch.shared_bytes {
            let bytes = i32::try_from(launch.shared_bytes).unwrap_or(i32::MAX);
            // SAFETY: a kernel of a loaded module, and a number.
            let code = unsafe {
                (self.functions.set_function_attribute)(function, FUNCTION_MAX_DYNAMIC_SHARED, bytes)
            };
            ok("cuFuncSetAttribute", code)?;
        }
        // All parameters are in one buffer whose size is passed, so the driver reads no byte beyond it.
        let offsets = self.offsets.get(&launch.function.0).map_or(&[][..], Vec::as_slice);
        let mut buffer = packed(&launch.params, offsets);
        let mut length = buffer.len();
        let mut extra: [*mut c_void; 5] = [
            std::ptr::without_provenance_mut(PARAM_BUFFER),
            buffer.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(PARAM_BUFFER_BYTES),
            (&raw mut length).cast(),
            std::ptr::without_provenance_mut(PARAM_END),
        ];
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        // SAFETY: buffer and length outlive the call, which copies them.
        let code = unsafe {
            (self.functions.launch)(
                function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                launch.shared_bytes,
                self.calls,
                std::ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        };
        ok("cuLaunchKernel", code)
    }

    fn cannot_time(&self) -> Option<&'static str> {
        self.further.elapsed.is_none().then_some("the CUDA driver has no `cuEventElapsedTime`")
    }

    fn lacks(&self) -> Vec<&'static str> {
        let Further { copy, graphs, .. } = self.further;
        let copy = copy.is_none().then_some("no copy rate: the CUDA driver has no `cuMemcpyDtoDAsync`");
        let graphs = graphs.is_none().then_some("no graphs: the CUDA driver lacks a function for them");
        copy.into_iter().chain(graphs).collect()
    }

    fn stamp(&mut self) -> Result<Stamp, DriverError> {
        self.stamps.record(&self.functions, self.calls)
    }

    fn between(&mut self, from: Stamp, to: Stamp) -> Result<Duration, DriverError> {
        let lacking = DriverError::new("cuEventElapsedTime", Code::NOT_SUPPORTED);
        self.stamps.between(self.further.elapsed.ok_or(lacking)?, from, to)
    }

    fn clear_stamps(&mut self) {
        self.stamps.clear();
    }

    fn copy(&mut self, to: u64, from: u64, bytes: Bytes) -> Result<bool, DriverError> {
        let Some(copy) = self.further.copy else { return Ok(false) };
        // SAFETY: the driver touches only device memory here, and refuses addresses that it did not allocate.
        ok("cuMemcpyDtoDAsync", unsafe { copy(to, from, bytes.to_usize(), self.calls) }).map(|()| true)
    }

    fn graph(&mut self, launches: &[Launch]) -> Result<Option<GraphId>, DriverError> {
        let Some(graphs) = self.further.graphs else { return Ok(None) };
        let mut made = std::mem::take(&mut self.graphs);
        let stream = self.calls;
        let recorded =
            made.record(&graphs, stream, || launches.iter().try_for_each(|launch| self.launch(launch)));
        self.graphs = made;
        recorded.map(Some)
    }

    fn launch_graph(&mut self, graph: GraphId) -> Result<(), DriverError> {
        let lacking = DriverError::new("cuGraphLaunch", Code::NOT_SUPPORTED);
        self.graphs.launch(&self.further.graphs.ok_or(lacking)?, graph, self.calls)
    }

    fn drop_graph(&mut self, graph: GraphId) {
        if let Some(graphs) = self.further.graphs.filter(|_| !self.is_given_up()) {
            self.graphs.drop(&graphs, graph);
        }
    }

    fn pace(&mut self) -> Pace {
        let uuid = self.card.uuid.clone().unwrap_or_default();
        self.gauges.get_or_insert_with(|| Gauges::of(uuid)).read()
    }

    /// Gives the context up, and always fails: once a process's context has failed, the driver fails every call.
    fn replace(&mut self) -> Result<(), DriverError> {
        self.given_up.store(true, Ordering::Relaxed);
        Err(DriverError::new("replacing the context", Code::NOT_SUPPORTED))
    }
}

impl Drop for CardDriver {
    fn drop(&mut self) {
        if self.is_given_up() {
            return;
        }
        // SAFETY: the context was retained once, and is not used after this. Its memory and modules are released with
        // it.
        let _ = unsafe { (self.functions.release)(self.device) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_is_written_as_nvml_writes_it() {
        let bytes = [0xab, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        assert_eq!(uuid_text(bytes), "GPU-ab010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
