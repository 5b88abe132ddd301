//! Tests whole replays on the host device, with simulated callers and captures: which bytes arrive, and which schedules
//! are refused.

mod beside_kernels;

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use opt_shared::capture::DType;
use opt_shared::ids::StorageId;
use opt_shared::replay::{Digest, Key, Recorder, Use};
use opt_shared::units::{Bytes, to_index};
use proptest::prelude::*;

use super::super::planner::{self, Wanted};
use super::super::pool::POISON;
use super::*;
use crate::residency::host::HostDevice;
use crate::residency::staging::Source;

fn byte(constant: u8, at: u64) -> u8 {
    (u64::from(constant) * 37 + at * 11 + at / 4096).to_le_bytes()[0] | 1
}

fn contents(constant: u8, length: u64) -> Vec<u8> {
    (0..length).map(|at| byte(constant, at)).collect()
}

/// Returns the length of a constant. Lengths go from one byte to about 180 kB, with several alignments.
fn length(constant: u8) -> u64 {
    1 + u64::from(constant) * 9_001
}

fn need(constant: u8) -> Need {
    Need {
        key: Key([constant + 1; 32]),
        name: format!("weight_{constant}"),
        storage: StorageId(0),
        start: 0,
        bytes: Bytes::new(length(constant)),
        phase: (constant % 4) * 16,
        dtype: DType::UInt8,
        shape: vec![length(constant)],
    }
}

fn name(step: usize) -> Step {
    Step { job: "job".to_owned(), entry: format!("entry_{step}") }
}

fn record(sets: &[Vec<u8>]) -> Recording {
    let mut recorder = Recorder::default();
    for (step, set) in sets.iter().enumerate() {
        let needs: Vec<Need> = set.iter().map(|&it| need(it)).collect();
        recorder.step("job", &name(step).entry, &needs).expect("within the limits");
    }
    let digests: Vec<Digest> = recorder
        .recording()
        .constants
        .iter()
        .map(|it| Digest(*blake3::hash(&contents(it.key.0[0] - 1, it.bytes.get())).as_bytes()))
        .collect();
    recorder.finish(&digests)
}

/// A reader that finds constants by the keys in the catalog.
struct Memory {
    keys: Vec<u8>,
    /// The constant whose last byte was changed.
    spoiled: Option<u8>,
}

struct Piece {
    constant: u8,
    spoiled: bool,
}

impl Source for Piece {
    fn bytes(&self) -> Bytes {
        Bytes::new(length(self.constant))
    }

    fn describe(&self) -> String {
        format!("weight_{}", self.constant)
    }

    fn read_at(&mut self, at: Bytes, into: &mut [u8]) -> io::Result<()> {
        for (index, slot) in into.iter_mut().enumerate() {
            let at = at.get() + index as u64;
            *slot = byte(self.constant, at) ^ u8::from(self.spoiled && at + 1 == length(self.constant));
        }
        Ok(())
    }
}

impl ConstantReader for Memory {
    fn open(&mut self, constant: u32) -> io::Result<Box<dyn Source + '_>> {
        let constant = *self.keys.get(constant as usize).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(Piece { constant, spoiled: self.spoiled == Some(constant) }))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Wrong(String);

/// A caller that checks the contents of the slots in every call, independently of the schedule.
struct Reading<'a> {
    truth: &'a [Vec<u8>],
    arena: std::fs::File,
    called: Arc<Mutex<Vec<usize>>>,
}

impl Caller for Reading<'_> {
    type Error = Wrong;

    fn needs(&mut self, step: usize) -> Result<Option<(Step, Vec<Need>)>, Wrong> {
        Ok(self.truth.get(step).map(|set| (name(step), set.iter().map(|&it| need(it)).collect())))
    }

    fn call(&mut self, step: usize, slots: &[ReadySlot]) -> Result<Launches, Wrong> {
        self.called.lock().expect("no thread panicked").push(step);
        for (slot, &constant) in slots.iter().zip(&self.truth[step]) {
            let mut seen = vec![0; to_index(length(constant))];
            self.arena.read_exact_at(&mut seen, slot.address + u64::from(slot.phase)).expect("read");
            if seen != contents(constant, length(constant)) {
                return Err(Wrong(format!("weight_{constant} has other bytes")));
            }
        }
        Ok(Launches::default())
    }
}

struct Outcome {
    result: Result<Done, StepsError<Wrong>>,
    called: Vec<usize>,
    planned: MovePlan,
}

