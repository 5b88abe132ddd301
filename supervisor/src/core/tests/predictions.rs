//! Checks the predictions of memory and the deadlines against sums that were computed by hand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use opt_shared::batch::Constant;
use opt_shared::formula::{
    DEVICE_CONTEXT, DEVICE_FLUSH, RUNNER_BASE, RunnerTerms, SHARED_RUNNER, device_rounding, ring, total,
};
use opt_shared::language::Launcher;
use opt_shared::numbers::EntryNumbers;
use opt_shared::settings::{
    CacheState, InputMemory, LimitSettings, Nonfinite, Parity, Priority, ProfileEntries, ProfileSettings,
    Protocol, ToleranceProfile, Vary, VerifySettings,
};
use opt_shared::units::Bytes;

use crate::core::predict::{
    DeviceSide, Prediction, Sides, build_ways, profile, profile_on_device, replay, replay_on_device, verify,
    verify_on_device, verify_ways,
};

/// Returns the terms for a runner that loads a shared library.
fn terms_of(limits: &LimitSettings) -> RunnerTerms<'_> {
    RunnerTerms { limits, launcher: Launcher::Dlopen }
}

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
        parity: Parity::None,
        batch_bytes,
        cache_state: CacheState::Auto,
        inputs,
        max_noise: 0.01,
        entry_timeout: Duration::from_secs(10),
        budget: Duration::from_secs(300),
        min_improvement: 0.02,
        priority: Priority::None,
        vary: Vary::Auto,
    }
}

/// Returns an entry with these sizes in MiB. The comments below call the sizes I (inputs), O (outputs) and U (unmapped
/// inputs).
fn entry(file: u64, inputs: u64, outputs: u64, unmapped: u64) -> EntryNumbers {
    EntryNumbers {
        file: Bytes::mib(file),
        inputs: Bytes::mib(inputs),
        outputs: Bytes::mib(outputs),
        ring: if outputs == 0 { Bytes::ZERO } else { ring([Bytes::mib(outputs)].into_iter(), Bytes::kib(4)) },
        buffers: 3,
        varied: Bytes::ZERO,
        varied_on_card: Bytes::ZERO,
        unmapped: Bytes::mib(unmapped),
        // Copied inputs take two MiB more than their bytes.
        copied: Bytes::mib(inputs + 2),
        constants: Arc::default(),
    }
}

/// Adds constants to an entry, each given as its number and its size in MiB. A copy of a constant takes 1 MiB more than
/// its size.
fn with(entry: EntryNumbers, constants: &[(u32, u64)]) -> EntryNumbers {
    let constant = |&(id, mib)| Constant { id, bytes: Bytes::mib(mib), placed: Bytes::mib(mib + 1) };
    EntryNumbers { constants: constants.iter().map(constant).collect(), ..entry }
}

#[test]
fn build_reserves_the_compilers_limit() {
    let ways = build_ways(Bytes::gib(4), Duration::from_secs(120));
    let stage = ways[0].spec;
    assert_eq!((stage.predicted, stage.reserved), (Bytes::ZERO, Bytes::mib(4096 + 16)));
    assert_eq!(
        (stage.deadline, stage.batch, stage.device),
        (Duration::from_secs(4 * 120 + 60), Some(Bytes::gib(4)), Bytes::ZERO)
    );
    let memory: Vec<_> = ways.iter().filter_map(|way| way.spec.batch).collect();
    assert_eq!(memory, [4096, 2048, 1024, 512, 256, 128].map(Bytes::mib));
    let [tiny] = &build_ways(Bytes::mib(20), Duration::ZERO)[..] else { panic!("one way") };
    assert_eq!(tiny.spec.batch, Some(Bytes::mib(20)), "the plan's limit is not exceeded");
}

/// Checks that the terms add up to what is predicted and reserved.
fn assert_adds_up(prediction: &Prediction) {
    assert_eq!(total(&prediction.predicted), prediction.spec.predicted, "{prediction:?}");
    let all = prediction.spec.predicted + total(&prediction.beyond);
    assert_eq!(all, prediction.spec.reserved, "{prediction:?}");
}

