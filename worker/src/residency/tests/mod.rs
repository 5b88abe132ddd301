//! Loads random sets of storages, on a counting device and in real memory. Checks the peak against `placement::Peak`,
//! and the order of allocations, uploads and releases.

pub(crate) mod cases;
mod linux;

use std::os::unix::fs::FileExt;

use opt_shared::units::{Bytes, to_index};

use self::cases::{LoadCase, byte_of};
use super::counting::{Counting, DeviceCall};
use super::device::Device;
use super::host::HostDevice;
use super::ledger::{Change, Kind};
use super::load::{Load, Origin, Residency};

const CASES: u64 = 10_000;

/// Loads a case. Returns the residency, and the buffers that were allocated after the tensors.
pub(crate) fn load<D: Device>(
    case: &LoadCase,
    device: D,
) -> (Residency<D, usize>, Vec<super::device::Buffer>) {
    let mut residency = Residency::new(device, case.terms.slots, case.terms.slot);
    let storages: Vec<(usize, &dyn Origin)> =
        case.storages.iter().map(|it| (it.number, it as &dyn Origin)).collect();
    let load = Load { storages: &storages, tensors: &case.tensors, after: &case.after, instead_of: &[] };
    let after = residency.load(&load).expect("loaded");
    (residency, after)
}

#[test]
fn peak_equals_the_formula_in_ten_thousand_cases() {
    for seed in 0..CASES {
        let grain = [1, 64, 4096][(seed % 3) as usize];
        let case = LoadCase::random(seed, grain, 100_000, false);
        let device = Counting::new(Bytes::MAX, Bytes::new(grain), seed);
        let (mut residency, after) = load(&case, device);
        let peak = case.peak();
        assert_eq!(residency.ledger().peak(), peak.bytes(), "case {seed}: {peak:?}");
        let held: u64 = case.storages.iter().map(|it| it.held).max().unwrap_or(0);
        assert!(peak.source <= Bytes::new(held), "case {seed}");
        check_lazy_order(&case, &mut residency, seed);
        let marks = residency.device().marks();
        assert_eq!(marks.staged, peak.staging, "case {seed}");
        assert_eq!(marks.placed, peak.weights + peak.after, "case {seed}");
        assert_eq!(residency.ledger().sum(), marks.placed + marks.staged, "case {seed}");
        release_with_the_last_use(&case, residency, after, seed);
    }
}

/// Checks the order of a load, from the ledger's lines and the device's own record.
fn check_lazy_order(case: &LoadCase, residency: &mut Residency<Counting, usize>, seed: u64) {
    for (storage, uses) in case.storages.iter().zip(case.uses()) {
        assert_eq!(storage.opened.get(), u32::from(0 < uses), "case {seed}: {}", storage.number);
        assert!(!storage.open_now.get(), "case {seed}: {}", storage.number);
    }
    let mut sources = 0;
    let mut uploads_are_over = false;
    for line in residency.ledger().lines() {
        match (line.kind, line.change) {
            (Kind::Source, Change::Allocated) => sources += 1,
            (Kind::Source, Change::Released) => sources -= 1,
            (Kind::Weight, _) => assert_eq!((sources, uploads_are_over), (0, false), "case {seed}"),
            (Kind::Output | Kind::Workspace | Kind::Activation, _) => uploads_are_over = true,
            (Kind::Staging, _) => assert!(!uploads_are_over, "case {seed}"),
        }
        assert!((0..=1).contains(&sources), "case {seed}: one source at a time");
    }
    // All copies into a buffer are queued before the next buffer is allocated. All are complete before the first of the
    // buffers that follow the tensors is allocated.
    let calls = &residency.device().calls;
    let mut not_uploaded = 0;
    let weights = case.uses().iter().filter(|&&uses| 0 < uses).count();
    let mut allocated = 0;
    for call in calls {
        match *call {
            DeviceCall::Allocated { bytes, copies_under_way } => {
                assert_eq!(not_uploaded, 0, "case {seed}: a copy into the previous buffer is not queued yet");
                if allocated < weights {
                    not_uploaded = bytes.get();
                } else {
                    assert_eq!(copies_under_way, 0, "case {seed}: an upload is still pending");
                }
                allocated += 1;
            }
            DeviceCall::Uploading { bytes } => not_uploaded -= bytes.get(),
        }
    }
    assert_eq!((not_uploaded, allocated), (0, weights + case.after.len()), "case {seed}");
}

