//! Executes a launch: several host threads take the launch's blocks in order and run them. If several blocks fail, the
//! launch returns the fault of the block with the lowest number.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::block::{BlockFault, BlockState};
use super::counts::{Counter, Counts};
use super::race;
use super::warp::Warp;
use crate::code::Kernel;
use crate::fault::{Fault, FaultKind, FaultSite, SourceLine};
use crate::limits;
use crate::memory::View;

/// The limits of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The largest number of warp instructions that all blocks together may execute.
    pub steps: u64,
    pub time: Duration,
}

impl Default for Limit {
    fn default() -> Self {
        Self { steps: u64::MAX, time: Duration::from_secs(600) }
    }
}

/// The result of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub warp_instructions: u64,
    pub blocks: u64,
    /// The kernel's `printf` output, up to the limit. If several host threads run blocks, the outputs of different
    /// blocks can be interleaved.
    pub printed: String,
    /// `None` unless `Config::counts` is set.
    pub counts: Option<Counts>,
}

/// A launch whose arguments have been checked.
pub struct Job<'k> {
    pub kernel: &'k Kernel,
    pub view: View,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub params: Vec<u8>,
    pub dynamic_shared: u64,
    /// The size of the static and dynamic shared memory together, in bytes.
    pub shared_bytes: u64,
    pub limit: Limit,
    pub threads: usize,
    pub checks_reads: bool,
    pub checks_races: bool,
    pub counts: bool,
}

/// The state that the host threads of a launch share.
pub struct Progress {
    /// The number of the next block to run.
    next: AtomicU64,
    pub steps: AtomicU64,
    /// The lowest number of any block that has failed.
    failed: AtomicU64,
    fault: Mutex<Option<(u64, Fault)>>,
    pub started: Instant,
    /// Locks for strong accesses and atomic operations of 8 bytes, by address.
    wide: [Mutex<()>; 64],
    printed: Mutex<String>,
    counter: Mutex<Counter>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Progress {
    fn new() -> Self {
        Self {
            next: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            failed: AtomicU64::new(u64::MAX),
            fault: Mutex::new(None),
            started: Instant::now(),
            wide: std::array::from_fn(|_| Mutex::new(())),
            printed: Mutex::new(String::new()),
            counter: Mutex::default(),
        }
    }

    /// Returns true if a block with a lower number has failed.
    pub fn failed_before(&self, number: u64) -> bool {
        self.failed.load(Ordering::Relaxed) < number
    }

    pub fn lock_wide(&self, address: u64) -> MutexGuard<'_, ()> {
        lock(&self.wide[(address / 8 % 64) as usize])
    }

    pub fn print(&self, text: &str) {
        let mut printed = lock(&self.printed);
        if printed.len() + text.len() <= limits::PRINTED_BYTES {
            printed.push_str(text);
        }
    }

    fn fail(&self, number: u64, fault: Fault) {
        let mut first = lock(&self.fault);
        if first.as_ref().is_none_or(|(known, _)| number < *known) {
            *first = Some((number, fault));
        }
        self.failed.fetch_min(number, Ordering::Relaxed);
    }
}

impl Job<'_> {
    /// Returns the host memory that a running block takes, in bytes.
    pub fn block_bytes(&self) -> u64 {
        let warps = u64::from(self.block.iter().product::<u32>().div_ceil(32));
        let kernel = self.kernel;
        let registers = 4 * u64::from(kernel.flag_rows)
            + 128 * u64::from(kernel.narrow_rows)
            + 256 * u64::from(kernel.wide_rows);
        // Every word of shared memory can have a pending copy, and the list of pending copies may have twice the
        // required capacity.
        let copies = if kernel.copy_ops.is_empty() { 0 } else { 20 * self.shared_bytes };
        let races = if self.watches_races() {
            race::state_bytes(kernel, self.shared_bytes, u64::from(self.threads_of_a_block()))
        } else {
            0
        };
        // For every byte of shared and local memory, a second byte says whether the first one was written.
        warps * (registers + 64 * kernel.local_bytes) + 2 * self.shared_bytes + copies + races
    }

    pub fn threads_of_a_block(&self) -> u32 {
        self.block.iter().product()
    }

    /// Whether races in shared memory are detected.
    pub fn watches_races(&self) -> bool {
        self.checks_races
            && self.shared_bytes != 0
            && self.threads_of_a_block() != 1
            && race::can_race(self.kernel)
    }

    fn blocks(&self) -> u64 {
        self.grid.iter().map(|size| u64::from(*size)).product()
    }
}

