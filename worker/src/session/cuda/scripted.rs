//! A driver for tests that imitates a card. Its memory is this process's, its kernels are Rust functions, and it fails
//! on request.
//!
//! It records the calls that `Asked` lists, and counts the allocated memory for comparison with the cap.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use opt_shared::units::Bytes;

use super::driver::code::Code;
use super::driver::timing::{GraphId, Stamp};
use super::driver::{
    Card, DeviceMemory, Driver, DriverError, FunctionId, Launch, Mark, ModuleId, Pinned, Queue, Site,
};
use crate::session::pace::Pace;

/// The address of the first allocation.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;
/// The smallest distance between two allocations, so large that no access reaches from one into the other.
const GAP: u64 = 1 << 20;
const DIGEST: &str = "opt_digest";

/// The kind of a call to the driver. Calls of these kinds are recorded, and a script can make them fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Asked {
    Memory,
    Allocate,
    Free,
    Pinned,
    Upload,
    Download,
    Fill,
    Read,
    Write,
    Mark,
    IsOver,
    Load,
    Unload,
    Function,
    Launch,
    Replace,
}

/// A kernel of a script, which gets the memory and the launch's arguments.
pub(super) type Kernel =
    Arc<Mutex<dyn Fn(&mut FakeMemory, &[u64]) -> Result<(), (Code, Option<Site>)> + Send>>;

/// A script that is shared between its driver and its test.
#[derive(Clone)]
pub(super) struct SharedScript(Arc<Mutex<Script>>);

impl SharedScript {
    pub(super) fn lock(&self) -> MutexGuard<'_, Script> {
        self.0.lock().expect("no panic while it is locked")
    }
}

#[derive(Default)]
pub(super) struct FakeMemory {
    allocations: BTreeMap<u64, Vec<u8>>,
    pub(super) kernels_took: Duration,
}

impl FakeMemory {
    fn find(&mut self, address: u64, bytes: usize) -> Option<&mut [u8]> {
        let (start, allocation) = self.allocations.range_mut(..=address).next_back()?;
        let at = usize::try_from(address - start).ok()?;
        allocation.get_mut(at..at.checked_add(bytes)?)
    }

    pub(super) fn read(&mut self, address: u64, bytes: usize) -> Vec<u8> {
        self.find(address, bytes).expect("in an allocation").to_vec()
    }

    /// Changes the last byte of the only allocation whose size is in this range.
    pub(super) fn damage(&mut self, sizes: std::ops::Range<usize>) {
        let mut found = self.allocations.values_mut().filter(|it| sizes.contains(&it.len()));
        let allocation = found.next().expect("an allocation of such a size");
        assert!(found.next().is_none(), "several allocations of such a size");
        *allocation.last_mut().expect("not empty") ^= 0xff;
    }

    pub(super) fn write(&mut self, address: u64, bytes: &[u8]) {
        self.find(address, bytes.len()).expect("in an allocation").copy_from_slice(bytes);
    }
}

/// The part of a scripted driver that tests can see and set.
#[derive(Default)]
pub(super) struct Script {
    pub(super) memory: FakeMemory,
    pub(super) asked: Vec<Asked>,
    /// Failures to come: the function, which of its next calls fails (1 is the next one), and the error.
    pub(super) failing: Vec<(Asked, usize, Code)>,
    /// The sizes of the parameters and the function of each kernel, by symbol.
    pub(super) kernels: BTreeMap<String, (Vec<usize>, Kernel)>,
    /// The symbols of kernels that never end.
    pub(super) endless: Vec<String>,
    /// True if the context can be replaced.
    pub(super) replaceable: bool,
    pub(super) held: Bytes,
    pub(super) most_held: Bytes,
    /// Which poll of a mark finds the mark reached, counted from 1. The value 0 means the first poll, too.
    pub(super) polls: u32,
    pub(super) clock: VirtualClock,
    functions: Vec<String>,
    next: u64,
    next_mark: u64,
    polled: u32,
    hangs: bool,
    /// A sticky error, with which every further call fails.
    failed: Option<Code>,
}

