//! The interface of a CUDA driver: the functions that this backend uses, and the errors that they return.
//!
//! There are two queues, one for copies and one for calls, and each runs in order. The host memory of a copy must stay
//! valid until a later mark is reached. Drivers do not deal with caps or verdicts.

pub(super) mod card;
pub(super) mod code;
pub(super) mod emulated;
mod functions;
mod gauges;
mod packed;
mod pinned;
pub(super) mod probe;
mod stamps;
pub(super) mod timing;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use opt_shared::outcome::EmulatedKernel;
use opt_shared::units::Bytes;

use self::code::Code;
pub(crate) use self::functions::NoDriver;
use self::timing::{GraphId, Stamp};
use crate::session::pace::Pace;

/// The driver of a worker. A replay uses it from two threads: one makes calls, and one fills the pool.
#[derive(Clone)]
pub(super) struct SharedDriver(Arc<Mutex<Box<dyn Driver>>>);

impl SharedDriver {
    pub(super) fn new(driver: Box<dyn Driver>) -> Self {
        Self(Arc::new(Mutex::new(driver)))
    }

    /// Locks the driver. While the guard is alive, do not lock the driver again in this thread: the second call would
    /// never return.
    pub(super) fn lock(&self) -> MutexGuard<'_, Box<dyn Driver>> {
        // After a panic, the worker ends or is replaced, so nobody uses a driver that is half-changed for long.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) name: String,
    /// As NVML writes it: `GPU-…`. `None` for the emulated device.
    pub(crate) uuid: Option<String>,
    pub(crate) total: Bytes,
    /// True if the device shares its memory with the CPU.
    pub(crate) integrated: bool,
    /// The unit in which allocations are counted: the size of each is rounded up to a multiple of this.
    pub(crate) grain: Bytes,
    /// The size of its L2 cache; zero if the driver does not report it.
    pub(crate) l2: Bytes,
    /// True if the device checks every access against its live buffers, which then need no bands.
    pub(crate) checks_accesses: bool,
}

/// Memory of the whole device, over all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceMemory {
    pub(crate) free: Bytes,
    pub(crate) total: Bytes,
}

/// A queue of operations, which run in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    Copies,
    Calls,
}

/// A position in a queue. It is reached once all operations before it are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark(pub(crate) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ModuleId(pub(crate) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FunctionId(pub(crate) u64);

/// One launch, with every expression evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) function: FunctionId,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// The size of dynamic shared memory.
    pub(crate) shared_bytes: u32,
    /// The bytes of each parameter, little-endian.
    pub(crate) params: Vec<Vec<u8>>,
    /// The time limit, for devices that complete a launch within the call.
    pub(crate) limit: Duration,
}

/// Host memory for copies. For a card it is page-locked, so that the card copies from and to it without the CPU.
pub(crate) struct Pinned(pub(crate) Box<dyn HostBytes>);

pub(crate) trait HostBytes: AsRef<[u8]> + AsMut<[u8]> + Send {}

impl<T: AsRef<[u8]> + AsMut<[u8]> + Send> HostBytes for T {}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl AsMut<[u8]> for Pinned {
    fn as_mut(&mut self) -> &mut [u8] {
        (*self.0).as_mut()
    }
}

/// The place of an error, and the device's description of it. Fields that the device does not report are empty. A card
/// reports only `text`, and only if a module cannot be loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) block: Option<[u32; 3]>,
    pub(crate) thread: Option<[u32; 3]>,
    pub(crate) ptx_line: Option<u32>,
    /// The source file and line, if the PTX names them.
    pub(crate) source: Option<String>,
    /// The address of an access to global memory.
    pub(crate) address: Option<u64>,
    /// True if the fault is an illegal or uninitialised access to memory that is not global, such as shared
    /// memory.
    pub(crate) outside_global: bool,
    /// True if the result depends on the order in which the kernel's threads run.
    pub(crate) is_race: bool,
    /// The device's own message.
    pub(crate) text: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {code}{}", site.as_ref().map_or(String::new(), |site| format!(": {}", site.text)))]
pub(crate) struct DriverError {
    pub(crate) call: &'static str,
    pub(crate) code: Code,
    pub(crate) site: Option<Box<Site>>,
}

impl DriverError {
    pub(crate) fn new(call: &'static str, code: Code) -> Self {
        Self { call, code, site: None }
    }
}

/// The operations of a device's driver. After an error that ends the context, nothing can be run until `replace` has
/// created a new context.
pub(crate) trait Driver: Send {
    /// Makes the driver usable in the calling thread. Needed in every thread but the one that opened it.
    fn enter_thread(&mut self) -> Result<(), DriverError> {
        Ok(())
    }

    fn card(&self) -> &Card;

    fn memory(&mut self) -> Result<DeviceMemory, DriverError>;

