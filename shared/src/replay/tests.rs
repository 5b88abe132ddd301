//! Tests of recordings, their file format and the floor.

use proptest::prelude::*;

use super::*;

const PAGE: Bytes = Bytes::kib(4);

fn need(number: u8, bytes: u64) -> Need {
    Need {
        key: Key([number + 1; 32]),
        name: format!("weight_{number}"),
        storage: crate::ids::StorageId(0),
        start: 0,
        bytes: Bytes::new(bytes),
        phase: 0,
        dtype: DType::Float32,
        shape: vec![bytes / 4],
    }
}

/// Makes a recording of steps that are given as sets of constants. Constant `n` has `4 * (n + 1)` bytes times `scale`.
pub(super) fn recorded(sets: &[Vec<u8>], scale: u64) -> Recording {
    let mut recorder = Recorder::default();
    for (step, set) in sets.iter().enumerate() {
        let needs: Vec<Need> = set.iter().map(|&it| need(it, 4 * (u64::from(it) + 1) * scale)).collect();
        recorder.step("job", &format!("entry_{step:06}"), &needs).expect("within the limits");
    }
    let digests: Vec<Digest> = (0..recorder.recording().constants.len())
        .map(|it| Digest([u8::try_from(it).unwrap_or(0) | 0x80; 32]))
        .collect();
    recorder.finish(&digests)
}

fn sample() -> Recording {
    recorded(&[vec![0, 1], vec![1, 2], vec![0, 2]], 16)
}

/// Replaces the digest of a changed file, so that the file passes the check of the digest and reaches the later checks.
fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let body = bytes.len() - 32;
    let digest = blake3::hash(&bytes[..body]);
    bytes[body..].copy_from_slice(digest.as_bytes());
    bytes
}

#[test]
fn recording_reads_back() {
    for recording in [sample(), Recording::default(), recorded(&[vec![]], 1)] {
        assert_eq!(Recording::decode(&recording.encode()), Ok(recording));
    }
}

