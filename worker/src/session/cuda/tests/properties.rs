//! Tests with random loads and random errors of the driver: the cap is never exceeded, the peak equals the predicted
//! one, and all memory is released in the end.

use proptest::prelude::*;

use super::*;
use crate::residency::device::{Buffer, Device as _};
use crate::residency::tests::cases::LoadCase;
use crate::residency::tests::load;
use crate::session::cuda::memory::CudaMemory;
use crate::session::cuda::points::Points;

const STEPS: usize = 100;
const SMALL: Bytes = Bytes::kib(64);
const CASES: u64 = 10_000;
/// The size of the largest possible storage of a case, in bytes.
const LARGEST: u64 = 10_000;

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Release(usize),
    Fill(usize),
    /// Copies this many bytes to the device.
    Upload(usize, u64),
    Fail(Asked, usize, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let asked =
        prop::sample::select(vec![Asked::Allocate, Asked::Free, Asked::Mark, Asked::Upload, Asked::Fill]);
    let codes = prop::sample::select(vec![1_u32, 2, 719, 999]);
    let step = prop_oneof![
        8 => (0_u64..20_000).prop_map(Step::Allocate),
        4 => any::<usize>().prop_map(Step::Release),
        2 => any::<usize>().prop_map(Step::Fill),
        4 => (any::<usize>(), 0_u64..4096).prop_map(|(at, bytes)| Step::Upload(at, bytes)),
        1 => (asked, 1_usize..5, codes).prop_map(|(what, nth, code)| Step::Fail(what, nth, code)),
    ];
    prop::collection::vec(step, STEPS)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Takes 100,000 steps in all.
    #[test]
    fn cap_is_kept_under_errors_of_the_driver(steps in steps(), polls in 0_u32..3) {
        let (driver, script) = ScriptedDriver::new();
        script.lock().polls = polls;
        let shared = HeldDevice::new(Box::new(driver)).driver;
        let mut memory = CudaMemory::new(shared.clone(), SMALL, Points::default());
        let mut buffers: Vec<Buffer> = Vec::new();
        let frees_fail = steps.iter().any(|step| matches!(step, Step::Fail(Asked::Free, ..)));
        for step in steps {
            let picked = |at: usize| at.checked_rem(buffers.len());
            match step {
                Step::Allocate(bytes) => buffers.extend(memory.allocate(Bytes::new(bytes))),
                Step::Release(at) => {
                    if let Some(at) = picked(at) {
                        let _ = memory.release(buffers.swap_remove(at));
                    }
                }
                Step::Fill(at) => {
                    if let Some(at) = picked(at) {
                        let _ = memory.fill(&buffers[at], 3);
                    }
                }
                Step::Upload(at, bytes) => {
                    let slot = memory.slot(Bytes::kib(4));
                    if let (Some(at), Ok(slot)) = (picked(at), slot) {
                        let _ = memory.upload(slot, Bytes::new(bytes), &buffers[at], Bytes::ZERO);
                        let _ = memory.reclaim();
                    }
                }
                Step::Fail(what, nth, code) => script.lock().failing.push((what, nth, Code(code))),
            }
            let held = script.lock().most_held;
            prop_assert!(held <= memory.marks().placed_peak, "{held:?} {:?}", memory.marks());
            prop_assert!(memory.marks().placed_peak <= SMALL);
        }
        drop(memory);
        // If the context has failed, its memory is released as a whole, not buffer by buffer.
        let script = script.lock();
        prop_assert!(script.held == Bytes::ZERO || frees_fail || script.has_failed(), "{:?}", script.held);
    }
}

#[test]
fn peak_equals_the_formula_in_ten_thousand_device_cases() {
    for seed in 0..CASES {
        let (driver, script) = ScriptedDriver::new();
        let grain = driver.card().grain;
        let shared = HeldDevice::new(Box::new(driver)).driver;
        let case = LoadCase::random(seed, grain.get(), LARGEST, true);
        let memory = CudaMemory::new(shared.clone(), Bytes::MAX, Points::default());
        let (mut residency, _after) = load(&case, memory);
        let peak = case.peak();
        assert_eq!(residency.ledger().peak(), peak.bytes(), "case {seed}: {peak:?}");
        let marks = residency.device().marks();
        assert_eq!((marks.placed, marks.staged), (peak.weights + peak.after, peak.staging), "case {seed}");
        let script = script.lock();
        assert!(script.most_held <= marks.placed, "case {seed}: {:?}", script.most_held);
        check_upload_order(&case, &script.asked, seed);
    }
}

/// Checks that each input is uploaded before the next one is allocated, and all of them before any output is.
fn check_upload_order(case: &LoadCase, asked: &[Asked], seed: u64) {
    let inputs =
        case.storages.iter().zip(case.uses()).filter(|(it, uses)| 0 < *uses && it.bytes != 0).count();
    let (mut allocated, mut last) = (0, Asked::Upload);
    for &asked in asked.iter().filter(|it| matches!(it, Asked::Allocate | Asked::Upload)) {
        if asked == Asked::Allocate {
            assert!(inputs <= allocated || last == Asked::Upload, "case {seed}: input {allocated} waits");
            allocated += 1;
        } else {
            assert!(allocated <= inputs, "case {seed}: an upload after an output was allocated");
        }
        last = asked;
    }
}