pub fn run(job: &Job<'_>, files: &dyn Fn(u32) -> Option<String>) -> Result<Summary, Fault> {
    let progress = Progress::new();
    let blocks = job.blocks();
    let fitting = (limits::STATE_BYTES / job.block_bytes().max(1)).max(1);
    let threads = (job.threads as u64).min(blocks).min(fitting).max(1);
    if threads == 1 {
        work(job, &progress, blocks);
    } else {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| work(job, &progress, blocks));
            }
        });
    }
    let fault = lock(&progress.fault).take();
    if let Some((_, mut fault)) = fault {
        name_source(&mut fault, job.kernel, files);
        return Err(fault);
    }
    let printed = std::mem::take(&mut *lock(&progress.printed));
    let counts = job.counts.then(|| lock(&progress.counter).counts(job.kernel, files));
    Ok(Summary { warp_instructions: progress.steps.load(Ordering::Relaxed), blocks, printed, counts })
}

fn work(job: &Job<'_>, progress: &Progress, blocks: u64) {
    let warps = job.block.iter().product::<u32>().div_ceil(32);
    let mut state = BlockState::new(job, progress);
    let mut warps: Vec<Warp> = (0..warps).map(|index| Warp::new(job, index)).collect();
    loop {
        let number = progress.next.fetch_add(1, Ordering::Relaxed);
        if blocks <= number || progress.failed_before(number) {
            if let Some(counter) = &state.counter {
                lock(&progress.counter).absorb(counter);
            }
            return;
        }
        let [x, y, _] = job.grid.map(u64::from);
        let block = [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32];
        match state.run(block, number, &mut warps) {
            Ok(true) => {}
            Ok(false) => return,
            Err(found) => {
                progress.fail(number, fault(job, block, found));
                return;
            }
        }
    }
}

fn fault(job: &Job<'_>, block: [u32; 3], found: BlockFault) -> Fault {
    let site = site(job, block, 32 * found.warp + found.stop.lane, found.pc);
    Fault { kind: *found.stop.kind, site: Some(Box::new(site)) }
}

/// Returns the location of a thread's instruction, without the source line.
pub fn site(job: &Job<'_>, block: [u32; 3], thread: u32, pc: u32) -> FaultSite {
    let kernel = job.kernel;
    let [x, y, _] = job.block;
    FaultSite {
        function: kernel.name.clone(),
        block,
        thread: [thread % x, thread / x % y, thread / x / y],
        warp: thread / 32,
        lane: thread % 32,
        line: kernel.lines.get(pc as usize).copied().unwrap_or(0),
        source: None,
    }
}

/// Returns the source line of an instruction, if it is known.
pub fn source_of(kernel: &Kernel, pc: usize, files: &dyn Fn(u32) -> Option<String>) -> Option<SourceLine> {
    let location = kernel.locations.get(pc).copied().flatten()?;
    files(location.file).map(|file| SourceLine { file, line: location.line })
}

/// Sets the source lines of the places that a fault names, which are found by their PTX lines.
fn name_source(fault: &mut Fault, kernel: &Kernel, files: &dyn Fn(u32) -> Option<String>) {
    let name = |site: &mut FaultSite| {
        let at = kernel.lines.iter().position(|line| *line == site.line);
        site.source = at.and_then(|at| source_of(kernel, at, files));
    };
    if let FaultKind::Race { other, .. } = &mut fault.kind {
        name(&mut other.site);
    }
    if let Some(site) = &mut fault.site {
        name(site);
    }
}
