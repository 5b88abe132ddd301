//! A driver that runs kernels on the emulated device. Every operation is complete when its call returns.

use std::collections::{BTreeMap, BTreeSet};

use opt_emulator::{Config, Device, Fault, FaultKind, Function, Limit, LoadError, Memory, Module, Summary};
use opt_shared::formula::EMULATED_GRAIN;
use opt_shared::outcome::{EmulatedKernel, Traffic};
use opt_shared::units::Bytes;

use super::code::Code;
use super::{
    Card, DeviceMemory, Driver, DriverError, FunctionId, Launch, Mark, ModuleId, Pinned, Queue, Site,
};

/// The size of the device's memory. Allocations are made in the host's memory.
const MEMORY: Bytes = Bytes::gib(8);
/// The maximum amount of text printed by kernels, in bytes, that is kept for a session.
const PRINTED: usize = 64 << 10;

/// The maximum number of kernels for which counts are kept. It limits the size of the message that contains the
/// outcome.
const MAX_COUNTED: usize = 64;
/// The maximum number of characters of a name from PTX that are reported.
const MAX_NAME: usize = 200;

pub(crate) struct EmulatedDriver {
    card: Card,
    device: Device,
    modules: BTreeMap<u64, Module>,
    /// The kernels that were looked up, each with the number of its module.
    kernels: BTreeMap<u64, (u64, Function)>,
    /// The number of the last mark, module or kernel.
    last_number: u64,
    printed: String,
    /// The kernels that were launched. Counts are collected only for the first launch after each lookup.
    counted: BTreeSet<FunctionId>,
    counts: BTreeMap<String, EmulatedKernel>,
}

impl EmulatedDriver {
    pub(crate) fn new() -> Self {
        let card = Card {
            name: "the emulated device".to_owned(),
            uuid: None,
            total: MEMORY,
            // The device's memory is the host's memory.
            integrated: true,
            grain: EMULATED_GRAIN,
            l2: Bytes::ZERO,
            checks_accesses: true,
        };
        Self {
            card,
            device: device(),
            modules: BTreeMap::new(),
            kernels: BTreeMap::new(),
            last_number: 0,
            printed: String::new(),
            counted: BTreeSet::new(),
            counts: BTreeMap::new(),
        }
    }