#[test]
fn verification_owes_its_largest_entry_and_not_the_sum() {
    let entries = [entry(300, 200, 100, 1), entry(80, 10, 60, 50), entry(10, 5, 5, 0)];
    let limits = limits(None, Some(1));
    let settings = verify_settings(Duration::from_secs(60), 2);
    let stage = verify(&entries, Bytes::ZERO, terms_of(&limits), &settings, 4);
    assert_adds_up(&stage);
    // The values of U + O are 1 + 100, 50 + 60 and 0 + 5. The prediction is the largest of them plus two chunks of 512
    // KiB.
    assert_eq!((stage.spec.predicted, stage.decides), (Bytes::mib(110 + 1), Some(1)));
    // The default limit is max(256, 200) + 8: the largest inputs are 200, and the stack of the thread takes 8. The
    // runner itself takes 4.
    assert_eq!(stage.spec.reserved, Bytes::mib(111 + 256 + 8 + 4));
    let twice: Vec<EntryNumbers> = entries.iter().chain(&entries).cloned().collect();
    let doubled = verify(&twice, Bytes::ZERO, terms_of(&limits), &settings, 4);
    assert_eq!(doubled.spec.reserved, stage.spec.reserved);
    assert_eq!(doubled.decides, Some(1), "the first of those that are alike");
    // Inputs of more than 256 MiB raise the default limit.
    let large = verify(&[entry(1, 400, 1, 0)], Bytes::ZERO, terms_of(&limits), &settings, 4);
    assert_eq!(large.spec.reserved, Bytes::mib(2 + 400 + 8 + 4));
    let nothing = verify(&[], Bytes::ZERO, terms_of(&limits), &settings, 4);
    assert_eq!((nothing.spec.predicted, nothing.decides), (Bytes::mib(1), None));
}

/// Separate runners save no memory if the largest group has only one entry.
#[test]
fn verification_with_shared_runners_owes_its_largest_group() {
    let limits = limits(None, Some(1));
    let settings = verify_settings(Duration::from_secs(60), 2);
    // A group has at most 64 MiB of U + O. The groups are {0, 1}, {2} and {3}.
    let entries = [entry(1, 1, 12, 20), entry(1, 1, 12, 20), entry(1, 1, 30, 1), entry(1, 1, 50, 0)];
    let ways = verify_ways(&entries, terms_of(&limits), &settings, 4);
    ways.iter().for_each(assert_adds_up);
    let found: Vec<_> =
        ways.iter().map(|way| (way.spec.predicted, way.decides, way.spec.batch, way.batches.len())).collect();
    let (shared, alone) = (Some(SHARED_RUNNER), Some(Bytes::ZERO));
    // A group owes U of all its entries and the largest O, because its entries use the same output memory in turn.
    assert_eq!(found, [(Bytes::mib(53), Some(0), shared, 3), (Bytes::mib(51), Some(3), alone, 0)]);
    assert_eq!(ways[0].batches, [0..2, 2..3, 3..4]);
    // Within a group, the entry with the largest U + O determines the prediction.
    let group =
        verify(&[entry(1, 1, 30, 1), entry(1, 1, 1, 20)], SHARED_RUNNER, terms_of(&limits), &settings, 4);
    assert_eq!(group.decides, Some(0));
    assert_eq!(ways[1], verify(&entries, Bytes::ZERO, terms_of(&limits), &settings, 4));
    assert!(ways[1].spec.deadline < ways[0].spec.deadline);
    // Separate runners would reserve no less, so there is only one way.
    let large = [entry(1, 1, 100, 0), entry(1, 1, 1, 0)];
    assert_eq!(verify_ways(&large, terms_of(&limits), &settings, 4).len(), 1);
    assert_eq!(verify_ways(&[], terms_of(&limits), &settings, 4).len(), 1);
}

