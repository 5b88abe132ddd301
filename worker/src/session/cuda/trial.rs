//! Runs single kernels on a device, through the drivers that verification uses.
//!
//! `gpu-check` uses this to compare a card with the emulated device.

use std::time::Duration;

use opt_shared::causes::chain;
use opt_shared::units::Bytes;

use super::driver::card::CardDriver;
use super::driver::emulated::EmulatedDriver;
use super::driver::{DriverError, Launch, Queue, SharedDriver};
use super::memory::{CudaMemory, wait_for};
use super::points::Points;
use crate::residency::device::Device as _;

/// The kernel with which a session detects changed inputs, as PTX, and its name.
pub const DIGEST: (&[u8], &str) = (include_bytes!("digest.ptx"), "opt_digest");
/// The number of bytes after each buffer that no kernel may change. Only buffers on a card have such a band.
const BAND: usize = 256;
/// The value of bytes that no kernel has written.
const POISON: u8 = 0xa5;

pub struct TrialDevice {
    driver: SharedDriver,
}

/// The contents of a buffer before the first launch.
#[derive(Clone, Debug)]
pub enum TrialBuffer {
    Input(Vec<u8>),
    /// An output of this many bytes, filled with poison.
    Output(usize),
    /// An output of this many bytes, filled with zeros.
    Zeros(usize),
}

#[derive(Clone, Copy, Debug)]
pub enum TrialArgument {
    /// The address of a buffer, by its index.
    Buffer(usize),
    Null,
    I32(i32),
    I64(i64),
    F32(f32),
}

#[derive(Clone, Debug)]
pub struct TrialLaunch {
    pub symbol: &'static str,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub arguments: Vec<TrialArgument>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name}{}", text.as_ref().map_or(String::new(), |text| format!(": {text}")))]
pub struct TrialFault {
    pub call: &'static str,
    /// The `CUresult`.
    pub code: u32,
    /// The code's name and number.
    pub name: String,
    /// The device's own message.
    pub text: Option<String>,
    /// The line of the PTX; a card does not report it.
    pub ptx_line: Option<u32>,
}

#[derive(Clone, Debug)]
pub enum TrialEnd {
    /// All launches are complete.
    Over {
        buffers: Vec<Vec<u8>>,
        /// The index of the first buffer beyond whose end a kernel has stored. Only reported for a card.
        stores_beyond: Option<usize>,
    },
    Fault(TrialFault),
    /// A launch did not end in time. The device can no longer be used.
    Endless,
}

/// The result of placing buffers under a cap until one is refused.
#[derive(Clone, Debug)]
pub struct CapTrial<T> {
    pub cap: Bytes,
    /// The sum of the buffers that were placed.
    pub placed: Bytes,
    /// The reason why the next buffer was refused.
    pub refused: String,
    /// The device's free memory before the first buffer, with all of them, and after they were released.
    pub free: [Bytes; 3],
    pub observed: T,
}

impl From<DriverError> for TrialFault {
    fn from(error: DriverError) -> Self {
        let site = error.site.map(|site| *site);
        Self {
            call: error.call,
            code: error.code.0,
            name: error.code.to_string(),
            ptx_line: site.as_ref().and_then(|site| site.ptx_line),
            text: site.map(|site| site.text).filter(|text| !text.is_empty()),
        }
    }
}

impl TrialDevice {
    /// Opens a card. The error is one sentence.
    pub fn card(ordinal: u32) -> Result<Self, String> {
        let driver = CardDriver::open(ordinal).map_err(|error| chain(&error))?;
        Ok(Self { driver: SharedDriver::new(Box::new(driver)) })
    }

    pub fn emulated() -> Self {
        Self { driver: SharedDriver::new(Box::new(EmulatedDriver::new())) }
    }

    /// The card's UUID as NVML writes it; `None` for the emulated device.
    pub fn uuid(&self) -> Option<String> {
        self.driver.lock().card().uuid.clone()
    }

    pub fn total(&self) -> Bytes {
        self.driver.lock().card().total
    }

    pub fn run(
        &self,
        image: &[u8],
        buffers: &[TrialBuffer],
        launches: &[TrialLaunch],
        limit: Duration,
    ) -> TrialEnd {
        self.attempt(image, buffers, launches, limit).unwrap_or_else(|error| TrialEnd::Fault(error.into()))
    }