/// A clock that the device and the host share, as if the host waited for everything that the device does.
#[derive(Default)]
pub(super) struct VirtualClock {
    passed: Duration,
    stamps: Vec<Duration>,
    /// The time that is added to every launch that is not part of a graph.
    pub(super) launch_takes: Duration,
    /// The rate of fills and copies; 0 if they take no time.
    pub(super) bytes_per_us: u64,
    /// The percentage of the passed time that the device's clock shows. The value 0 means 100.
    pub(super) shows_percent: u32,
    /// The clock rate at each reading of the pace; the last one repeats.
    pub(super) mhz: Vec<u32>,
    pub(super) paces: usize,
    pub(super) has_graphs: bool,
    pub(super) graphs_launched: usize,
    pub(super) lacks: Vec<&'static str>,
    graphs: Vec<Vec<Launch>>,
}

impl VirtualClock {
    fn moved(&mut self, bytes: Bytes) {
        let us = bytes.get().checked_div(self.bytes_per_us).unwrap_or(0);
        self.passed += Duration::from_micros(us);
    }

    fn mhz_now(&self) -> Option<u32> {
        self.mhz.get(self.paces.saturating_sub(1)).or(self.mhz.last()).copied()
    }

    fn ran(&mut self, took: Duration) {
        // The script gives each kernel's duration at the highest clock rate.
        let slower = self.mhz_now().zip(self.mhz.iter().max().copied());
        self.passed += slower.map_or(took, |(now, highest)| took * highest / now.max(1));
    }
}

pub(super) struct ScriptedDriver {
    started: Instant,
    card: Card,
    script: SharedScript,
}

impl ScriptedDriver {
    pub(super) fn new() -> (Self, SharedScript) {
        let script = SharedScript(Arc::new(Mutex::new(Script { next: FIRST_ADDRESS, ..Script::default() })));
        let card = Card {
            name: "a card that plays a script".to_owned(),
            uuid: None,
            total: Bytes::gib(1),
            integrated: false,
            grain: Bytes::new(512),
            l2: Bytes::kib(64),
            checks_accesses: false,
        };
        (Self { started: Instant::now(), card, script: script.clone() }, script)
    }

    /// Records a call. Returns an error if the script makes this call fail, or if the context has failed.
    fn ask(&self, asked: Asked) -> Result<MutexGuard<'_, Script>, DriverError> {
        let mut script = self.script.lock();
        script.asked.push(asked);
        let mut fails = None;
        for (what, left, code) in &mut script.failing {
            if *what == asked && 0 < *left {
                *left -= 1;
                fails = (*left == 0).then_some(*code).or(fails);
            }
        }
        if let Some(code) = fails {
            script.fail(code);
            return Err(DriverError::new("the scripted driver", code));
        }
        match script.failed {
            Some(code) => Err(DriverError::new("the scripted driver", code)),
            None => Ok(script),
        }
    }
}

impl Script {
    fn fail(&mut self, code: Code) {
        if code.ends_the_context() {
            self.failed.get_or_insert(code);
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    pub(super) fn count(&self, asked: Asked) -> usize {
        self.asked.iter().filter(|it| **it == asked).count()
    }
}

/// The kernel of `digest.ptx` in Rust.
fn digest(memory: &mut FakeMemory, params: &[u64]) {
    let [from, words, seed, sum] = *params else { panic!("four parameters") };
    let mut total = 0_u64;
    for index in 0..words {
        let word = memory.read(from + 8 * index, 8);
        let mut x = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        x ^= index.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed);
        x = x.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        x ^= x >> 32;
        total = total.wrapping_add(x.wrapping_mul(0x9e37_79b1_85eb_ca87));
    }
    let before = u64::from_le_bytes(memory.read(sum, 8).try_into().expect("eight bytes"));
    memory.write(sum, &before.wrapping_add(total).to_le_bytes());
}

impl Driver for ScriptedDriver {
    fn card(&self) -> &Card {
        &self.card
    }

    fn memory(&mut self) -> Result<DeviceMemory, DriverError> {
        let script = self.ask(Asked::Memory)?;
        Ok(DeviceMemory { free: self.card.total - script.held, total: self.card.total })
    }

