//! The formulas of DESIGN, "Memory model", against sums made by hand.

use std::collections::BTreeMap;
use std::time::Duration;

use opt_shared::settings::{
    CacheState, InputMemory, LimitSettings, Nonfinite, ProfileEntries, ProfileSettings, Protocol,
    ToleranceProfile, VerifySettings,
};
use opt_shared::units::Bytes;

use crate::core::predict::{EntryNumbers, build, profile, ring, runner_memory, verify};
use crate::core::spec::StageSpec;

fn limits(memory: Option<Bytes>, threads: Option<u32>) -> LimitSettings {
    LimitSettings {
        memory,
        threads,
        processes: None,
        open_files: 256,
        output: Bytes::kib(64),
        env: BTreeMap::new(),
    }
}

fn verify_settings(call_timeout: Duration, repeats: u32) -> VerifySettings {
    VerifySettings {
        tolerance: ToleranceProfile::Standard,
        dtype: BTreeMap::new(),
        required_matched_ratio: 1.0,
        nonfinite: Nonfinite::Match,
        repeats,
        stop_after: 3,
        call_timeout,
        seed: 0,
    }
}

fn profile_settings(batch_bytes: Bytes, inputs: InputMemory) -> ProfileSettings {
    ProfileSettings {
        protocol: Protocol::Paired,
        entries: ProfileEntries::Distinct,
        batch_bytes,
        cache_state: CacheState::Auto,
        inputs,
        max_noise: 0.01,
        entry_timeout: Duration::from_secs(10),
        min_improvement: 0.02,
    }
}

/// In MiB: file, I, O, U.
fn entry(file: u64, inputs: u64, outputs: u64, unmapped: u64) -> EntryNumbers {
    EntryNumbers {
        file: Bytes::mib(file),
        inputs: Bytes::mib(inputs),
        outputs: Bytes::mib(outputs),
        unmapped: Bytes::mib(unmapped),
    }
}

#[test]
fn a_runner_may_owe_what_the_plan_says_or_its_inputs_again() {
    for (memory, threads, largest, expected) in [
        (None, Some(2), 100, 256 + 16),
        (None, Some(2), 400, 400 + 16),
        (None, None, 0, 256 + 4 * 8),
        (Some(64), Some(1), 400, 64 + 8),
        (Some(64), Some(0), 400, 64 + 8),
    ] {
        let limits = limits(memory.map(Bytes::mib), threads);
        assert_eq!(runner_memory(&limits, Bytes::mib(largest), 4), Bytes::mib(expected));
    }
}

#[test]
fn a_build_reserves_the_compilers_limit() {
    let expected = StageSpec {
        predicted: Bytes::ZERO,
        reserved: Bytes::mib(4096 + 16),
        deadline: Duration::from_secs(120 + 60),
    };
    assert_eq!(build(Bytes::gib(4), Duration::from_secs(120)), expected);
}

#[test]
fn a_verification_owes_its_worst_entry_and_not_their_sum() {
    let entries = [entry(300, 200, 100, 1), entry(80, 10, 60, 50), entry(10, 5, 5, 0)];
    let limits = limits(None, Some(1));
    let stage = verify(&entries, &limits, &verify_settings(Duration::from_secs(60), 2), 4);
    // max(1 + 100, 50 + 60, 5) + 2 c.
    assert_eq!(stage.predicted, Bytes::mib(110 + 2));
    // max(256, 200) + 8 and 16 of its own.
    assert_eq!(stage.reserved, Bytes::mib(112 + 256 + 8 + 16));
    let twice: Vec<EntryNumbers> = entries.into_iter().chain(entries).collect();
    let doubled = verify(&twice, &limits, &verify_settings(Duration::from_secs(60), 2), 4);
    assert_eq!((doubled.predicted, doubled.reserved), (stage.predicted, stage.reserved));
    let nothing = verify(&[], &limits, &verify_settings(Duration::from_secs(60), 2), 4);
    assert_eq!(nothing.predicted, Bytes::mib(2));
}

#[test]
fn a_profile_owes_its_worst_batch_twice() {
    // Batches of at most 100 MiB of inputs: {0, 1}, {2}, {3}.
    let entries = [entry(1, 60, 1, 3), entry(1, 40, 2, 4), entry(1, 10, 40, 5), entry(1, 200, 1, 6)];
    let (small, large) = (limits(Some(Bytes::mib(50)), Some(1)), limits(None, Some(2)));
    let settings = verify_settings(Duration::from_secs(1), 2);
    let at = |inputs| {
        profile(&entries, [&small, &large], &settings, &profile_settings(Bytes::mib(100), inputs), 4)
    };
    // Rings: 64, 64, 2 · 40 = 80, 64. Batches: 7 + 64 = 71, 5 + 80 = 85, 6 + 64 = 70.
    let mapped = at(InputMemory::Mapped);
    assert_eq!(mapped.predicted, Bytes::mib(2 * 85 + 2));
    // 50 + 8 + 16 and max(256, 200) + 16 + 16.
    assert_eq!(mapped.reserved, Bytes::mib(172 + 74 + 288));
    // Copied, all inputs are owed too: 100 + 71, 10 + 85, 200 + 70.
    assert_eq!(at(InputMemory::Copied).predicted, Bytes::mib(2 * 270 + 2));
}

#[test]
fn a_ring_holds_a_blocks_calls_within_its_cap_and_two_always() {
    for (outputs, expected) in [
        (0, 0),
        (1, 16_384),
        (4096, 64 << 20),
        (8192, 64 << 20),
        (32 << 20, 64 << 20),
        (33 << 20, 66 << 20),
        (u64::MAX, u64::MAX),
    ] {
        assert_eq!(ring(Bytes::new(outputs)), Bytes::new(expected));
    }
}

/// A deadline takes a worker for stuck: nothing that its timeouts allow may reach it.
#[test]
fn deadlines_leave_room_for_all_that_timeouts_allow() {
    let entries = [entry(20, 10, 1, 0); 100];
    let limits = limits(None, Some(1));
    for call_timeout in [Duration::from_millis(10), Duration::from_secs(1), Duration::from_secs(600)] {
        let settings = verify_settings(call_timeout, 2);
        // Loaded, planned, called twice and once more, in a runner each; read at 20 MiB/s.
        let load = call_timeout.clamp(Duration::from_secs(1), Duration::from_secs(120));
        let allowed = (load + call_timeout * 4) * 100 + Duration::from_secs(100);
        let deadline = verify(&entries, &limits, &settings, 4).deadline;
        assert!(allowed < deadline, "{call_timeout:?}: {deadline:?}");
        let timing = profile_settings(Bytes::mib(10), InputMemory::Mapped);
        let deadline = profile(&entries, [&limits, &limits], &settings, &timing, 4).deadline;
        let allowed = (load * 2 + call_timeout * 16) * 100;
        assert!(allowed < deadline, "{call_timeout:?}: {deadline:?}");
    }
    let endless = verify_settings(Duration::MAX, u32::MAX);
    assert_eq!(verify(&entries, &limits, &endless, 4).deadline, Duration::MAX);
}