    /// Allocates device memory, aligned to 256 bytes.
    fn allocate(&mut self, bytes: Bytes) -> Result<u64, DriverError>;

    fn free(&mut self, address: u64) -> Result<(), DriverError>;

    fn pinned(&mut self, bytes: Bytes) -> Result<Pinned, DriverError>;

    /// Queues a copy to the device.
    ///
    /// # Safety
    /// `from` must be readable for `bytes` until a later mark is reached, or the driver is dropped.
    unsafe fn upload(&mut self, to: u64, from: *const u8, bytes: usize) -> Result<(), DriverError>;

    /// Queues a copy from the device.
    ///
    /// # Safety
    /// `into` must be writable for `bytes`, and must not be used by other code, until a later mark is reached or the
    /// driver is dropped.
    unsafe fn download(&mut self, into: *mut u8, from: u64, bytes: usize) -> Result<(), DriverError>;

    /// Queues a store of `value` into every byte.
    fn fill(&mut self, queue: Queue, at: u64, value: u8, bytes: Bytes) -> Result<(), DriverError>;

    /// Marks these bytes as unwritten. If the device checks accesses, reading them is a fault until they are written
    /// again.
    fn forget(&mut self, _at: u64, _bytes: Bytes) -> Result<(), DriverError> {
        Ok(())
    }

    /// Copies from the device, and waits until the copy is complete. Earlier writes to that memory must be complete.
    fn read(&mut self, from: u64, into: &mut [u8]) -> Result<(), DriverError>;

    /// Copies to the device, and waits until the copy is complete.
    fn write(&mut self, to: u64, bytes: &[u8]) -> Result<(), DriverError>;

    fn mark(&mut self, queue: Queue) -> Result<Mark, DriverError>;

    /// Returns true if the mark is reached, without waiting. If an operation before the mark has failed, returns its
    /// error.
    fn is_over(&mut self, mark: Mark) -> Result<bool, DriverError>;

    /// Loads PTX, or machine code for this device.
    fn load(&mut self, image: &[u8]) -> Result<ModuleId, DriverError>;

    fn unload(&mut self, module: ModuleId) -> Result<(), DriverError>;

    fn function(&mut self, module: ModuleId, symbol: &str) -> Result<FunctionId, DriverError>;

    /// The sizes of a kernel's parameters, in bytes; `None` if the driver does not report them.
    fn parameters(&mut self, function: FunctionId) -> Result<Option<Vec<usize>>, DriverError>;

    /// Queues a launch on the queue of calls.
    fn launch(&mut self, launch: &Launch) -> Result<(), DriverError>;

    /// Returns what the device has counted for each kernel since the last call of this function. Empty if the device
    /// counts nothing.
    fn take_counts(&mut self) -> Vec<EmulatedKernel> {
        Vec::new()
    }

    /// Reads the host's clock, which tests replace.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// The reason why calls cannot be timed; `None` if they can.
    fn cannot_time(&self) -> Option<&'static str> {
        Some("the device has no clock")
    }

    /// Features that the driver lacks. Calls are timed without them.
    fn lacks(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Queues a reading of the device's clock on the queue of calls.
    fn stamp(&mut self) -> Result<Stamp, DriverError> {
        Err(DriverError::new("reading the device's clock", Code::NOT_SUPPORTED))
    }

    /// Returns the time between two readings of the device's clock, both of which must have been taken.
    fn between(&mut self, _from: Stamp, _to: Stamp) -> Result<Duration, DriverError> {
        Err(DriverError::new("reading the device's clock", Code::NOT_SUPPORTED))
    }

    /// Forgets all readings, so that their events can be used again.
    fn clear_stamps(&mut self) {}

    /// Queues a copy within the device on the queue of calls. Returns false if the driver has no function for it.
    fn copy(&mut self, _to: u64, _from: u64, _bytes: Bytes) -> Result<bool, DriverError> {
        Ok(false)
    }

    /// Makes a graph of these launches. Returns `None` if the driver has no graphs.
    fn graph(&mut self, _launches: &[Launch]) -> Result<Option<GraphId>, DriverError> {
        Ok(None)
    }

    /// Queues a graph on the queue of calls.
    fn launch_graph(&mut self, _graph: GraphId) -> Result<(), DriverError> {
        Err(DriverError::new("launching a graph", Code::NOT_SUPPORTED))
    }

    fn drop_graph(&mut self, _graph: GraphId) {}

    fn pace(&mut self) -> Pace {
        Pace::default()
    }

    /// Returns what kernels have printed since the last call of this function. Empty if the driver does not report it.
    fn printed(&mut self) -> String {
        String::new()
    }

    /// Gives up a context that has failed or whose kernel never ends, and creates a new one. Returns an error if this
    /// process cannot have another. The old context's allocations and modules are gone; releasing them has no effect.
    fn replace(&mut self) -> Result<(), DriverError>;
}