#[test]
fn recorder_refuses_names_that_the_reader_would_refuse() {
    let mut recorder = Recorder::default();
    let longest = "n".repeat(MAX_NAME);
    recorder.step(&longest, &longest, &[Need { name: longest.clone(), ..need(0, 4) }]).expect("at the limit");
    let size = recorder.file_bytes();
    let written = recorder.finish(&[Digest([1; 32])]).encode();
    assert_eq!(size, Bytes::from(written.len()), "the size was computed before the file was written");
    assert!(Recording::decode(&written).is_ok());

    let longer = "n".repeat(MAX_NAME + 1);
    let steps: [(&str, &str, &str); 3] = [(&longer, "e", "n"), ("j", &longer, "n"), ("j", "e", &longer)];
    for (job, entry, name) in steps {
        let refused = Recorder::default().step(job, entry, &[Need { name: name.to_owned(), ..need(0, 4) }]);
        let Err(Unrecordable::LongName { bytes, begins, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!((bytes, begins.len()), (MAX_NAME + 1, SHOWN_NAME_CHARS));
    }
}

#[test]
fn recorder_predicts_the_size_of_its_file() {
    let mut recorder = Recorder::default();
    for step in 0..5u8 {
        let needs: Vec<Need> = (0..step).map(|it| need(it, 4 * (u64::from(it) + 1))).collect();
        recorder.step("job", &format!("entry_{step}"), &needs).expect("within the limits");
    }
    let size = recorder.file_bytes();
    let digests = vec![Digest([1; 32]); recorder.recording().constants.len()];
    assert_eq!(size, Bytes::from(recorder.finish(&digests).encode().len()));
}

#[test]
fn step_that_would_make_the_file_too_large_is_refused() {
    let mut recorder = Recorder::default();
    recorder.file.0 = MAX_FILE_BYTES;
    assert_eq!(recorder.step("job", "entry", &[]), Err(Unrecordable::TooLarge));
}

#[test]
fn truncated_and_extended_recordings_are_refused() {
    let bytes = sample().encode();
    for length in 0..bytes.len() {
        assert!(Recording::decode(&bytes[..length]).is_err(), "{length} of {}", bytes.len());
    }
    for extra in [1, 2, 31, 32, 33, 1000] {
        let mut longer = bytes.clone();
        longer.resize(bytes.len() + extra, 0);
        assert_eq!(Recording::decode(&longer), Err(RecordingError::Trailing { bytes: extra }));
    }
}

#[test]
fn recording_with_a_changed_bit_is_refused() {
    let bytes = sample().encode();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            assert!(Recording::decode(&changed).is_err(), "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn counts_beyond_the_limits_or_the_file_are_refused() {
    let bytes = sample().encode();
    for offset in [12, 16, 20, 24] {
        for claim in [u32::MAX, 1 << 31, 1_000_001, 1_000_000] {
            let mut changed = bytes.clone();
            changed[offset..offset + 4].copy_from_slice(&claim.to_le_bytes());
            let refused = Recording::decode(&resealed(changed));
            assert!(
                matches!(refused, Err(RecordingError::TooMany { .. } | RecordingError::Truncated { .. })),
                "{refused:?}"
            );
        }
    }
}

/// Each mistake is in a recording with a valid digest.
#[test]
fn inconsistent_recording_is_refused() {
    type Change = fn(&mut Recording);
    let changes: [(&str, Change); 14] = [
        ("swapped uses", |it| it.uses.swap(1, 2)),
        ("a use twice", |it| it.uses.insert(1, it.uses[0])),
        ("a missing use", |it| {
            it.uses.remove(2);
        }),
        ("a stale epoch", |it| it.uses[2].epoch -= 1),
        ("another size", |it| it.uses[3].bytes += Bytes::new(1)),
        ("no such constant", |it| it.uses[0].constant = 99),
        ("no such step", |it| it.uses[5].step = 3),
        ("no such name", |it| it.uses[0].name = 99),
        ("a constant twice", |it| it.constants.push(it.constants[0].clone())),
        ("a name twice", |it| it.names.push(it.names[0].clone())),
        ("a constant without a use", |it| it.constants.push(need(9, 64).constant())),
        ("an unknown digest", |it| it.constants[0].digest = Digest::UNKNOWN),
        ("an overflowing shape", |it| it.constants[0].shape = vec![u64::MAX, 2]),
        ("a size beyond all limits", |it| {
            it.constants[0].bytes = Bytes::MAX;
            it.uses.iter_mut().filter(|it| it.constant == 0).for_each(|it| it.bytes = Bytes::MAX);
        }),
    ];
    for (what, change) in changes {
        let mut recording = sample();
        change(&mut recording);
        let refused = Recording::decode(&recording.encode());
        assert!(matches!(refused, Err(RecordingError::Wrong { .. })), "{what}: {refused:?}");
    }
}

#[test]
fn floor_has_pinned_constants_the_largest_pair_and_the_largest_other() {
    // Constants 0 to 3 have 64, 128, 192 and 256 bytes.
    let recording = recorded(&[vec![0, 1], vec![1, 2], vec![3], vec![0]], 16);
    let one = Bytes::new(1);
    let floor = recording.floor(&[], one);
    assert_eq!(floor.consecutive, Bytes::new(128 + 192 + 256));
    assert_eq!(floor.largest, Bytes::new(256));
    assert_eq!(floor.whole, Bytes::new(640));
    assert_eq!(floor.bytes(), Bytes::new(640), "at most the size of all constants");
    let pins = ["weight_3".to_owned()];
    let pinned = recording.floor(&pins, one);
    assert_eq!((pinned.pinned, pinned.largest), (Bytes::new(256), Bytes::new(192)));
    assert_eq!(pinned.consecutive, Bytes::new(64 + 128 + 192));
    assert_eq!(
        recording.unknown_pin(&["job/weight_0".to_owned(), "weight_4".to_owned()]),
        Some(&"weight_4".to_owned())
    );
    assert_eq!(recording.floor(&[], PAGE).whole, PAGE.saturating_mul(4), "whole grains");
    let repeated = recorded(&[vec![0], vec![1], vec![0], vec![1], vec![2]], 16);
    assert_eq!(repeated.floor(&[], one).bytes(), Bytes::new(384));
    let long: Vec<Vec<u8>> = (0..20).map(|it| vec![it % 10]).collect();
    let floor = recorded(&long, 16).floor(&[], one);
    assert_eq!(floor.bytes(), Bytes::new(64 * (9 + 10) + 640), "far below the size of all constants");
    assert!(floor.bytes() < floor.whole);
}

proptest! {
    #[test]
    fn any_recording_reads_back(
        sets in proptest::collection::vec(proptest::collection::btree_set(0u8..20, 0..6), 0..30), scale in 1u64..1000
    ) {
        let sets: Vec<Vec<u8>> = sets.into_iter().map(|set| set.into_iter().collect()).collect();
        let recording = recorded(&sets, scale);
        let read = Recording::decode(&recording.encode());
        prop_assert_eq!(read.as_ref(), Ok(&recording));
    }

    #[test]
    fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert!(Recording::decode(&bytes).is_err());
        let mut begun = sample().encode();
        begun.truncate(28);
        begun.extend_from_slice(&bytes);
        prop_assert!(Recording::decode(&begun).is_err());
    }

    /// A file with a valid digest is either read or refused, without a panic.
    #[test]
    fn resealed_file_reads_back_unchanged_or_is_refused(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4)
    ) {
        let mut bytes = sample().encode();
        let body = bytes.len() - 32;
        for (at, value) in changes {
            bytes[at.index(body)] = value;
        }
        let bytes = resealed(bytes);
        if let Ok(recording) = Recording::decode(&bytes) {
            prop_assert_eq!(recording.encode(), bytes, "each recording has only one form");
        }
    }
}