fn profiled(entries: &[EntryNumbers], batch: u64, inputs: InputMemory, paired: bool) -> Vec<Prediction> {
    let (small, large) = (limits(Some(Bytes::mib(50)), Some(1)), limits(None, Some(2)));
    let sides = Sides { candidate: terms_of(&small), baseline: paired.then_some(terms_of(&large)) };
    let settings = verify_settings(Duration::from_secs(1), 2);
    let ways = profile(entries, sides, &settings, &profile_settings(Bytes::mib(batch), inputs), 4);
    ways.iter().for_each(assert_adds_up);
    for pair in ways.windows(2) {
        assert!(pair[1].spec.reserved < pair[0].spec.reserved, "each way takes less than the one before");
        assert!(pair[1].spec.batch < pair[0].spec.batch);
    }
    ways
}

#[test]
fn profile_owes_its_largest_batch_on_both_sides() {
    // A batch has at most 100 MiB of inputs, unless it has only one entry. The batches are {0, 1}, {2} and {3}.
    let entries = [entry(1, 60, 1, 3), entry(1, 40, 2, 4), entry(1, 10, 40, 5), entry(1, 200, 1, 6)];
    let first = |inputs, paired| profiled(&entries, 100, inputs, paired).remove(0);
    // The entries' rings (R) are 16, 16, 2 · 40 = 80 and 16. The batches' sums of U, plus their largest R, are
    // 7 + 16 = 23, 5 + 80 = 85 and 6 + 16 = 22.
    let mapped = first(InputMemory::Mapped, true);
    assert_eq!(mapped.spec.predicted, Bytes::mib(2 * 85 + 1));
    // The limits are 50 and, for the baseline with its two threads, max(256, 200) + 2 · 8. Each runner itself takes 4.
    assert_eq!(mapped.spec.reserved, Bytes::mib(171 + 50 + 272 + 8));
    assert_eq!((mapped.decides, mapped.batches.clone()), (Some(2), vec![0..2, 2..3, 3..4]));
    assert_eq!(mapped.spec.batch, Some(Bytes::mib(100)));
    let unpaired = first(InputMemory::Mapped, false);
    assert_eq!((unpaired.spec.predicted, unpaired.spec.reserved), (Bytes::mib(86), Bytes::mib(86 + 50 + 4)));
    // Copied inputs are owed too, once for the candidate and the baseline together. The sums of the batches are 104 + 2
    // · 23, 12 + 2 · 85 and 202 + 2 · 22, so the third batch is now the largest. Two staging slots and two chunks are
    // added.
    let copied = first(InputMemory::Copied, true);
    assert_eq!((copied.spec.predicted, copied.decides), (Bytes::mib(202 + 44 + 2 + 1), Some(3)));
}

#[test]
fn shared_constants_are_owed_once_per_batch() {
    let table = || with(entry(1, 60, 0, 1), &[(0, 50)]);
    // The shared table of 50 counts once. With 10 more for each of four entries, the batch has 90. The 25 of the fifth
    // entry would exceed the limit of 100.
    let entries = [table(), table(), table(), table(), with(entry(1, 25, 0, 1), &[(1, 20)])];
    let mapped = profiled(&entries, 100, InputMemory::Mapped, true).remove(0);
    assert_eq!(mapped.batches, [0..4, 4..5]);
    // U is counted for each entry.
    assert_eq!(mapped.spec.predicted, Bytes::mib(2 * 4 + 1));
    let ways = profiled(&entries, 100, InputMemory::Copied, true);
    // The prediction is the sum of 62 for the first entry, 62 − 51 for each of the other three, U for the candidate and
    // the baseline, two slots, and two chunks.
    assert_eq!(ways[0].spec.predicted, Bytes::mib(62 + 3 * 11 + 2 * 4 + 2 + 1));
    assert_eq!(ways[0].batches, [0..4, 4..5]);
    let last = ways.last().expect("a way");
    assert_eq!((last.spec.predicted, last.batches.len()), (Bytes::mib(62 + 2 + 2 + 1), 5));
}

