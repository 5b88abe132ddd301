//! Measures loads of the residency engine for a few jobs, each loaded lazily, eagerly, and lazily again.
//!
//! The peak memory of a load is counted twice. One count is that of the engine's ledger. The other is that of Linux,
//! which is read after each storage has been loaded and after the outputs have been written. The eager order exists
//! only in this benchmark, as a negative control: its peak must exceed the bound, and the peak of the lazy order must
//! equal it.

use std::cell::Cell;
use std::io;
use std::time::Instant;

use anyhow::{Context, Result};
use opt_shared::placement::{Peak, Placing, Terms};
use opt_shared::units::Bytes;
use opt_worker::residency::device::{Buffer, Device};
use opt_worker::residency::host::HostDevice;
use opt_worker::residency::ledger::{Accounted, Kind, Ledger};
use opt_worker::residency::load::{Load, Origin, Residency};
use opt_worker::residency::staging::{Ring, Source};
use serde_json::{Value, json};

use super::figures::{Figures, conditions, mib, show};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Rounds of lazy, eager, lazy for each job
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
}

const SLOTS: u64 = 2;
const SLOT: Bytes = Bytes::mib(1);
/// The allowed difference between Linux's count and the ledger for a lazy load, as a fraction.
const AGREEMENT: f64 = 0.01;

/// A load. Each storage has its size in MiB, whether the source has all bytes in host memory, and its number of
/// tensors. Each output has its size in MiB.
struct Job {
    name: &'static str,
    storages: &'static [(u64, bool, usize)],
    outputs: &'static [u64],
}

const JOBS: [Job; 4] = [
    Job { name: "one table, ten entries", storages: &[(64, false, 10)], outputs: &[8] },
    Job {
        name: "legacy records: sources in host memory",
        storages: &[(96, true, 1), (64, true, 1)],
        outputs: &[80],
    },
    Job {
        name: "half of the storages unused",
        storages: &[(64, false, 1), (64, false, 0), (64, false, 1), (64, false, 0)],
        outputs: &[64],
    },
    Job {
        name: "one giant, shared by two",
        storages: &[(256, false, 2), (1, false, 1), (1, false, 1)],
        outputs: &[100],
    },
];

/// Records the largest amount of memory that Linux has reported: the sum of the arena and the growth of this process's
/// private memory.
struct Watch<'a> {
    arena: &'a dyn Fn() -> u64,
    before: u64,
    most: Cell<u64>,
}

impl Watch<'_> {
    fn record_peak(&self) -> io::Result<()> {
        let now = (self.arena)() + anonymous()?.saturating_sub(self.before);
        self.most.set(self.most.get().max(now));
        Ok(())
    }
}

/// Returns the private memory of this process in bytes. Reads `smaps_rollup`, because the counters in `status` lag
/// behind.
fn anonymous() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other("no anonymous memory in smaps_rollup"))
}

struct Storage<'a> {
    bytes: Bytes,
    /// Whether the source keeps all bytes in host memory.
    held: bool,
    watch: &'a Watch<'a>,
}

struct Reading<'a> {
    storage: &'a Storage<'a>,
    copy: Vec<u8>,
}

impl Origin for Storage<'_> {
    fn bytes(&self) -> Bytes {
        self.bytes
    }

    fn held(&self) -> Bytes {
        if self.held { self.bytes } else { Bytes::ZERO }
    }

    fn describe(&self) -> String {
        "a storage".to_owned()
    }

    fn open(&self) -> io::Result<Box<dyn Source + '_>> {
        Ok(Box::new(Reading { storage: self, copy: vec![3; self.held().to_usize()] }))
    }
}

impl Source for Reading<'_> {
    fn bytes(&self) -> Bytes {
        self.storage.bytes
    }

    fn describe(&self) -> String {
        self.storage.describe()
    }

    fn read_at(&mut self, at: Bytes, into: &mut [u8]) -> io::Result<()> {
        if self.copy.is_empty() {
            into.fill(5);
        } else {
            into.copy_from_slice(&self.copy[at.to_usize()..][..into.len()]);
        }
        if at.get() + into.len() as u64 == self.storage.bytes.get() {
            self.storage.watch.record_peak()
        } else {
            Ok(())
        }
    }
}