    fn count(&mut self, symbol: &str, summary: &Summary) {
        let Some(counts) = &summary.counts else { return };
        let one = EmulatedKernel {
            symbol: clipped(symbol),
            launches: 1,
            warp_instructions: summary.warp_instructions,
            divergent_branches: counts.divergent_branches,
            shared: traffic(&counts.shared),
            global: traffic(&counts.global),
        };
        if let Some(known) = self.counts.get_mut(symbol) {
            known.absorb(one);
        } else if self.counts.len() < MAX_COUNTED {
            self.counts.insert(symbol.to_owned(), one);
        }
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

fn traffic(of: &opt_emulator::Traffic) -> Traffic {
    let worst = of.worst.as_ref().map(|(line, source)| {
        let source =
            source.as_ref().map_or(String::new(), |it| format!(", {}:{}", clipped(&it.file), it.line));
        format!("PTX line {line}{source}")
    });
    Traffic { accesses: of.accesses, parts: of.parts, fewest_parts: of.fewest, worst, worst_launch: None }
}

/// Returns a name from the candidate's PTX, shortened and without control characters, because the candidate may choose
/// any name.
fn clipped(name: &str) -> String {
    name.chars().take(MAX_NAME).map(|it| if it.is_control() { '\u{fffd}' } else { it }).collect()
}

fn device() -> Device {
    Device::new(Config { memory: MEMORY.get(), ..Config::default() })
}

fn fault(call: &'static str, fault: Fault) -> DriverError {
    let mut site = Site { text: fault.kind.to_string(), ..Site::default() };
    if let Some(found) = fault.site.clone() {
        site.block = Some(found.block);
        site.thread = Some(found.thread);
        site.ptx_line = Some(found.line);
        site.source = found.source.map(|source| format!("{}:{}", clipped(source.name()), source.line));
    }
    site.is_race = matches!(fault.kind, FaultKind::Race { .. });
    if let FaultKind::IllegalAddress(access)
    | FaultKind::UseAfterFree(access)
    | FaultKind::Uninitialised(access) = &fault.kind
    {
        let is_global = access.memory == Memory::Global;
        site.address = is_global.then_some(access.address);
        site.outside_global = !is_global;
    }
    DriverError { call, code: Code(fault.code()), site: Some(Box::new(site)) }
}

impl Driver for EmulatedDriver {
    fn card(&self) -> &Card {
        &self.card
    }

    fn memory(&mut self) -> Result<DeviceMemory, DriverError> {
        Ok(DeviceMemory { free: self.card.total - Bytes::new(self.device.used()), total: self.card.total })
    }

    fn allocate(&mut self, bytes: Bytes) -> Result<u64, DriverError> {
        self.device.alloc(bytes.get()).map_err(|it| fault("allocating", it))
    }

    fn free(&mut self, address: u64) -> Result<(), DriverError> {
        self.device.free(address).map_err(|it| fault("freeing", it))
    }

    fn pinned(&mut self, bytes: Bytes) -> Result<Pinned, DriverError> {
        Ok(Pinned(Box::new(vec![0_u8; bytes.to_usize()])))
    }

    unsafe fn upload(&mut self, to: u64, from: *const u8, bytes: usize) -> Result<(), DriverError> {
        // SAFETY: the caller guarantees it; the memory is read before this returns.
        let bytes = unsafe { std::slice::from_raw_parts(from, bytes) };
        self.write(to, bytes)
    }

    unsafe fn download(&mut self, into: *mut u8, from: u64, bytes: usize) -> Result<(), DriverError> {
        // SAFETY: the caller guarantees it; the memory is written before this returns.
        let into = unsafe { std::slice::from_raw_parts_mut(into, bytes) };
        self.read(from, into)
    }

    fn fill(&mut self, _: Queue, at: u64, value: u8, bytes: Bytes) -> Result<(), DriverError> {
        self.device.fill(at, value, bytes.get()).map_err(|it| fault("filling", it))
    }

    fn forget(&mut self, at: u64, bytes: Bytes) -> Result<(), DriverError> {
        self.device.forget(at, bytes.get()).map_err(|it| fault("marking memory as unwritten", it))
    }

    fn read(&mut self, from: u64, into: &mut [u8]) -> Result<(), DriverError> {
        self.device.read(from, into).map_err(|it| fault("reading", it))
    }

    fn write(&mut self, to: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.device.write(to, bytes).map_err(|it| fault("writing", it))
    }

    fn mark(&mut self, _: Queue) -> Result<Mark, DriverError> {
        Ok(Mark(self.number()))
    }

    fn is_over(&mut self, _: Mark) -> Result<bool, DriverError> {
        Ok(true)
    }

    fn load(&mut self, image: &[u8]) -> Result<ModuleId, DriverError> {
        const CALL: &str = "loading a module";
        let refused = |code, text: String| {
            let site = Some(Box::new(Site { text, ..Site::default() }));
            DriverError { call: CALL, code, site }
        };
        let text = std::str::from_utf8(image).map_err(|_| {
            refused(
                Code::NOT_SUPPORTED,
                "this is a binary for a card, and the emulated device runs only PTX".to_owned(),
            )
        })?;
        let module = self.device.load(text).map_err(|error| match error {
            LoadError::Device(it) => fault(CALL, *it),
            other => refused(Code(other.code()), other.to_string()),
        })?;
        let number = self.number();
        self.modules.insert(number, module);
        Ok(ModuleId(number))
    }

    fn unload(&mut self, module: ModuleId) -> Result<(), DriverError> {
        let number = module.0;
        let Some(module) = self.modules.remove(&number) else { return Ok(()) };
        // Kernels that were looked up keep the code of their module in memory, so they are dropped, too.
        self.kernels.retain(|_, (of, _)| *of != number);
        self.device.unload(&module).map_err(|it| fault("unloading a module", it))
    }

    fn function(&mut self, module: ModuleId, symbol: &str) -> Result<FunctionId, DriverError> {
        let found = self.modules.get(&module.0).and_then(|module| module.function(symbol));
        let function = found.ok_or_else(|| {
            let text = format!("there is no kernel `{symbol}`");
            let site = Some(Box::new(Site { text, ..Site::default() }));
            DriverError { call: "looking up a kernel", code: Code::NOT_FOUND, site }
        })?;
        let number = self.number();
        self.kernels.insert(number, (module.0, function));
        Ok(FunctionId(number))
    }

    fn parameters(&mut self, function: FunctionId) -> Result<Option<Vec<usize>>, DriverError> {
        let sizes = self.kernels.get(&function.0).map(|(_, function)| function.param_sizes());
        Ok(sizes.map(|sizes| sizes.into_iter().map(|size| Bytes::new(size).to_usize()).collect()))
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), DriverError> {
        const CALL: &str = "launching";
        let unknown = DriverError::new(CALL, Code::INVALID_HANDLE);
        let (_, function) = self.kernels.get(&launch.function.0).ok_or(unknown)?;
        let order = opt_emulator::Launch {
            grid: launch.grid,
            block: launch.block,
            shared_bytes: u64::from(launch.shared_bytes),
            params: launch.params.clone(),
            limit: Limit { time: launch.limit, ..Limit::default() },
        };
        self.device.set_counts(self.counted.insert(launch.function));
        let summary = self.device.launch(function, &order).map_err(|it| fault(CALL, it))?;
        let room = PRINTED.saturating_sub(self.printed.len());
        let end =
            (0..=room.min(summary.printed.len())).rev().find(|&at| summary.printed.is_char_boundary(at));
        self.printed.push_str(&summary.printed[..end.unwrap_or(0)]);
        let symbol = function.name().to_owned();
        self.count(&symbol, &summary);
        Ok(())
    }

    fn printed(&mut self) -> String {
        std::mem::take(&mut self.printed)
    }

    fn take_counts(&mut self) -> Vec<EmulatedKernel> {
        self.counted.clear();
        std::mem::take(&mut self.counts).into_values().collect()
    }

    fn replace(&mut self) -> Result<(), DriverError> {
        self.device = device();
        self.modules.clear();
        self.kernels.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_ptx_are_short_and_have_no_control_characters() {
        assert_eq!(clipped("softmax.cu"), "softmax.cu");
        assert_eq!(clipped("a\nb\u{1b}[2J"), "a\u{fffd}b\u{fffd}[2J");
        assert_eq!(clipped(&"é".repeat(MAX_NAME + 1)).chars().count(), MAX_NAME);
    }
}