#[test]
fn batches_are_split_as_long_as_that_reserves_less() {
    let entries = vec![entry(1, 10, 0, 30); 8];
    let ways = profiled(&entries, 1000, InputMemory::Mapped, false);
    let predicted: Vec<Bytes> = ways.iter().map(|way| way.spec.predicted).collect();
    assert_eq!(predicted, [241, 121, 61, 31].map(Bytes::mib));
    let batches: Vec<usize> = ways.iter().map(|way| way.batches.len()).collect();
    assert_eq!(batches, [1, 2, 4, 8]);
    // A batch of one entry is not split, however large it is.
    let beside_a_large_one: Vec<EntryNumbers> =
        std::iter::once(entry(1, 200, 0, 0)).chain(entries.iter().cloned()).collect();
    let ways = profiled(&beside_a_large_one, 1000, InputMemory::Mapped, false);
    assert_eq!(ways.last().map(|way| way.spec.predicted), Some(Bytes::mib(31)));
    // A ring is owed once for a batch, however many entries it has, so splitting does not help. Entries without input
    // bytes are not split.
    assert_eq!(profiled(&vec![entry(1, 10, 1, 0); 8], 1000, InputMemory::Mapped, false).len(), 1);
    assert_eq!(profiled(&vec![entry(0, 0, 0, 0); 8], 1000, InputMemory::Mapped, false).len(), 1);
    assert_eq!(profiled(&[], 1000, InputMemory::Copied, false).len(), 1);
}

#[test]
fn deadlines_exceed_what_timeouts_allow() {
    let entries = vec![entry(20, 10, 1, 0); 100];
    let limits = limits(None, Some(1));
    for call_timeout in [Duration::from_millis(10), Duration::from_secs(1), Duration::from_secs(600)] {
        let settings = verify_settings(call_timeout, 2);
        // For each entry, a separate runner loads the candidate and makes a plan call and two repeats. The deadline
        // allows for one more call. Each of these may take four times its timeout, because a worker waits that long for
        // a runner that gets no CPU.
        let load = call_timeout.clamp(Duration::from_secs(1), Duration::from_secs(120)) * 4;
        let call = call_timeout * 4;
        let allowed = (load + call * 4) * 100 + Duration::from_secs(100);
        let deadline = verify(&entries, Bytes::ZERO, terms_of(&limits), &settings, 4).spec.deadline;
        assert!(allowed < deadline, "{call_timeout:?}: {deadline:?}");
        let timing = profile_settings(Bytes::mib(10), InputMemory::Mapped);
        let sides = Sides { candidate: terms_of(&limits), baseline: Some(terms_of(&limits)) };
        let deadline = profile(&entries, sides, &settings, &timing, 4)[0].spec.deadline;
        let allowed = (load * 2 + call * 16) * 100;
        assert!(allowed < deadline, "{call_timeout:?}: {deadline:?}");
    }
    let endless = verify_settings(Duration::MAX, u32::MAX);
    assert_eq!(verify(&entries, Bytes::ZERO, terms_of(&limits), &endless, 4).spec.deadline, Duration::MAX);
}

/// Calls may take four times their timeout if they wait for a CPU, a runner takes two seconds to start and end, and the
/// slowest disk reads 20 MiB/s.
#[test]
fn deadlines_are_long_enough_for_every_wait() {
    let seconds = Duration::from_secs;
    let settings = verify_settings(seconds(10), 3);
    // 1000 MiB are read four times.
    let entries = [entry(600, 1, 1, 0), entry(400, 1, 1, 0)];
    let reading = 60 + 4 * 1000 / 20;
    let limits = limits(None, Some(1));
    let verified = verify(&entries, Bytes::ZERO, terms_of(&limits), &settings, 1);
    assert_eq!(verified.spec.deadline, seconds(2 * (40 * 7 + 40 + 2) + reading));
    // The candidate and the baseline have 12 runners each, the trial and the repetition have 8, and the search for
    // inputs has 32. Of the calls, 3 · 2 runners make 4 each, the trial and the repetition make 20, and the search
    // makes 32.
    let profiles = profile(
        &entries,
        Sides { candidate: terms_of(&limits), baseline: None },
        &settings,
        &profile_settings(Bytes::gib(2), InputMemory::Mapped),
        1,
    );
    assert_eq!(profiles[0].spec.deadline, seconds(2 * (40 + 40 * 76 + 64 * (40 + 2)) + reading));
    let replayed = replay(Bytes::mib(5), Bytes::mib(3), &entries, &[terms_of(&limits)], &settings, 1);
    assert_eq!(replayed.spec.deadline, seconds(2 * (40 * 2 + 40 + 2) + 2 * reading));
    assert_eq!(replayed.decides, Some(0), "the first of those that are alike");
    // The terms are the pool, the catalog and schedule, four staging slots, one step's outputs, and two chunks.
    assert_eq!(replayed.spec.predicted, Bytes::mib(5 + 3 + 4 + 1 + 1));
    let next = replayed.beyond.iter().find(|term| term.name == "next runner").expect("a process may wait");
    assert_eq!(next.bytes, RUNNER_BASE);
}