impl Job {
    fn formula(&self) -> Peak {
        let used = self.storages.iter().filter(|it| 0 < it.2);
        let placings: Vec<Placing> = used
            .map(|&(mib, held, _)| {
                let bytes = Bytes::mib(mib);
                Placing { bytes, held: if held { bytes } else { Bytes::ZERO } }
            })
            .collect();
        let after: Vec<Bytes> = self.outputs.iter().copied().map(Bytes::mib).collect();
        let grain = Bytes::from(rustix::param::page_size());
        Peak::of(&placings, &after, Terms { grain, slots: SLOTS, slot: SLOT })
    }

    /// Carries out one load. Returns the peaks according to the ledger and to Linux, and the time in milliseconds.
    fn load(&self, order: Order) -> Result<(u64, u64, f64)> {
        let tensors: Vec<usize> =
            self.storages.iter().enumerate().flat_map(|(key, it)| std::iter::repeat_n(key, it.2)).collect();
        let copies: u64 = self.storages.iter().map(|it| it.0 * it.2.max(1) as u64).sum();
        let room = Bytes::mib(copies + self.outputs.iter().sum::<u64>());
        let device = HostDevice::create(room).context("making an arena")?;
        let arena = device.reader().context("opening the arena")?;
        let blocks = || {
            use std::os::unix::fs::MetadataExt;
            arena.metadata().map_or(0, |it| it.blocks() * 512)
        };
        let watch = Watch { arena: &blocks, before: anonymous()?, most: Cell::new(0) };
        let storages: Vec<Storage<'_>> = (self.storages.iter())
            .map(|&(mib, held, _)| Storage { bytes: Bytes::mib(mib), held, watch: &watch })
            .collect();
        let named: Vec<(usize, &dyn Origin)> =
            storages.iter().enumerate().map(|(key, it)| (key, it as &dyn Origin)).collect();
        let outputs: Vec<(Kind, Bytes)> =
            self.outputs.iter().map(|&mib| (Kind::Output, Bytes::mib(mib))).collect();
        let load = Load { storages: &named, tensors: &tensors, after: &outputs, instead_of: &[] };
        let (ledger, ms) = match order {
            Order::Lazy => lazily(device, &load, &watch)?,
            Order::Eager => eagerly(device, &load, &watch)?,
        };
        Ok((ledger.peak().get(), watch.most.get(), ms))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Each buffer is allocated when it is needed, as in the product.
    Lazy,
    /// All buffers are allocated at the start.
    Eager,
}

/// The ledger after a load, and the time of the load in milliseconds.
type Loaded = (Ledger, f64);

fn lazily(device: HostDevice, load: &Load<'_, usize>, watch: &Watch<'_>) -> Result<Loaded> {
    let mut residency = Residency::new(device, SLOTS, SLOT);
    let began = Instant::now();
    let after = residency.load(load)?;
    let ms = began.elapsed().as_secs_f64() * 1e3;
    write_to(residency.device(), &after)?;
    watch.record_peak()?;
    Ok((residency.dissolve()?, ms))
}

/// Allocates everything at the start: the outputs first, then a buffer for each tensor and each unused storage. Sources
/// stay open until the end.
fn eagerly(device: HostDevice, load: &Load<'_, usize>, watch: &Watch<'_>) -> Result<Loaded> {
    let mut on = Accounted::new(device);
    let mut ring = Ring::new(SLOTS, SLOT);
    let began = Instant::now();
    let after =
        (load.after.iter()).map(|&(kind, bytes)| on.allocate(kind, bytes)).collect::<Result<Vec<_>, _>>()?;
    let (mut sources, mut buffers) = (Vec::new(), Vec::new());
    for (storage, (_, origin)) in load.storages.iter().enumerate() {
        let uses = load.tensors.iter().filter(|&&it| it == storage).count();
        for _ in 0..uses.max(1) {
            on.add_source(origin.held());
            sources.push(origin.open()?);
            buffers.push(on.allocate(Kind::Weight, origin.bytes())?);
        }
    }
    ring.prepare(&mut on, buffers.iter().map(Buffer::bytes))?;
    let mut last = None;
    for (source, buffer) in sources.iter_mut().zip(&buffers) {
        last = ring.upload(&mut on, &mut **source, buffer)?.or(last);
    }
    last.map_or(Ok(()), |last| on.device().wait(last))?;
    drop(sources);
    let ms = began.elapsed().as_secs_f64() * 1e3;
    write_to(on.device(), &after)?;
    watch.record_peak()?;
    ring.dissolve(&mut on)?;
    Ok((on.into_ledger(), ms))
}

fn write_to(device: &mut HostDevice, outputs: &[Buffer]) -> Result<()> {
    for buffer in outputs {
        let filled = device.fill(buffer, 7)?;
        device.wait(filled)?;
    }
    Ok(())
}

struct Row {
    job: &'static str,
    formula: u64,
    /// For each order: the ledger's peak, Linux's peak and the time.
    orders: [[Figures; 3]; 3],
}

const ORDERS: [(&str, Order); 3] =
    [("lazy", Order::Lazy), ("eager", Order::Eager), ("lazy again", Order::Lazy)];

impl Row {
    /// Returns true if the largest lazy peak equals the formula and agrees with Linux's count, and if the median eager
    /// peaks exceed the formula.
    fn holds(&self) -> bool {
        self.orders.iter().zip(ORDERS).all(|([ledger, kernel, _], (_, order))| match order {
            Order::Lazy => {
                let off = (kernel.max() - ledger.max()).abs();
                ledger.max() == mib(self.formula) && off <= ledger.max() * AGREEMENT
            }
            Order::Eager => mib(self.formula) < ledger.median() && mib(self.formula) < kernel.median(),
        })
    }