    fn attempt(
        &self,
        image: &[u8],
        buffers: &[TrialBuffer],
        launches: &[TrialLaunch],
        limit: Duration,
    ) -> Result<TrialEnd, DriverError> {
        let mut driver = self.driver.lock();
        // The emulated device checks every access against the allocation. A band would be part of the allocation, and so
        // hide a store beyond the buffer's end.
        let band = if driver.card().checks_accesses { 0 } else { BAND };
        let mut placed = Vec::new();
        for buffer in buffers {
            let (mut bytes, size) = match buffer {
                TrialBuffer::Input(bytes) => (bytes.clone(), bytes.len()),
                TrialBuffer::Output(size) => (vec![POISON; *size], *size),
                TrialBuffer::Zeros(size) => (vec![0; *size], *size),
            };
            bytes.resize(size + band, POISON);
            let address = driver.allocate(Bytes::from(bytes.len()))?;
            driver.write(address, &bytes)?;
            placed.push((address, size));
        }
        let module = driver.load(image)?;
        for launch in launches {
            let function = driver.function(module, launch.symbol)?;
            driver.launch(&Launch {
                function,
                grid: launch.grid,
                block: launch.block,
                shared_bytes: launch.shared_bytes,
                params: launch.arguments.iter().map(|argument| parameter(*argument, &placed)).collect(),
                limit,
            })?;
        }
        let mark = driver.mark(Queue::Calls)?;
        drop(driver);
        if !wait_for(&self.driver, mark, limit)? {
            // This gives up the context. Releasing it instead would wait for the kernel.
            let _ = self.driver.lock().replace();
            return Ok(TrialEnd::Endless);
        }
        let mut driver = self.driver.lock();
        let mut contents = Vec::new();
        let mut stores_beyond = None;
        for (number, (address, size)) in placed.iter().enumerate() {
            let mut bytes = vec![0; size + band];
            driver.read(*address, &mut bytes)?;
            if bytes[*size..].iter().any(|byte| *byte != POISON) {
                stores_beyond = stores_beyond.or(Some(number));
            }
            bytes.truncate(*size);
            contents.push(bytes);
            driver.free(*address)?;
        }
        driver.unload(module)?;
        Ok(TrialEnd::Over { buffers: contents, stores_beyond })
    }

    /// Allocates memory and frees it. Fails after a fault that ended the context.
    pub fn allocate(&self, bytes: Bytes) -> Result<(), TrialFault> {
        let mut driver = self.driver.lock();
        let address = driver.allocate(bytes)?;
        Ok(driver.free(address)?)
    }

    /// Places buffers of `piece` bytes under a cap, as a lease does, until one is refused; then calls `observe`, and
    /// releases them.
    pub fn fill_under_cap<T>(
        &self,
        cap: Bytes,
        piece: Bytes,
        observe: impl FnOnce() -> T,
    ) -> Result<CapTrial<T>, TrialFault> {
        let free = || self.driver.lock().memory().map(|memory| memory.free);
        let before = free()?;
        let mut memory = CudaMemory::new(self.driver.clone(), cap, Points::default());
        let mut buffers = Vec::new();
        let refused = loop {
            match memory.allocate(piece) {
                Ok(buffer) => buffers.push(buffer),
                Err(error) => break chain(&error),
            }
        };
        let (full, observed, placed) = (free()?, observe(), memory.marks().placed);
        drop(memory);
        Ok(CapTrial { cap, placed, refused, free: [before, full, free()?], observed })
    }
}

/// Returns the bytes of an argument. The index of an unknown buffer becomes a null pointer.
fn parameter(argument: TrialArgument, placed: &[(u64, usize)]) -> Vec<u8> {
    match argument {
        TrialArgument::Buffer(number) => {
            placed.get(number).map_or(0, |(address, _)| *address).to_le_bytes().to_vec()
        }
        TrialArgument::Null => 0_u64.to_le_bytes().to_vec(),
        TrialArgument::I32(value) => value.to_le_bytes().to_vec(),
        TrialArgument::I64(value) => value.to_le_bytes().to_vec(),
        TrialArgument::F32(value) => value.to_le_bytes().to_vec(),
    }
}
