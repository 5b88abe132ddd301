//! Random inputs: damaged fixtures, damaged pickles, and bytes that were never a capture.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use crate::files::{capture_of, inspected};
use crate::memory::MAX_MEMORY_OF_SMALL;

fn small_fixtures() -> Vec<Vec<u8>> {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/formats");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(formats)
        .expect("fixtures")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pt"))
        .collect();
    paths.sort();
    let files = paths.iter().map(|path| std::fs::read(path).expect("a fixture"));
    files.filter(|bytes| (1..6_000).contains(&bytes.len())).collect()
}

/// Takes the pickle out of a fixture. A changed pickle is read only if it gets a new zip, with the right CRC.
fn pickle_of(bytes: &[u8]) -> Option<Vec<u8>> {
    let start = bytes.windows(2).position(|window| window == b"\x80\x02")?;
    let end = start + bytes[start..].windows(4).position(|window| window == b"PK\x07\x08")?;
    Some(bytes[start..end].to_vec())
}

#[derive(Clone, Debug)]
enum Edit {
    Set(usize, u8),
    Flip(usize, u8),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Repeat(usize, usize),
    Truncate(usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        (any::<usize>(), 0u8..8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        (any::<usize>(), prop::collection::vec(any::<u8>(), 1..9))
            .prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        (any::<usize>(), 1usize..20).prop_map(|(at, length)| Edit::Remove(at, length)),
        (any::<usize>(), 1usize..60).prop_map(|(at, length)| Edit::Repeat(at, length)),
        any::<usize>().prop_map(Edit::Truncate),
    ]
}

fn apply(bytes: &mut Vec<u8>, edit: &Edit) {
    if bytes.is_empty() {
        return;
    }
    let length = bytes.len();
    match edit {
        Edit::Set(at, byte) => bytes[at % length] = *byte,
        Edit::Flip(at, bit) => bytes[at % length] ^= 1 << bit,
        Edit::Insert(at, inserted) => {
            bytes.splice(at % length..at % length, inserted.iter().copied());
        }
        Edit::Remove(at, count) => {
            bytes.drain(at % length..(at % length + count).min(length));
        }
        Edit::Repeat(at, count) => {
            let part = bytes[at % length..(at % length + count).min(length)].to_vec();
            bytes.splice(at % length..at % length, part);
        }
        Edit::Truncate(at) => bytes.truncate(at % length),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn changed_fixture_is_read_or_refused_with_little_memory(
        which in any::<prop::sample::Index>(), edits in prop::collection::vec(edit(), 1..6),
    ) {
        let fixtures = small_fixtures();
        let mut bytes = which.get(&fixtures).clone();
        edits.iter().for_each(|edit| apply(&mut bytes, edit));
        let (document, peak) = inspected(&bytes);
        prop_assert!(document["outcome"] == "ok" || document["message"].is_string());
        prop_assert!(peak < MAX_MEMORY_OF_SMALL, "{} bytes", peak);
    }

    #[test]
    fn changed_pickle_is_read_or_refused_with_little_memory(
        which in any::<prop::sample::Index>(), edits in prop::collection::vec(edit(), 1..6),
    ) {
        let pickles: Vec<Vec<u8>> = small_fixtures().iter().filter_map(|bytes| pickle_of(bytes)).collect();
        prop_assert!(pickles.len() > 30);
        let mut pickle = which.get(&pickles).clone();
        edits.iter().for_each(|edit| apply(&mut pickle, edit));
        let (document, peak) = inspected(&capture_of(&pickle));
        prop_assert!(document["outcome"] == "ok" || document["message"].is_string());
        prop_assert!(peak < MAX_MEMORY_OF_SMALL, "{} bytes", peak);
    }

    #[test]
    fn random_file_is_refused_with_little_memory(
        start in prop::sample::select(vec![&b"PK\x03\x04"[..], b"\x80\x02", b"", b"PK\x05\x06"]),
        bytes in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let (document, peak) = inspected(&[start, &bytes].concat());
        prop_assert_eq!(&document["outcome"], "error");
        prop_assert!(peak < MAX_MEMORY_OF_SMALL);
    }

    #[test]
    fn random_pickle_is_read_or_refused_with_little_memory(opcodes in prop::collection::vec(prop_oneof![
        Just(&b"]"[..]), Just(&b"("[..]), Just(&b"t"[..]), Just(&b"a"[..]), Just(&b"e"[..]), Just(&b"}"[..]), Just(&b"s"[..]),
        Just(&b"u"[..]), Just(&b"h\0"[..]), Just(&b"h\x01"[..]), Just(&b"h\x02"[..]), Just(&b"\x94"[..]), Just(&b"K\x01"[..]),
        Just(&b"N"[..]), Just(&b"2"[..]), Just(&b"0"[..]), Just(&b"1"[..]), Just(&b"\x85"[..]), Just(&b"\x86"[..]),
        Just(&b"\x8f"[..]), Just(&b"\x90"[..]), Just(&b"\x91"[..]), Just(&b"R"[..]), Just(&b"b"[..]), Just(&b"Q"[..]),
        Just(&b"ccollections\nOrderedDict\n"[..]), Just(&b"cnumpy\ndtype\n"[..]), Just(&b"U\x02f4"[..]),
        Just(&b"cbuiltins\nset\n"[..]), Just(&b"ctorch\nSize\n"[..]), Just(&b"ctorch\nfloat32\n"[..]), Just(&b"U\x01<"[..]),
    ], 1..80)) {
        let pickle = [b"\x80\x04", &opcodes.concat()[..], b"."].concat();
        let (document, peak) = inspected(&capture_of(&pickle));
        prop_assert!(document["outcome"] == "ok" || document["message"].is_string());
        prop_assert!(peak < MAX_MEMORY_OF_SMALL);
    }
}
