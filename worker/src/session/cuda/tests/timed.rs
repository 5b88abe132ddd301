//! Tests of timing with the scripted driver and its virtual clock: what a time contains, which blocks count, and which
//! ways of cheating the clock are detected.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU32, Ordering};

use opt_shared::message::{Depth, ProfileTask};
use opt_shared::outcome::{CacheStateReached, EntryProfile, Profiled};
use opt_shared::settings::{
    CacheState, InputMemory, Parity, Priority, ProfileEntries, ProfileSettings, Protocol, Vary,
};

use super::*;
use crate::session::cuda::driver::emulated::EmulatedDriver;
use crate::stage::profile;

const US: Duration = Duration::from_micros(1);
/// The size of the first entry's output, in bytes.
const OUTPUT: u64 = 600;

type Outcome = Result<(), (Code, Option<Site>)>;

/// A relu that takes this long by the virtual clock.
fn taking(took: Duration) -> impl Fn(&mut FakeMemory, &[u64]) -> Outcome + Send + 'static {
    move |memory, params| {
        memory.kernels_took += took;
        relu(memory, params)
    }
}

/// A profile of a candidate against a baseline. By default, a call of the baseline takes 250 us.
struct Race {
    driver: Box<dyn Driver>,
    script: SharedScript,
    op: &'static str,
    number: u32,
    args: &'static [&'static str],
    settings: ProfileSettings,
    depth: Depth,
    call_timeout: Duration,
}

impl Race {
    fn of(candidate: impl Fn(&mut FakeMemory, &[u64]) -> Outcome + Send + 'static) -> Self {
        Self::against(candidate, taking(250 * US))
    }

    fn against(
        candidate: impl Fn(&mut FakeMemory, &[u64]) -> Outcome + Send + 'static,
        baseline: impl Fn(&mut FakeMemory, &[u64]) -> Outcome + Send + 'static,
    ) -> Self {
        let (driver, script) = ScriptedDriver::new();
        {
            let mut script = script.lock();
            script.kernels.insert("candidate".to_owned(), (vec![8; 3], Arc::new(Mutex::new(candidate))));
            script.kernels.insert("baseline".to_owned(), (vec![8; 3], Arc::new(Mutex::new(baseline))));
        }
        let settings = ProfileSettings {
            protocol: Protocol::Paired,
            entries: ProfileEntries::Distinct,
            parity: Parity::None,
            batch_bytes: Bytes::ZERO,
            cache_state: CacheState::Auto,
            inputs: InputMemory::Mapped,
            max_noise: 0.01,
            entry_timeout: Duration::from_secs(10),
            budget: Duration::from_secs(300),
            min_improvement: 0.02,
            vary: Vary::Auto,
            priority: Priority::None,
        };
        Self {
            driver: Box::new(driver),
            script,
            op: RELU,
            number: 0,
            args: &["input", "out", "out.numel"],
            settings,
            depth: Depth::Full,
            call_timeout: Duration::from_secs(60),
        }
    }

    fn run(self) -> (Head, Result<Profiled, SessionError>, SharedScript) {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut entries, signature) = entries_of(self.op, &[self.number]);
        entries[0].numbers.varied_on_card = Bytes::mib(9);
        let callee = |symbol: &str| {
            let own = folder.path().join(symbol);
            std::fs::create_dir(&own).expect("made");
            let grid = [expression("ceil_div(input.numel, 256)"), expression("1"), expression("1")];
            let steps = vec![LaunchStep { grid, ..step(symbol, self.args) }];
            let launch = Launch { steps, workspaces: Vec::new() };
            Callee {
                candidate: symbol.to_owned(),
                ..device_callee(&own, symbol.as_bytes(), signature.clone(), launch)
            }
        };
        let task = ProfileTask {
            callee: callee("candidate"),
            baseline: Some(callee("baseline")),
            entries,
            verify: VerifySettings { call_timeout: self.call_timeout, ..verify_settings() },
            profile: self.settings,
            depth: self.depth,
            device_cap: CAP,
            constant: Vec::new(),
            drop_cache: false,
            seed: [7; 32],
        };
        let device = HeldDevice::new(self.driver);
        let backend = CudaBackend::new(&device, task.device_cap).expect("a seed");
        let mut head = Head::passed();
        let profiled =
            profile::run(&backend, &|_, _, _| (), &task, &mut head, &mut profile::Decisions::default());
        drop(backend);
        (head, profiled, self.script)
    }

    fn passes(self) -> (EntryProfile, SharedScript) {
        let (head, profiled, script) = self.run();
        assert_eq!(head.status, Status::Passed, "{}", head.detail);
        let entry = profiled.expect("a profile").entries.pop().expect("one entry");
        (entry, script)
    }

    fn ends_as(self, status: Status, fragment: &str) {
        let (head, profiled, script) = self.run();
        let profiled = profiled.expect("a profile");
        assert_eq!(head.status, status, "{}", head.detail);
        assert!(head.detail.contains(fragment), "{fragment}: {}", head.detail);
        assert!(profiled.entries.is_empty() && !profiled.baseline_failed, "{:?}", profiled.entries);
        assert_eq!(script.lock().held, Bytes::ZERO);
    }
}

fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() < 1e-6 * expected
}

#[test]
fn times_are_those_of_the_launches_without_the_flushes() {
    let race = Race::of(taking(100 * US));
    race.script.lock().clock.bytes_per_us = 1024;
    let (entry, script) = race.passes();
    assert!(close(entry.times.median_time_ms, 0.1), "{:?}", entry.times);
    assert!(close(entry.speedup.expect("paired").value, 2.5), "{:?}", entry.speedup);
    assert_eq!((entry.cache_state, entry.calls_per_block), (CacheStateReached::Cold, 1));
    assert_eq!(entry.discarded_blocks, 0);
    assert!(entry.handoff_us.abs() < 1e-9, "nothing is subtracted: {}", entry.handoff_us);
    assert_eq!(entry.varied, ["input"]);
    let device = entry.device.expect("timed on a device");
    // In a microsecond, a copy reads 1024 bytes and writes 1024 bytes.
    assert!(close(device.copy_bytes_per_second.expect("measured"), 2.048e9), "{device:?}");
    assert_eq!((device.throttled_pairs, device.graph_blocks, device.clock_mhz), (0, 0, None));
    assert_eq!(device.lacks.len(), 1, "the clock rate is unknown: {:?}", device.lacks);
    assert_eq!(script.lock().held, Bytes::ZERO, "nothing is left on the device");
}

#[test]
fn device_without_a_clock_times_nothing() {
    let race = Race { driver: Box::new(EmulatedDriver::new()), ..Race::of(taking(US)) };
    let (_, profiled, _) = race.run();
    let error = profiled.expect_err("no clock");
    let text = opt_shared::causes::chain(&error);
    assert!(text.contains("calls cannot be timed: the device has no clock"), "{text}");
}

#[test]
fn no_call_finds_outputs_of_an_earlier_one() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let (entry, _) = Race::of(move |memory: &mut FakeMemory, params: &[u64]| {
        let slot = memory.read(params[1], usize::try_from(OUTPUT).expect("small"));
        assert!(slot.iter().all(|&byte| byte == slot[0]) && crate::stage::POISONS.contains(&slot[0]));
        counted.fetch_add(1, Ordering::Relaxed);
        taking(100 * US)(memory, params)
    })
    .passes();
    let calls = calls.load(Ordering::Relaxed);
    assert!(100 < calls && entry.slots_checked != 0, "{calls} calls");
}