    fn allocate(&mut self, bytes: Bytes) -> Result<u64, DriverError> {
        let mut script = self.ask(Asked::Allocate)?;
        if self.card.total < script.held + bytes {
            return Err(DriverError::new("allocate", Code::OUT_OF_MEMORY));
        }
        let address = script.next;
        script.next += bytes.get().next_multiple_of(GAP) + GAP;
        script.memory.allocations.insert(address, vec![0x77; bytes.to_usize()]);
        script.held += bytes;
        script.most_held = script.most_held.max(script.held);
        Ok(address)
    }

    fn free(&mut self, address: u64) -> Result<(), DriverError> {
        let mut script = self.ask(Asked::Free)?;
        let gone = script.memory.allocations.remove(&address);
        let gone = gone.ok_or(DriverError::new("free", Code::INVALID_VALUE))?;
        script.held = script.held - Bytes::from(gone.len());
        Ok(())
    }

    fn pinned(&mut self, bytes: Bytes) -> Result<Pinned, DriverError> {
        drop(self.ask(Asked::Pinned)?);
        Ok(Pinned(Box::new(vec![0_u8; bytes.to_usize()])))
    }

    unsafe fn upload(&mut self, to: u64, from: *const u8, bytes: usize) -> Result<(), DriverError> {
        let mut script = self.ask(Asked::Upload)?;
        // SAFETY: the caller guarantees that this many bytes are readable.
        let bytes = unsafe { std::slice::from_raw_parts(from, bytes) };
        script.memory.write(to, bytes);
        Ok(())
    }

    unsafe fn download(&mut self, into: *mut u8, from: u64, bytes: usize) -> Result<(), DriverError> {
        let mut script = self.ask(Asked::Download)?;
        let found = script.memory.read(from, bytes);
        // SAFETY: the caller guarantees that this many bytes are writable, and that no other code uses them.
        unsafe { std::slice::from_raw_parts_mut(into, bytes) }.copy_from_slice(&found);
        Ok(())
    }

    fn fill(&mut self, _: Queue, at: u64, value: u8, bytes: Bytes) -> Result<(), DriverError> {
        let mut script = self.ask(Asked::Fill)?;
        script.memory.write(at, &vec![value; bytes.to_usize()]);
        script.clock.moved(bytes);
        Ok(())
    }

    fn read(&mut self, from: u64, into: &mut [u8]) -> Result<(), DriverError> {
        let mut script = self.ask(Asked::Read)?;
        into.copy_from_slice(&script.memory.read(from, into.len()));
        Ok(())
    }

    fn write(&mut self, to: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.ask(Asked::Write)?.memory.write(to, bytes);
        Ok(())
    }

    fn mark(&mut self, _: Queue) -> Result<Mark, DriverError> {
        let mut script = self.ask(Asked::Mark)?;
        script.next_mark += 1;
        script.polled = 0;
        Ok(Mark(script.next_mark))
    }

    fn is_over(&mut self, _: Mark) -> Result<bool, DriverError> {
        let mut script = self.ask(Asked::IsOver)?;
        script.polled += 1;
        Ok(!script.hangs && script.polls <= script.polled)
    }

    fn load(&mut self, image: &[u8]) -> Result<ModuleId, DriverError> {
        drop(self.ask(Asked::Load)?);
        if image.starts_with(b"broken") {
            return Err(DriverError::new("load", Code(218)));
        }
        Ok(ModuleId(1))
    }

    fn unload(&mut self, _: ModuleId) -> Result<(), DriverError> {
        drop(self.ask(Asked::Unload)?);
        Ok(())
    }

    fn function(&mut self, _: ModuleId, symbol: &str) -> Result<FunctionId, DriverError> {
        let mut script = self.ask(Asked::Function)?;
        if symbol != DIGEST && !script.kernels.contains_key(symbol) {
            return Err(DriverError::new("function", Code::NOT_FOUND));
        }
        script.functions.push(symbol.to_owned());
        Ok(FunctionId(script.functions.len() as u64 - 1))
    }

