//! What this backend needs of a device: the few functions of a CUDA driver, and what its errors mean.
//!
//! Two queues: copies go on one, calls on the other, each in order. Whoever orders a copy keeps its host memory until a mark
//! after it is over. A driver decides nothing: caps, names of buffers and verdicts are others' affair.

pub(super) mod card;
pub(super) mod code;
pub(super) mod emulated;
mod functions;
pub(super) mod probe;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use opt_shared::units::Bytes;

use self::code::Code;
pub(crate) use self::functions::NoDriver;

/// One driver, shared by everything of a worker that uses it; one thread.
pub(super) type SharedDriver = Rc<RefCell<Box<dyn Driver>>>;

/// A device as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) name: String,
    /// As NVML writes it: `GPU-…`. None where the device has none.
    pub(crate) uuid: Option<String>,
    pub(crate) total: Bytes,
    /// Shares its memory with the CPU.
    pub(crate) integrated: bool,
    /// What an allocation is rounded up to.
    pub(crate) grain: Bytes,
    /// Every access is checked against live buffers: a buffer needs no bands beside it.
    pub(crate) checks_accesses: bool,
}

/// Bytes of the whole device, whoever has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceMemory {
    pub(crate) free: Bytes,
    pub(crate) total: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    Copies,
    Calls,
}

/// The end of what was put on a queue before it.
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
    /// Of dynamic shared memory.
    pub(crate) shared_bytes: u32,
    /// The bytes of each parameter, little-endian.
    pub(crate) params: Vec<Vec<u8>>,
    /// For devices that do all of it within the call.
    pub(crate) limit: Duration,
}

/// Host memory that the device copies from and to without help of the CPU. Frees itself.
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

/// Where in a kernel something went wrong, as far as the device tells. A card tells nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) block: Option<[u32; 3]>,
    pub(crate) thread: Option<[u32; 3]>,
    pub(crate) ptx_line: Option<u32>,
    /// File and line, where the PTX has them.
    pub(crate) source: Option<String>,
    /// Of an access to global memory: where.
    pub(crate) address: Option<u64>,
    /// It went beyond a memory that the kernel has for itself: shared, local.
    pub(crate) beyond_its_own: bool,
    /// The device's own words.
    pub(crate) text: String,
}

/// A function of the driver failed.
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

/// The functions of a device. After an error whose code ends the context every further call fails.
pub(crate) trait Driver {
    fn card(&self) -> &Card;

    fn memory(&mut self) -> Result<DeviceMemory, DriverError>;

    /// So many bytes of device memory, aligned to 256.
    fn allocate(&mut self, bytes: Bytes) -> Result<u64, DriverError>;

    fn free(&mut self, address: u64) -> Result<(), DriverError>;

    fn pinned(&mut self, bytes: Bytes) -> Result<Pinned, DriverError>;

    /// Orders a copy to the device.
    ///
    /// # Safety
    /// `from` can be read for `bytes` until a mark that is made after this is over, or the driver is gone.
    unsafe fn upload(&mut self, to: u64, from: *const u8, bytes: usize) -> Result<(), DriverError>;

    /// Orders a copy from the device.
    ///
    /// # Safety
    /// `into` can be written for `bytes`, by nobody else, until a mark that is made after this is over, or the driver is gone.
    unsafe fn download(&mut self, into: *mut u8, from: u64, bytes: usize) -> Result<(), DriverError>;

    /// Orders a store of `value` into every byte.
    fn fill(&mut self, queue: Queue, at: u64, value: u8, bytes: Bytes) -> Result<(), DriverError>;

    /// Copies from the device, and waits for it. Whatever wrote there must be over.
    fn read(&mut self, from: u64, into: &mut [u8]) -> Result<(), DriverError>;

    /// Copies to the device, and waits for it.
    fn write(&mut self, to: u64, bytes: &[u8]) -> Result<(), DriverError>;

    fn mark(&mut self, queue: Queue) -> Result<Mark, DriverError>;

    /// Without waiting. What went wrong on the queue before the mark is said here.
    fn is_over(&mut self, mark: Mark) -> Result<bool, DriverError>;

    /// PTX, or a binary for this device.
    fn load(&mut self, image: &[u8]) -> Result<ModuleId, DriverError>;

    fn unload(&mut self, module: ModuleId) -> Result<(), DriverError>;

    fn function(&mut self, module: ModuleId, symbol: &str) -> Result<FunctionId, DriverError>;

    /// The size of each parameter in bytes; none where the driver does not tell.
    fn parameters(&mut self, function: FunctionId) -> Result<Option<Vec<usize>>, DriverError>;

    /// Orders a launch on the queue of calls.
    fn launch(&mut self, launch: &Launch) -> Result<(), DriverError>;

    /// What kernels have printed since this was asked last, where the device keeps it.
    fn printed(&mut self) -> String {
        String::new()
    }

    /// Gives up a context that failed, or that a kernel never leaves: nothing that was allocated or loaded in it is left, and
    /// giving it back does nothing. A new context takes its place where the device can have one; an error where it cannot.
    fn replace(&mut self) -> Result<(), DriverError>;
}
