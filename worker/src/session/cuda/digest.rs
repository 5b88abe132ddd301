//! Digests of device memory, computed on the device by our own kernel. They show whether a call has changed its inputs.
//!
//! The seed is drawn for each lease, so a kernel cannot choose changes that leave the digest as it was.

use std::time::Duration;

use super::driver::SharedDriver;
use super::driver::code::Code;
use super::driver::{DriverError, FunctionId, Launch, ModuleId, Queue};
use super::memory::wait_for;

const PTX: &[u8] = include_bytes!("digest.ptx");
pub(super) const SYMBOL: &str = "opt_digest";
/// The size of a word, in bytes.
const WORD: u64 = 8;
const THREADS: u32 = 256;
/// The largest number of blocks in a launch. If an input has more words than these blocks have threads, each thread
/// processes several words.
const MAX_BLOCKS: u64 = 4096;
/// The time limit of each launch, and of waiting for all digests of an entry. The emulated device takes some seconds
/// for a gigabyte.
const LIMIT: Duration = Duration::from_secs(120);

/// The size of a digest's sum on the device, in bytes.
pub(super) const SUM_BYTES: u64 = WORD;

pub(super) struct Digester {
    module: ModuleId,
    function: FunctionId,
    seed: u64,
}

/// The digest of a part: the sum of its whole words, each mixed with the seed and with the word's index, and its
/// remaining bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Digest {
    sum: u64,
    rest: Vec<u8>,
}

/// A part of device memory. If it does not start at a multiple of a word, the bytes before it, back to the previous
/// multiple, belong to the same allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) address: u64,
    pub(super) bytes: u64,
}

impl Digester {
    pub(super) fn load(driver: &SharedDriver, seed: u64) -> Result<Self, DriverError> {
        let mut driver = driver.lock();
        let module = driver.load(PTX)?;
        let function = driver.function(module, SYMBOL)?;
        Ok(Self { module, function, seed })
    }

    pub(super) fn unload(self, driver: &SharedDriver) {
        // Unloading fails only in a failed context, which releases the module anyway.
        let _ = driver.lock().unload(self.module);
    }

    /// Computes the digests of these parts. `sums` is the address of device memory for one sum per part.
    pub(super) fn of(
        &self,
        driver: &SharedDriver,
        parts: &[Part],
        sums: u64,
    ) -> Result<Vec<Digest>, DriverError> {
        let mut found = vec![0; parts.len() * size_of::<u64>()];
        driver.lock().write(sums, &found)?;
        for (number, part) in (0..).zip(parts) {
            let words = part.words();
            let blocks = words.div_ceil(u64::from(THREADS)).min(MAX_BLOCKS);
            let Some(blocks) = u32::try_from(blocks).ok().filter(|&blocks| 0 < blocks) else { continue };
            let params = [part.start(), words, self.seed, sums + number * SUM_BYTES];
            let launch = Launch {
                function: self.function,
                grid: [blocks, 1, 1],
                block: [THREADS, 1, 1],
                shared_bytes: 0,
                params: params.iter().map(|param| param.to_le_bytes().to_vec()).collect(),
                limit: LIMIT,
            };
            driver.lock().launch(&launch)?;
        }
        let mark = driver.lock().mark(Queue::Calls)?;
        if !wait_for(driver, mark, LIMIT)? {
            return Err(DriverError::new("waiting for digests", Code::LAUNCH_TIMEOUT));
        }
        let mut driver = driver.lock();
        driver.read(sums, &mut found)?;
        let sums = found.chunks_exact(size_of::<u64>()).map(|sum| {
            let mut word = [0; size_of::<u64>()];
            word.copy_from_slice(sum);
            u64::from_le_bytes(word)
        });
        let sums: Vec<u64> = sums.collect();
        parts
            .iter()
            .zip(sums)
            .map(|(part, sum)| {
                let mut rest = vec![0; part.rest()];
                if !rest.is_empty() {
                    driver.read(part.start() + part.words() * WORD, &mut rest)?;
                }
                Ok(Digest { sum, rest })
            })
            .collect()
    }
}

impl Part {
    fn start(self) -> u64 {
        self.address - self.address % WORD
    }

    fn words(self) -> u64 {
        (self.address + self.bytes - self.start()) / WORD
    }

    /// The number of bytes after the last whole word.
    fn rest(self) -> usize {
        let rest = (self.address + self.bytes - self.start()) % WORD;
        usize::try_from(rest).unwrap_or(0)
    }
}