    fn parameters(&mut self, function: FunctionId) -> Result<Option<Vec<usize>>, DriverError> {
        let script = self.script.lock();
        let symbol = script.symbol(function);
        Ok(script.kernels.get(&symbol).map(|(sizes, _)| sizes.clone()))
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), DriverError> {
        let mut script = self.ask(Asked::Launch)?;
        let params: Vec<u64> = launch
            .params
            .iter()
            .map(|bytes| (0..).zip(bytes).map(|(at, &byte)| u64::from(byte) << (8 * at)).sum())
            .collect();
        let symbol = script.symbol(launch.function);
        if symbol == DIGEST {
            digest(&mut script.memory, &params);
            return Ok(());
        }
        script.hangs |= script.endless.contains(&symbol);
        let (_, kernel) = script.kernels.get(&symbol).expect("a function that was found");
        let kernel = Arc::clone(kernel);
        let kernel = kernel.lock().expect("no panic in an earlier launch");
        let ran = kernel(&mut script.memory, &params);
        let took = std::mem::take(&mut script.memory.kernels_took) + script.clock.launch_takes;
        script.clock.ran(took);
        ran.map_err(|(code, site)| {
            script.fail(code);
            DriverError { call: "launch", code, site: site.map(Box::new) }
        })
    }

    fn now(&self) -> Instant {
        self.started + self.script.lock().clock.passed
    }

    fn cannot_time(&self) -> Option<&'static str> {
        None
    }

    fn lacks(&self) -> Vec<&'static str> {
        self.script.lock().clock.lacks.clone()
    }

    fn stamp(&mut self) -> Result<Stamp, DriverError> {
        let clock = &mut self.script.lock().clock;
        clock.stamps.push(clock.passed);
        Ok(Stamp(clock.stamps.len() as u64 - 1))
    }

    fn between(&mut self, from: Stamp, to: Stamp) -> Result<Duration, DriverError> {
        let clock = &self.script.lock().clock;
        let at = |stamp: Stamp| clock.stamps[Bytes::new(stamp.0).to_usize()];
        let percent = if clock.shows_percent == 0 { 100 } else { clock.shows_percent };
        Ok((at(to) - at(from)) * percent / 100)
    }

    fn clear_stamps(&mut self) {
        self.script.lock().clock.stamps.clear();
    }

    fn copy(&mut self, to: u64, from: u64, bytes: Bytes) -> Result<bool, DriverError> {
        let mut script = self.script.lock();
        let contents = script.memory.read(from, bytes.to_usize());
        script.memory.write(to, &contents);
        script.clock.moved(bytes);
        Ok(true)
    }

    fn graph(&mut self, launches: &[Launch]) -> Result<Option<GraphId>, DriverError> {
        let clock = &mut self.script.lock().clock;
        clock.graphs.push(launches.to_vec());
        Ok(clock.has_graphs.then_some(GraphId(clock.graphs.len() as u64 - 1)))
    }

    fn launch_graph(&mut self, graph: GraphId) -> Result<(), DriverError> {
        let (launches, launch_takes) = {
            let clock = &mut self.script.lock().clock;
            clock.graphs_launched += 1;
            let launches = std::mem::take(&mut clock.graphs[Bytes::new(graph.0).to_usize()]);
            (launches, std::mem::take(&mut clock.launch_takes))
        };
        let launched = launches.iter().try_for_each(|launch| self.launch(launch));
        self.script.lock().clock.launch_takes = launch_takes;
        launched
    }

    fn pace(&mut self) -> Pace {
        let clock = &mut self.script.lock().clock;
        clock.paces += 1;
        Pace { clock_mhz: clock.mhz_now(), ..Pace::default() }
    }

    fn replace(&mut self) -> Result<(), DriverError> {
        let mut script = self.script.lock();
        script.asked.push(Asked::Replace);
        if !script.replaceable {
            return Err(DriverError::new("replacing the context", Code::NOT_SUPPORTED));
        }
        (script.failed, script.hangs) = (None, false);
        script.memory.allocations.clear();
        script.held = Bytes::ZERO;
        Ok(())
    }
}

impl Script {
    fn symbol(&self, function: FunctionId) -> String {
        self.functions[Bytes::new(function.0).to_usize()].clone()
    }
}