fn run(recording: &Recording, truth: &[Vec<u8>], budget: Bytes, depth: u32, spoiled: Option<u8>) -> Outcome {
    let page = Bytes::from(rustix::param::page_size());
    let (sets, slots) = (recording.working_sets(), recording.slots(page));
    let bytes: Vec<Bytes> = recording.constants.iter().map(|it| it.bytes).collect();
    let wanted = Wanted { sets: &sets, slots: &slots, bytes: &bytes, pinned: &[], budget, depth };
    let planned = planner::plan(wanted).expect("above the floor");
    let device = HostDevice::create(budget).expect("an arena");
    let arena = device.reader().expect("a reader");
    let keys = recording.constants.iter().map(|it| it.key.0[0] - 1).collect();
    let pool = Pool::new(device, Memory { keys, spoiled }, &recording.constants, &planned, &sets);
    let called = Arc::default();
    let mut caller = Reading { truth, arena, called: Arc::clone(&called) };
    let result = replay(recording, &planned, pool, &mut caller);
    let called = called.lock().expect("no thread panicked").clone();
    Outcome { result, called, planned }
}

fn whole(recording: &Recording) -> Bytes {
    recording.slots(Bytes::from(rustix::param::page_size())).into_iter().sum()
}

fn floor(recording: &Recording) -> Bytes {
    recording.floor(&[], Bytes::from(rustix::param::page_size())).bytes()
}

fn model() -> Vec<Vec<u8>> {
    (0..40u8)
        .map(|step| vec![step % 13, (step * 5 + 1) % 17, 20].into_iter().collect())
        .map(distinct)
        .collect()
}

fn distinct(mut set: Vec<u8>) -> Vec<u8> {
    let mut seen = std::collections::BTreeSet::new();
    set.retain(|&it| seen.insert(it));
    set
}

#[test]
fn every_budget_gives_every_call_its_tensors() {
    let truth = model();
    let recording = record(&truth);
    let page = Bytes::from(rustix::param::page_size());
    let mut budget = floor(&recording);
    while budget <= whole(&recording) {
        for depth in [0, 1, 3] {
            let outcome = run(&recording, &truth, budget, depth, None);
            let done = outcome.result.expect("replayed");
            assert_eq!(done.steps.len(), truth.len());
            assert!(done.moved.peak <= budget, "{} of {budget}", done.moved.peak);
            assert_eq!(done.moved.peak, outcome.planned.peak, "the device's own mark");
            assert!(done.moved.ledger_peak <= outcome.planned.peak + Bytes::mib(3), "and its staging");
            assert_eq!(done.moved.bytes, outcome.planned.bytes_moved);
            assert_eq!(done.moved.evictions, outcome.planned.evictions);
        }
        budget += page.saturating_mul(7);
    }
}

fn use_at(recording: &mut Recording, at: usize) -> &mut Use {
    &mut recording.uses[at]
}

/// Numbers the uses as a recorder would, so that the mutation cannot be recognised from the recording alone.
fn renumbered(mut recording: Recording) -> Recording {
    let mut epochs = vec![0; recording.constants.len()];
    for (at, it) in recording.uses.iter_mut().enumerate() {
        it.id = u32::try_from(at).expect("few");
        it.epoch = epochs[it.constant as usize];
        it.bytes = recording.constants[it.constant as usize].bytes;
        epochs[it.constant as usize] += 1;
    }
    recording
}

/// Returns changed recordings (mutants) of every kind, each with its name and the index of its first difference.
fn mutants(recording: &Recording) -> Vec<(String, usize, Recording)> {
    let mut all = Vec::new();
    let count = recording.uses.len();
    for at in 0..count {
        let mut add = |what: &str, index: usize, change: &dyn Fn(&mut Recording)| {
            let mut mutant = recording.clone();
            change(&mut mutant);
            all.push((format!("{what} at {at}"), index, mutant));
        };
        add("deleted", at, &|it| drop_use(it, at));
        add("duplicated", at + 1, &|it| it.uses.insert(at + 1, it.uses[at]));
        add("inserted", at, &|it| {
            let strange = Use {
                constant: (it.uses[at].constant + 1) % u32::try_from(it.constants.len()).expect("few"),
                ..it.uses[at]
            };
            it.uses.insert(at, strange);
        });
        add("shrunk", at, &|it| use_at(it, at).bytes = it.uses[at].bytes - Bytes::new(1));
        add("grown", at, &|it| use_at(it, at).bytes += Bytes::new(1));
        add("ahead of its epoch", at, &|it| use_at(it, at).epoch += 1);
        if 0 < recording.uses[at].epoch {
            add("of a stale epoch", at, &|it| use_at(it, at).epoch -= 1);
        }
        if at + 1 < count {
            add("swapped", at, &|it| it.uses.swap(at, at + 1));
            if recording.uses[at].constant != recording.uses[at + 1].constant {
                let mut swapped = recording.clone();
                let (one, other) = (recording.uses[at], recording.uses[at + 1]);
                swapped.uses[at] = Use { constant: other.constant, name: other.name, ..one };
                swapped.uses[at + 1] = Use { constant: one.constant, name: one.name, ..other };
                all.push((format!("swapped and renumbered at {at}"), at, renumbered(swapped)));
            }
        }
    }
    all
}