#[test]
fn entry_with_the_largest_sum_decides() {
    let small = entry(1, 1, 0, 30);
    let large = entry(1, 1, 20, 20);
    let alone = limits(None, Some(1));
    for (batch, inputs) in [
        (Bytes::gib(2), InputMemory::Mapped),
        (Bytes::new(1), InputMemory::Mapped),
        (Bytes::gib(2), InputMemory::Copied),
        (Bytes::new(1), InputMemory::Copied),
    ] {
        for (entries, decides) in
            [([&small, &large].map(Clone::clone), 1), ([&large, &small].map(Clone::clone), 0)]
        {
            let ways = profile(
                &entries,
                Sides { candidate: terms_of(&alone), baseline: None },
                &verify_settings(Duration::from_secs(10), 3),
                &profile_settings(batch, inputs),
                1,
            );
            assert_eq!(ways[0].decides, Some(decides), "{batch} {inputs:?}");
        }
    }
    // Copied bytes count, too.
    let copied = entry(1, 90, 1, 0);
    for batch in [Bytes::gib(2), Bytes::new(1)] {
        let ways = profile(
            &[large.clone(), copied.clone()],
            Sides { candidate: terms_of(&alone), baseline: None },
            &verify_settings(Duration::from_secs(10), 3),
            &profile_settings(batch, InputMemory::Copied),
            1,
        );
        assert_eq!(ways[0].decides, Some(1), "{batch}");
    }
}

#[test]
fn kernel_without_host_code_is_charged_where_its_buffers_are() {
    let entries = [entry(4, 10, 2, 0), entry(4, 3, 20, 1), entry(4, 5, 5, 5)];
    let (limits, settings) =
        (limits(Some(Bytes::mib(100)), None), verify_settings(Duration::from_secs(1), 2));
    let predict = |emulated| verify_on_device(&entries, emulated, 1, &limits, &settings, 2);
    // The second entry has the largest I + O. The staging slots and two chunks are always on the host.
    let (emulated, card) = (predict(true), predict(false));
    assert_eq!((emulated.decides, card.decides), (Some(1), Some(1)));
    // The emulated device keeps a bit for each byte of outputs and workspaces, which takes an eighth of 20 + 100.
    assert_eq!((emulated.spec.predicted, emulated.spec.device), (Bytes::mib(3 + 23 + 15), Bytes::ZERO));
    assert_eq!(emulated.spec.reserved, Bytes::mib(3 + 23 + 15 + 100));
    assert_eq!((card.spec.predicted, card.spec.reserved), (Bytes::mib(3), Bytes::mib(3)));
    assert_eq!(card.spec.device_cap, Bytes::mib(23 + 100) + device_rounding(4, false));
    assert_eq!(card.spec.device, card.spec.device_cap + DEVICE_CONTEXT);
    assert_eq!(emulated.spec.device_cap, Bytes::mib(23 + 100) + device_rounding(4, true));
    assert_eq!(total(&card.on_device), card.spec.device);
    assert_adds_up(&emulated);
    assert_adds_up(&card);
}