/// Runs an `add_` whose kernel records the changed argument's values at the start of each call. Returns them, and what
/// varied.
fn starts_of_changed_argument(vary: Vary) -> (Vec<Vec<f32>>, Vec<String>) {
    let starts = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&starts);
    let adds = Arc::new(move |memory: &mut FakeMemory, params: &[u64]| {
        let [x, y, count] = *params else { panic!("three parameters") };
        let floats = |bytes: &[u8]| -> Vec<f32> {
            bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        };
        let found = floats(&memory.read(x, Bytes::new(4 * count).to_usize()));
        let added = floats(&memory.read(y, 160));
        for ((at, value), added) in (0_u64..).zip(&found).zip(added.iter().cycle()) {
            memory.write(x + 4 * at, &(value + 2.0 * added).to_le_bytes());
        }
        seen.lock().expect("no panic").push(found);
        memory.kernels_took += 100 * US;
        Ok(())
    });
    let same = Arc::clone(&adds);
    let mut race = Race {
        op: "../changed/add_",
        number: 1,
        args: &["input", "other", "input.numel"],
        ..Race::against(
            move |memory, params| adds(memory, params),
            move |memory, params| same(memory, params),
        )
    };
    race.settings.vary = vary;
    let (entry, _) = race.passes();
    assert_eq!(entry.calls_per_block, 1);
    let starts = std::mem::take(&mut *starts.lock().expect("no panic"));
    assert!(100 < starts.len(), "{} calls", starts.len());
    (starts, entry.varied)
}

#[test]
fn argument_that_a_call_changes_is_restored_in_every_slot() {
    let (starts, _) = starts_of_changed_argument(Vary::None);
    assert!(starts.iter().all(|start| *start == starts[0]));
}

/// The captured values are the ones with which calls start if nothing varies. If a slot kept the result of a call,
/// further calls would add to it, and the values would sooner or later leave the range of the captured ones.
#[test]
fn argument_that_a_call_changes_starts_with_new_values_in_each_pair() {
    let (captured, _) = starts_of_changed_argument(Vary::None);
    let range = || captured[0].iter().copied();
    let (least, most) = (range().fold(f32::MAX, f32::min), range().fold(f32::MIN, f32::max));
    let (starts, varied) = starts_of_changed_argument(Vary::Auto);
    assert!(varied.contains(&"input".to_owned()), "{varied:?}");
    assert!(starts.iter().flatten().all(|value| (least..=most).contains(value)));
    // The candidate's and the baseline's call of a pair start with the same values, and some calls are repeated with
    // the values of earlier ones.
    let mut distinct = starts.clone();
    distinct.sort_by(|one, other| one.partial_cmp(other).expect("no NaN"));
    distinct.dedup();
    assert!(starts.len() < 4 * distinct.len(), "{} of {}", distinct.len(), starts.len());
}

#[test]
fn throttled_blocks_are_discarded_with_their_pairs_and_counted() {
    let race = Race::of(taking(100 * US));
    // The clock rate is read twice for each block. In about two of every 30 blocks, it is less than half of the usual
    // rate.
    race.script.lock().clock.mhz =
        (0..4000).map(|reading| if reading % 60 < 4 { 900 } else { 1980 }).collect();
    let (entry, _) = race.passes();
    assert!(close(entry.times.max_time_ms, 0.1), "{:?}", entry.times);
    assert!(close(entry.speedup.expect("paired").value, 2.5), "{:?}", entry.speedup);
    let device = entry.device.expect("timed on a device");
    assert!(0 < device.throttled_pairs, "{device:?}");
    assert_eq!(entry.discarded_blocks, 2 * device.throttled_pairs, "both blocks of each pair");
    assert!(close(device.clock_mhz.expect("reported"), 1980.0), "{device:?}");
    assert!(device.lacks.is_empty(), "{:?}", device.lacks);
}

#[test]
fn kernel_that_writes_faster_than_the_device_copies_is_too_fast() {
    let race = |took| {
        let race = Race::of(taking(took));
        race.script.lock().clock.bytes_per_us = 10;
        race
    };
    // In a microsecond, a copy reads 10 bytes and writes 10. A kernel that only writes could write 20, so 600 bytes
    // take at least about 30 us.
    race(25 * US).ends_as(Status::TooFast, "the device copies");
    let (entry, _) = race(40 * US).passes();
    assert!(close(entry.times.median_time_ms, 0.04), "{:?}", entry.times);
}

#[test]
fn device_clock_that_contradicts_the_host_clock_is_not_believed() {
    let race = |percent| {
        let race = Race::of(taking(1000 * US));
        race.script.lock().clock.shows_percent = percent;
        race
    };
    race(20).ends_as(Status::TimingMismatch, "by the host's clock");
    let (_, profiled, _) = race(150).run();
    let error = profiled.expect_err("more time than has passed");
    assert!(matches!(error, SessionError::DeviceClock { .. }), "{error}");
}