fn drop_use(recording: &mut Recording, at: usize) {
    recording.uses.remove(at);
}

#[test]
fn mutated_schedule_is_caught_at_its_index_without_a_result() {
    let truth: Vec<Vec<u8>> =
        (0..85u8).map(|step| distinct(vec![step % 5, (step * 3 + 2) % 7, 7 + step % 2])).collect();
    let recording = record(&truth);
    assert!((200..=256).contains(&recording.uses.len()), "{}", recording.uses.len());
    let mut kinds = std::collections::BTreeMap::new();
    for (what, index, mutant) in mutants(&recording) {
        let budget = whole(&mutant);
        let outcome = run(&mutant, &truth, budget, 1, None);
        let Err(StepsError::Disagreement(disagreement)) = outcome.result else {
            panic!("{what}: not caught");
        };
        assert_eq!(disagreement.difference().index as usize, index, "{what}: {disagreement}");
        assert_ne!(disagreement.difference().expected, disagreement.difference().actual, "{what}");
        // The step with the difference and later ones were not called.
        let step = recording.uses.get(index).map_or(truth.len(), |it| it.step as usize);
        assert!(outcome.called.len() <= step, "{what}: called {:?}", outcome.called.last());
        *kinds.entry(what.split(" at ").next().unwrap_or_default().to_owned()).or_insert(0) += 1;
    }
    assert_eq!(kinds.len(), 9, "{kinds:?}");
}

#[test]
fn schedule_with_more_or_fewer_steps_has_no_result() {
    let truth = model();
    for (steps, index) in [(truth.len() - 1, None), (truth.len() + 1, None), (0, Some(0))] {
        let mut recorded = truth.clone();
        recorded.resize(steps, vec![0]);
        let recording = record(&recorded);
        let outcome = run(&recording, &truth, whole(&record(&truth)), 1, None);
        let Err(StepsError::Disagreement(disagreement)) = outcome.result else {
            panic!("{steps} steps: not caught")
        };
        let last = record(&truth[..steps.min(truth.len())]).uses.len();
        assert_eq!(disagreement.difference().index as usize, index.unwrap_or(last), "{disagreement}");
    }
}

#[test]
fn cursor_repeats_its_first_difference() {
    let recording = record(&[vec![0], vec![1]]);
    let mut cursor = Cursor::new(&recording);
    assert_eq!(cursor.step(&name(0), &[need(0)]), Ok(vec![0]));
    let disagreement = cursor.step(&name(1), &[need(0)]).expect_err("it is another");
    assert_eq!(disagreement.difference().index, 1);
    assert!(
        disagreement.difference().expected.contains("`weight_1`")
            && disagreement.difference().actual.contains("`weight_0`"),
        "{disagreement}"
    );
    assert_eq!(cursor.step(&name(1), &[need(1)]), Err(disagreement.clone()));
    assert_eq!(cursor.finish(), Err(disagreement));
    let mut early = Cursor::new(&recording);
    assert_eq!(early.step(&name(0), &[need(0)]), Ok(vec![0]));
    assert_eq!(early.finish().expect_err("a use is left").difference().index, 1);
    let mut other = Cursor::new(&recording);
    assert_eq!(other.step(&name(1), &[need(0)]).expect_err("another entry").difference().index, 0);
}

#[test]
fn changed_bytes_are_refused() {
    let truth = model();
    let recording = record(&truth);
    let outcome = run(&recording, &truth, whole(&recording), 1, Some(16));
    let Err(StepsError::Pool { source: PoolError::Changed { name }, step }) = outcome.result else {
        panic!("not caught");
    };
    assert_eq!(name, "weight_16");
    assert_eq!(outcome.called.len(), step, "every earlier call was made");
}