#[test]
fn replay_on_the_emulated_device_tracks_the_bytes_of_outputs_and_workspaces() {
    let steps = [entry(4, 10, 16, 0), entry(4, 3, 8, 1)];
    let (limits, settings) = (limits(Some(Bytes::mib(80)), None), verify_settings(Duration::from_secs(1), 2));
    let predicted = |workspaces: usize| {
        let kernels = (&[&limits][..], workspaces);
        let prediction = replay_on_device(Bytes::mib(64), Bytes::mib(1), &steps, kernels, true, &settings, 2);
        assert_adds_up(&prediction);
        prediction.spec.predicted
    };
    // A bit for each byte takes an eighth of 16 or, with workspaces, of 16 + 80. The rounding depends on the number of
    // buffers.
    let rounding = |workspaces: u64| device_rounding(3 + workspaces, true);
    assert_eq!(predicted(1) - rounding(1), predicted(0) - rounding(0) + Bytes::mib(10));
    assert_eq!(predicted(5) - rounding(5), predicted(1) - rounding(1));
}

#[test]
fn replay_on_a_card_is_charged_where_its_pool_is() {
    let steps = [EntryNumbers { buffers: 5, ..entry(4, 10, 16, 0) }, entry(4, 3, 8, 1)];
    let (limits, settings) = (limits(Some(Bytes::mib(80)), None), verify_settings(Duration::from_secs(1), 2));
    let kernels = (&[&limits][..], 2);
    let prediction = replay_on_device(Bytes::mib(64), Bytes::mib(1), &steps, kernels, false, &settings, 2);
    assert_adds_up(&prediction);
    // The terms are the pool, the outputs of the first step, the limit, and the rounding of this step's five buffers
    // and two workspaces.
    assert_eq!(prediction.spec.device_cap, Bytes::mib(64 + 16 + 80) + device_rounding(5 + 2, false));
    assert_eq!(prediction.spec.device, prediction.spec.device_cap + DEVICE_CONTEXT);
    assert_eq!(prediction.decides, Some(0));
}

#[test]
fn profile_on_a_card_is_charged_where_its_buffers_are() {
    let entries = [entry(4, 10, 2, 0), entry(4, 3, 20, 1)];
    let limits = limits(Some(Bytes::mib(100)), None);
    let side = DeviceSide { limits: &limits, workspaces: 1 };
    let settings = profile_settings(Bytes::gib(1), InputMemory::Mapped);
    let verify = verify_settings(Duration::from_secs(1), 2);
    let predict = |sides: &[DeviceSide<'_>]| profile_on_device(&entries, sides, &verify, &settings, 2);
    let (alone, paired) = (predict(&[side]), predict(&[side, side]));
    // The first entry has the largest inputs. The ring is made for two calls of the second entry, and then kept.
    assert_eq!((alone.decides, alone.batches.len()), (Some(0), 2), "each entry is timed alone");
    let shared = Bytes::mib(10 + 40) + DEVICE_FLUSH;
    // The buffers are those of the entry, the ring, the varied inputs, the buffer that flushes the cache, and one
    // workspace for each kernel.
    let buffers = u64::from(entries[1].buffers);
    assert_eq!(alone.spec.device_cap, shared + Bytes::mib(100) + device_rounding(buffers + 4, false));
    assert_eq!(paired.spec.device_cap, shared + Bytes::mib(200) + device_rounding(buffers + 5, false));
    for prediction in [&alone, &paired] {
        assert_eq!(prediction.spec.device, prediction.spec.device_cap + DEVICE_CONTEXT);
        assert_eq!(total(&prediction.on_device), prediction.spec.device);
        assert_eq!(prediction.spec.batch, Some(Bytes::ZERO));
        assert_adds_up(prediction);
    }
    assert_eq!(paired.spec.reserved, alone.spec.reserved + Bytes::mib(40), "the outputs of one more side");
    let three = DeviceSide { limits: &limits, workspaces: 3 };
    let [more, most] = [&[three][..], &[three, side]].map(predict);
    assert_eq!(more.spec.device_cap, shared + Bytes::mib(100) + device_rounding(buffers + 6, false));
    assert_eq!(most.spec.device_cap, shared + Bytes::mib(200) + device_rounding(buffers + 7, false));
}