#[test]
fn short_calls_of_a_warm_block_are_launched_as_a_graph() {
    let race = |has_graphs| {
        let mut race = Race::of(taking(5 * US));
        race.settings.cache_state = CacheState::Warm;
        {
            let clock = &mut race.script.lock().clock;
            clock.has_graphs = has_graphs;
            clock.launch_takes = 8 * US;
        }
        race
    };
    let (entry, script) = race(true).passes();
    let device = entry.device.expect("timed on a device");
    assert!(0 < device.graph_blocks && 0 < script.lock().clock.graphs_launched);
    assert!(close(entry.times.median_time_ms, 0.005), "{:?}", entry.times);
    assert_eq!(entry.cache_state, CacheStateReached::Warm);
    let (entry, _) = race(false).passes();
    assert!(close(entry.times.median_time_ms, 0.013), "{:?}", entry.times);
    assert_eq!(entry.device.expect("timed on a device").graph_blocks, 0);
}

#[test]
fn kernel_that_remembers_results_does_not_win() {
    // This kernel looks up results by the address of the input, as a kernel with a buffer on the device could.
    let by_address = || {
        let known: RefCell<std::collections::BTreeMap<u64, Vec<u8>>> = RefCell::default();
        move |memory: &mut FakeMemory, params: &[u64]| {
            let size = usize::try_from(OUTPUT).expect("small");
            if let Some(result) = known.borrow().get(&params[0]) {
                memory.kernels_took += 10 * US;
                memory.write(params[1], result);
                return Ok(());
            }
            taking(250 * US)(memory, params)?;
            known.borrow_mut().insert(params[0], memory.read(params[1], size));
            Ok(())
        }
    };
    Race::of(by_address()).ends_as(Status::Nondeterministic, "timed call");
    // This kernel copies the previous call's result from its slot.
    let last_slot = Cell::new(0_u64);
    let by_slot = move |memory: &mut FakeMemory, params: &[u64]| {
        let former = last_slot.replace(params[1]);
        if former == 0 || params[1] <= former {
            return taking(250 * US)(memory, params);
        }
        let result = memory.read(former, usize::try_from(OUTPUT).expect("small"));
        memory.kernels_took += 10 * US;
        memory.write(params[1], &result);
        Ok(())
    };
    let mut race = Race::of(by_slot);
    race.settings.cache_state = CacheState::Warm;
    race.ends_as(Status::Nondeterministic, "timed call");
}

/// Candidate and baseline read the same captured inputs. If one could change them unnoticed, both would compute the
/// same wrong outputs.
#[test]
fn kernel_that_changes_captured_inputs_is_caught_at_the_end_of_its_block() {
    let mut race = Race::of(|memory: &mut FakeMemory, params: &[u64]| {
        taking(100 * US)(memory, params)?;
        memory.write(params[0], &[0; 4]);
        Ok(())
    });
    race.settings.vary = Vary::None;
    race.ends_as(Status::InputMutated, "the input `input`");
}

#[test]
fn fault_in_a_timed_call_ends_the_session_with_its_verdict() {
    let calls = Cell::new(0_u32);
    let race = Race::of(move |memory: &mut FakeMemory, params: &[u64]| {
        calls.set(calls.get() + 1);
        if 50 < calls.get() {
            return Err((Code::ILLEGAL_ADDRESS, None));
        }
        taking(100 * US)(memory, params)
    });
    let (head, profiled, _) = race.run();
    assert_eq!(head.status, Status::Crashed, "{}", head.detail);
    assert!(head.detail.contains("in launch 1 (`candidate`)"), "{}", head.detail);
    assert!(head.context_lost && profiled.expect("a profile").entries.is_empty());
}

#[test]
fn endless_kernel_is_a_timeout() {
    let mut race = Race::of(taking(US));
    race.script.lock().endless.push("candidate".to_owned());
    race.settings.vary = Vary::None;
    race.call_timeout = Duration::from_millis(30);
    let (head, ..) = race.run();
    assert_eq!(head.status, Status::Timeout, "{}", head.detail);
    assert!(head.context_lost);
}