/// A slow reader, with which a test observes the arena between the allocation of a slot and the end of the copy into
/// it.
struct Slow {
    arena: std::fs::File,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
}

struct SlowPiece<'s>(&'s Slow);

impl Source for SlowPiece<'_> {
    fn bytes(&self) -> Bytes {
        Bytes::new(length(9))
    }

    fn describe(&self) -> String {
        "slow".to_owned()
    }

    fn read_at(&mut self, at: Bytes, into: &mut [u8]) -> io::Result<()> {
        // The fill with poison was queued before any byte was read. So either the slot is full of poison, or its own
        // bytes are being copied.
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let mut early = vec![0; to_index(length(9))];
            self.0.arena.read_exact_at(&mut early, 0)?;
            if early.iter().all(|&byte| byte == POISON) || until < Instant::now() {
                self.0.seen.lock().expect("no thread panicked").push(early);
                break;
            }
            std::thread::yield_now();
        }
        for (index, slot) in into.iter_mut().enumerate() {
            *slot = byte(9, at.get() + index as u64);
        }
        Ok(())
    }
}

impl ConstantReader for Slow {
    fn open(&mut self, _: u32) -> io::Result<Box<dyn Source + '_>> {
        Ok(Box::new(SlowPiece(self)))
    }
}

#[test]
fn slot_contains_poison_until_it_is_ready() {
    let truth = [vec![9]];
    let mut recording = record(&truth);
    recording.constants[0].phase = 0;
    let budget = whole(&recording);
    let (sets, slots) = (recording.working_sets(), recording.slots(Bytes::from(rustix::param::page_size())));
    let wanted = Wanted { sets: &sets, slots: &slots, bytes: &slots, pinned: &[], budget, depth: 0 };
    let planned = planner::plan(wanted).expect("room");
    let device = HostDevice::create(budget).expect("an arena");
    let (arena, for_caller) = (device.reader().expect("a reader"), device.reader().expect("a reader"));
    let seen = Arc::default();
    let reader = Slow { arena, seen: Arc::clone(&seen) };
    let pool = Pool::new(device, reader, &recording.constants, &planned, &sets);
    let mut caller = Reading { truth: &truth, arena: for_caller, called: Arc::default() };
    replay(&recording, &planned, pool, &mut caller).expect("replayed");
    let seen = seen.lock().expect("no thread panicked");
    assert!(!seen.is_empty() && seen.iter().all(|early| early.iter().all(|&byte| byte == POISON)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_replay_gives_every_call_its_tensors_within_the_budget(
        sets in prop::collection::vec(prop::collection::btree_set(0u8..12, 0..4), 1..16), depth in 0u32..4
    ) {
        let truth: Vec<Vec<u8>> = sets.into_iter().map(|set| set.into_iter().collect()).collect();
        let recording = record(&truth);
        let budget = floor(&recording);
        let outcome = run(&recording, &truth, budget, depth, None);
        let done = outcome.result.map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!(done.moved.peak <= budget);
        prop_assert_eq!(done.moved.bytes, outcome.planned.bytes_moved);
        prop_assert_eq!(done.moved.evictions, outcome.planned.evictions);
    }
}

#[test]
fn first_launch_that_differs_is_reported() {
    let recording = record(&[vec![0], vec![1]]);
    let launch =
        |symbol: &str, constant| KernelLaunch { symbol: symbol.to_owned(), constants: vec![(0, constant)] };
    let scheduled = [launch("load", 0), launch("add", 0), launch("store", 0)];
    let [first, second, third] = scheduled.clone();
    let cases: [(&[KernelLaunch], Option<u32>); 6] = [
        (&scheduled, None),
        (&[first.clone(), third.clone(), second.clone()], Some(1)),
        (&[first.clone(), second.clone()], Some(2)),
        (&[first.clone(), second.clone(), third.clone(), third.clone()], Some(3)),
        (&[first.clone(), launch("add", 1), third], Some(1)),
        (&[], Some(0)),
    ];
    for (actual, index) in cases {
        let mut cursor = Cursor::new(&recording);
        cursor.step(&name(0), &[need(0)]).expect("as scheduled");
        let found = cursor.launches(&scheduled, actual).err();
        assert_eq!(found.as_ref().map(|it| it.difference().index), index);
        if let Some(found) = found {
            assert!(matches!(found, Disagreement::Launch { step: 0, .. }), "{found}");
            assert_ne!(found.difference().expected, found.difference().actual);
            assert_eq!(cursor.finish(), Err(found), "the first difference is final");
        }
    }
}