    fn to_json(&self) -> Value {
        let order = |([ledger, kernel, ms], (name, _)): (&[Figures; 3], (&str, Order))| json!({ "order": name, "ledger": ledger.to_json("MiB"), "kernel": kernel.to_json("MiB"), "load": ms.to_json("ms") });
        json!({ "job": self.job, "formula_bytes": self.formula, "orders": self.orders.iter().zip(ORDERS).map(order).collect::<Vec<_>>() })
    }

    fn print(&self) {
        for ([ledger, kernel, ms], (name, _)) in self.orders.iter().zip(ORDERS) {
            println!(
                "| {} | {:.1} | {name} | {:.1} | {:.1} | {:.2} | {:.0} |",
                self.job,
                mib(self.formula),
                ledger.median(),
                kernel.median(),
                ledger.median() / mib(self.formula),
                ms.median()
            );
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let conditions = conditions("no files are read: sources make their bytes")?;
    let mut rows = Vec::new();
    for job in &JOBS {
        let mut row = Row { job: job.name, formula: job.formula().bytes().get(), orders: Default::default() };
        for _ in 0..arguments.runs {
            for (at, (_, order)) in ORDERS.into_iter().enumerate() {
                let (ledger, kernel, ms) = job.load(order)?;
                let [of_ledger, of_kernel, of_time] = &mut row.orders[at];
                of_ledger.push(mib(ledger));
                of_kernel.push(mib(kernel));
                of_time.push(ms);
            }
        }
        rows.push(row);
    }
    let good = rows.iter().all(Row::holds);
    let sheet = json!({
        "benchmark": "residency", "conditions": conditions, "runs": arguments.runs,
        "jobs": rows.iter().map(Row::to_json).collect::<Vec<_>>(), "good": good,
    });
    show(arguments.json, &sheet, || {
        println!(
            "| job | formula MiB | order | peak MiB: ledger | kernel | ledger over the formula | load, ms |"
        );
        println!("|---|---|---|---|---|---|---|");
        rows.iter().for_each(Row::print);
    })?;
    Ok(good)
}
