//! Compares the ledger with the memory that Linux counts, in a process that does nothing else.

use std::cell::Cell;
use std::io;
use std::process::Command;
use std::sync::Arc;

use opt_shared::placement::{Peak, Placing, Terms};
use opt_shared::units::Bytes;

use crate::residency::device::Device;
use crate::residency::host::HostDevice;
use crate::residency::ledger::Kind;
use crate::residency::load::{Load, Origin, Residency};
use crate::residency::pages::Pages;
use crate::residency::staging::Source;

/// The environment variable that is set only in the measured process.
const ALONE: &str = "OPT_RESIDENCY_ALONE";
const TERMS: Terms = Terms { grain: Bytes::kib(4), slots: 2, slot: Bytes::kib(256) };
/// The number of bytes loaded between two samples. Another sample is taken at the end of each storage.
const SAMPLE_EVERY: u64 = 32 << 20;

/// The exact size of this process's private pages. The counters in `status` lag behind.
fn anonymous() -> Bytes {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("a figure");
    Bytes::kib(line.trim().trim_end_matches(" kB").parse().expect("a number"))
}

/// Samples the amount of memory that Linux counts, and keeps the highest value.
struct Watch {
    arena: Arc<dyn Fn() -> Bytes>,
    before: Bytes,
    max: Cell<Bytes>,
}

impl Watch {
    fn sample(&self) {
        let now = (self.arena)() + (anonymous() - self.before);
        self.max.set(self.max.get().max(now));
    }
}

/// A storage. If `held` is true, its source keeps a copy in host memory.
struct Storage<'a> {
    bytes: Bytes,
    held: bool,
    watch: &'a Watch,
}

struct Copy<'a> {
    storage: &'a Storage<'a>,
    pages: Option<Pages>,
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
        let pages = self.held.then(|| Pages::new(self.bytes)).transpose()?;
        let mut copy = Copy { storage: self, pages };
        if let Some(pages) = &mut copy.pages {
            pages.as_mut().fill(3);
        }
        Ok(Box::new(copy))
    }
}

impl Source for Copy<'_> {
    fn bytes(&self) -> Bytes {
        self.storage.bytes
    }

    fn describe(&self) -> String {
        self.storage.describe()
    }

    fn read_at(&mut self, at: Bytes, into: &mut [u8]) -> io::Result<()> {
        match &self.pages {
            Some(pages) => into.copy_from_slice(&pages.as_ref()[at.to_usize()..][..into.len()]),
            None => into.fill(5),
        }
        let end = at.get() + into.len() as u64;
        if end == self.storage.bytes.get() || end.is_multiple_of(SAMPLE_EVERY) {
            self.storage.watch.sample();
        }
        Ok(())
    }
}

/// The storages of a case (the size in MiB, whether the source keeps a copy, and the number of tensors), and the sizes
/// of its outputs in MiB. The peak of each case is at least 64 MiB.
type Case = (&'static [(u64, bool, usize)], &'static [u64]);
const CASES: [Case; 4] = [
    (&[(64, false, 1), (96, false, 1), (64, false, 0)], &[80]),
    (&[(64, true, 1), (96, true, 1)], &[]),
    (&[(128, false, 3), (64, true, 1), (1, false, 2)], &[]),
    (&[(1, true, 1), (64, true, 4), (70, false, 1)], &[100, 64]),
];

/// Runs itself again in a separate process, because in this one the memory of other tests would be counted too.
#[test]
fn ledger_agrees_with_linux() {
    if std::env::var_os(ALONE).is_some() {
        return CASES.iter().for_each(|case| measure(case.0, case.1));
    }
    let this = std::env::current_exe().expect("this program");
    let name = "residency::tests::linux::ledger_agrees_with_linux";
    let child = Command::new(this)
        .args([name, "--exact", "--test-threads=1", "--nocapture"])
        .env(ALONE, "1")
        .output()
        .expect("started");
    let output = String::from_utf8_lossy(&child.stdout);
    let errors = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{output}\n{errors}");
    assert!(output.contains("1 passed"), "the test did not run: {output}");
}

fn measure(storages: &[(u64, bool, usize)], outputs: &[u64]) {
    let page = Bytes::from(rustix::param::page_size());
    let terms = Terms { grain: page, ..TERMS };
    let placings: Vec<Placing> = storages
        .iter()
        .filter(|it| 0 < it.2)
        .map(|&(mib, held, _)| {
            let bytes = Bytes::mib(mib);
            Placing { bytes, held: if held { bytes } else { Bytes::ZERO } }
        })
        .collect();
    let after: Vec<Bytes> = outputs.iter().copied().map(Bytes::mib).collect();
    let formula = Peak::of(&placings, &after, terms);
    let device = HostDevice::create(formula.weights + formula.after).expect("an arena");
    let reader = device.reader().expect("a reader");
    let blocks = move || {
        use std::os::unix::fs::MetadataExt;
        Bytes::new(reader.metadata().expect("Linux reports the size").blocks()).saturating_mul(512)
    };
    let watch = Watch { arena: Arc::new(blocks), before: anonymous(), max: Cell::new(Bytes::ZERO) };
    let owned: Vec<Storage> = storages
        .iter()
        .map(|&(mib, held, _)| Storage { bytes: Bytes::mib(mib), held, watch: &watch })
        .collect();
    let named: Vec<(usize, &dyn Origin)> =
        owned.iter().enumerate().map(|(key, it)| (key, it as &dyn Origin)).collect();
    let tensors: Vec<usize> =
        storages.iter().enumerate().flat_map(|(key, it)| std::iter::repeat_n(key, it.2)).collect();
    let outputs: Vec<(Kind, Bytes)> = after.iter().map(|&bytes| (Kind::Output, bytes)).collect();
    let mut residency = Residency::new(device, terms.slots, terms.slot);
    let load = Load { storages: &named, tensors: &tensors, after: &outputs, instead_of: &[] };
    let after = residency.load(&load).expect("loaded");
    for buffer in &after {
        let filled = residency.device().fill(buffer, 7).expect("queued");
        residency.device().wait(filled).expect("filled");
    }
    watch.sample();
    let ledger = residency.ledger().peak();
    assert_eq!(ledger, formula.bytes());
    check_agreement(watch.max.get(), ledger);
    // When nothing is being copied, the device and Linux count the same number of bytes in the arena.
    let marks = residency.device().marks();
    assert_eq!(residency.device().counted().expect("Linux reports the size"), marks.placed);
    check_agreement((watch.arena)() + (anonymous() - watch.before), residency.ledger().sum());
    residency.dissolve().expect("dissolved");
}

/// Checks that the two counts agree within 1 %.
fn check_agreement(linux: Bytes, ledger: Bytes) {
    let (max, min) = (linux.max(ledger), linux.min(ledger));
    println!("Linux counts {}, the ledger {}", linux.get(), ledger.get());
    assert!(max - min <= ledger.fraction(0.01), "Linux counts {linux}, the ledger {ledger}");
}