fn release_with_the_last_use(
    case: &LoadCase,
    mut residency: Residency<Counting, usize>,
    after: Vec<super::device::Buffer>,
    seed: u64,
) {
    let mut uses = case.uses();
    for &storage in case.tensors.iter().rev() {
        let before = residency.ledger().held(Kind::Weight);
        residency.end_use(&storage).expect("released");
        uses[storage] -= 1;
        let released = if uses[storage] == 0 { case.placed(case.storages[storage].bytes()) } else { 0 };
        let held = residency.ledger().held(Kind::Weight);
        assert_eq!(before - held, Bytes::new(released), "case {seed}");
        assert_eq!(residency.buffer(&storage).is_none(), uses[storage] == 0, "case {seed}");
    }
    for (buffer, (kind, _)) in after.into_iter().zip(&case.after) {
        residency.release(*kind, buffer).expect("released");
    }
    let ledger = residency.dissolve().expect("dissolved");
    assert_eq!(ledger.sum(), Bytes::ZERO, "case {seed}");
    assert_eq!(ledger.beyond(), 0);
}

/// In real memory, a device with exactly the predicted capacity suffices and its buffers have the right bytes. Once the
/// buffers after the tensors are released, Linux counts exactly the predicted weights. With a page less, the load
/// fails.
#[test]
fn capacity_of_the_formula_suffices_and_a_grain_less_fails() {
    let page = rustix::param::page_size() as u64;
    for seed in 0..60 {
        let case = LoadCase::random(seed, page, 400_000, true);
        let peak = case.peak();
        let room = peak.weights + peak.after;
        let device = HostDevice::create(room).expect("an arena");
        let (mut residency, after) = load(&case, device);
        assert_eq!(residency.ledger().peak(), peak.bytes(), "case {seed}");
        assert_eq!(residency.device().marks().placed_peak, room);
        for buffer in &after {
            residency.device().fill(buffer, 1).expect("queued");
        }
        let reader = residency.device().reader().expect("a reader");
        for (storage, uses) in case.storages.iter().zip(case.uses()) {
            let Some(buffer) = residency.buffer(&storage.number) else {
                assert_eq!(uses, 0, "case {seed}");
                continue;
            };
            let mut found = vec![0; to_index(storage.bytes)];
            reader.read_exact_at(&mut found, buffer.address()).expect("read");
            let right = |(at, &byte): (usize, &u8)| byte == byte_of(storage.number, at as u64);
            assert!(found.iter().enumerate().all(right), "case {seed}, storage {}", storage.number);
        }
        for (buffer, (kind, _)) in after.into_iter().zip(&case.after) {
            residency.release(*kind, buffer).expect("released");
        }
        assert_eq!(
            residency.device().counted().expect("Linux reports the size"),
            peak.weights,
            "case {seed}"
        );
        if room != Bytes::ZERO {
            let small = HostDevice::create(room - Bytes::new(page)).expect("an arena");
            let storages: Vec<(usize, &dyn Origin)> =
                case.storages.iter().map(|it| (it.number, it as &dyn Origin)).collect();
            let mut residency = Residency::new(small, case.terms.slots, case.terms.slot);
            let load =
                Load { storages: &storages, tensors: &case.tensors, after: &case.after, instead_of: &[] };
            assert!(residency.load(&load).is_err(), "case {seed}");
        }
    }
}

/// Storages that the second load uses too stay. All others are released before anything new is loaded.
#[test]
fn storages_shared_by_two_loads_are_loaded_once() {
    for seed in 0..2000 {
        let case = LoadCase::random(seed, 64, 100_000, false);
        let device = Counting::new(Bytes::MAX, Bytes::new(64), seed);
        let mut residency = Residency::new(device, case.terms.slots, case.terms.slot);
        let storages: Vec<(usize, &dyn Origin)> =
            case.storages.iter().map(|it| (it.number, it as &dyn Origin)).collect();
        let (first, second) = case.tensors.split_at(case.tensors.len() / 2);
        let mut max = Bytes::ZERO;
        for (tensors, instead_of) in [(first, &[][..]), (second, first)] {
            let load = Load { storages: &storages, tensors, after: &[], instead_of };
            residency.load(&load).expect("loaded");
            let used: std::collections::BTreeSet<usize> = tensors.iter().copied().collect();
            let weights = used.iter().map(|&it| case.placed(case.storages[it].bytes())).sum();
            assert_eq!(residency.ledger().held(Kind::Weight), Bytes::new(weights), "case {seed}");
            max = max.max(Bytes::new(weights));
        }
        assert_eq!(residency.device().marks().placed_peak, max, "case {seed}");
        for (storage, uses) in case.storages.iter().zip(case.uses()) {
            let is_shared = first.contains(&storage.number) && second.contains(&storage.number);
            assert_eq!(storage.opened.get(), u32::from(0 < uses), "case {seed}, shared: {is_shared}");
        }
    }
}
