//! Tests with hostile pickles. Each must have an expected outcome, within a fixed memory limit.

use opt_shared::capture::{CaptureFile, Value};

use crate::files::{billion_laughs, capture_of, inspected, outcome_of, tensor, with_file};
use crate::memory::MAX_MEMORY;

/// The name and the bytes of each pickle, and its expected outcomes.
fn hostile_pickles() -> Vec<(&'static str, Vec<u8>, &'static [&'static str])> {
    let repeated = |start: &[u8], unit: &[u8], times: usize, end: &[u8]| -> Vec<u8> {
        [start, &unit.repeat(times), end].concat()
    };
    let claim = |opcode: u8, length: &[u8]| -> Vec<u8> { [&[0x80, 4, opcode], length, b"abc."].concat() };
    let huge = u64::MAX.to_le_bytes();
    let large = (20u64 << 20).to_le_bytes();
    vec![
        ("laughs that fit", billion_laughs(10), &["ok"]),
        ("billion laughs", billion_laughs(40), &["limit"]),
        ("many laughs", billion_laughs(199), &["limit"]),
        (
            "laughs in tuples as a key",
            {
                let mut pickle = b"\x80\x04)\x94".to_vec();
                for level in 0..150u8 {
                    pickle.extend([b'h', level, b'h', level, 0x86, 0x94]);
                }
                [b"\x80\x04}".to_vec(), pickle[2..].to_vec(), b"Ns.".to_vec()].concat()
            },
            &["limit", "bad_pickle"],
        ),
        ("lists 150 deep", repeated(b"\x80\x04", b"]", 150, &repeated(b"", b"a", 149, b".")), &["ok"]),
        ("lists 201 deep", repeated(b"\x80\x04", b"]", 201, &repeated(b"", b"a", 200, b".")), &["limit"]),
        (
            "lists 200,000 deep",
            repeated(b"\x80\x04", b"]", 200_000, &repeated(b"", b"a", 199_999, b".")),
            &["limit"],
        ),
        ("tuples 200,000 deep", repeated(b"\x80\x04)", b"\x85", 200_000, b"."), &["limit"]),
        ("a key of tuples 200,000 deep", repeated(b"\x80\x04})", b"\x85", 200_000, b"Ns."), &["limit"]),
        ("many marks", repeated(b"\x80\x04", b"(", 1 << 20, b"."), &["limit"]),
        ("many objects", repeated(b"\x80\x04(", b"N", 1 << 21, b"l."), &["limit"]),
        ("many dicts", repeated(b"\x80\x04(", b"}", 1 << 18, b"l."), &["limit"]),
        ("many references", repeated(b"\x80\x04]\x94(", b"h\0", 1 << 21, b"l."), &["limit"]),
        (
            "many memo entries",
            {
                let puts: Vec<u8> =
                    (0..1u32 << 19).flat_map(|n| [&b"r"[..], &n.to_le_bytes()].concat()).collect();
                [b"\x80\x04N".to_vec(), puts, b".".to_vec()].concat()
            },
            &["limit"],
        ),
        ("memo index at the end", b"\x80\x04Nr\xff\xff\xff\xffj\xff\xff\xff\xff\x86.".to_vec(), &["ok"]),
        ("missing memo entry", b"\x80\x04h\x05.".to_vec(), &["bad_pickle"]),
        ("pop from an empty stack", b"\x80\x040.".to_vec(), &["bad_pickle"]),
        ("empty stack at the end", b"\x80\x04.".to_vec(), &["bad_pickle"]),
        ("tuple across a mark", b"\x80\x04N(\x86.".to_vec(), &["bad_pickle"]),
        ("no end", b"\x80\x04N".to_vec(), &["bad_pickle"]),
        ("no such opcode", b"\x80\x04\xff.".to_vec(), &["bad_pickle"]),
        ("no such protocol", b"\x80\x09N.".to_vec(), &["bad_pickle"]),
        ("string of 2^64 bytes", claim(0x8d, &huge), &["bad_pickle"]),
        ("bytes of 2^64 bytes", claim(0x8e, &huge), &["bad_pickle"]),
        ("bytearray of 2^64 bytes", claim(0x96, &huge), &["bad_pickle"]),
        ("string of 20 MiB without its bytes", claim(0x8d, &large), &["bad_pickle"]),
        ("string of 4 GiB", claim(b'X', &[0xff; 4]), &["bad_pickle"]),
        ("int of 2 GiB", claim(0x8b, &[0xff, 0xff, 0xff, 0x7f]), &["bad_pickle"]),
        ("int of negative length", claim(0x8b, &[0xff; 4]), &["bad_pickle"]),
        ("int of 4 KiB", [&b"\x80\x04\x8b\0\x10\0\0"[..], &[1; 4096], b"."].concat(), &["limit"]),
        ("int of 10,000 digits", [&b"L"[..], &[b'7'; 10_000], b"L\n."].concat(), &["limit"]),
        ("line without an end", [&b"I"[..], &[b'7'; 100_000]].concat(), &["limit"]),
        ("frame of 2^64 bytes", claim(0x95, &huge), &["bad_pickle"]),
        (
            "string of 33 MiB with its bytes",
            [&b"\x80\x04X"[..], &(33u32 << 20).to_le_bytes(), &vec![b'x'; 33 << 20], b"."].concat(),
            &["limit"],
        ),
        ("frame past the end", claim(0x95, &large), &["bad_pickle"]),
        ("not UTF-8", b"\x80\x04\x8c\x02\xff\xfe.".to_vec(), &["bad_pickle"]),
        ("extension code", b"\x80\x02\x82\x05.".to_vec(), &["unsafe_global"]),
        ("buffer from outside", b"\x80\x05\x97.".to_vec(), &["bad_pickle"]),
        ("os.system", b"cos\nsystem\n(S'true'\ntR.".to_vec(), &["unsafe_global"]),
        ("os.system by INST", b"(S'true'\nios\nsystem\n.".to_vec(), &["unsafe_global"]),
        ("os.system by OBJ", b"(cos\nsystem\nS'true'\no.".to_vec(), &["unsafe_global"]),
        (
            "getattr by STACK_GLOBAL",
            b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.".to_vec(),
            &["unsafe_global"],
        ),
        ("names with dots", b"\x80\x04\x8c\x05torch\x8c\x09os.system\x93.".to_vec(), &["unsafe_global"]),
        ("a call of a string", b"S'os.system'\n(S'true'\ntR.".to_vec(), &["bad_pickle"]),
        ("a type as a value", b"cbuiltins\nlist\n.".to_vec(), &["unsupported"]),
        ("a call of a type", b"cbuiltins\nlist\n)R.".to_vec(), &["bad_pickle"]),
        ("append to a tuple", b"\x80\x04)Na.".to_vec(), &["bad_pickle"]),
        ("list as a key", b"\x80\x04}]Ns.".to_vec(), &["bad_pickle"]),
        ("odd number of items", b"\x80\x04}(Nu.".to_vec(), &["bad_pickle"]),
        ("equal keys", b"\x80\x04}(K\x01S'a'\nG\x3f\xf0\0\0\0\0\0\0S'b'\n\x88S'c'\nu.".to_vec(), &["ok"]),
        (
            "encoded over and over",
            {
                let mut pickle =
                    [&b"\x80\x02c_codecs\nencode\nq\0X\0\0\x10\0"[..], &[b'x'; 1 << 20]].concat();
                pickle.extend(b"q\x01U\x06latin1q\x02h\x01h\x02\x86q\x03(");
                pickle.extend(b"h\0h\x03R".repeat(10_000));
                [pickle, b"l.".to_vec()].concat()
            },
            &["limit"],
        ),
        (
            "sets of a long list",
            {
                let mut pickle = b"\x80\x02cbuiltins\nset\nq\0](".to_vec();
                pickle.extend(b"K\x01".repeat(100_000));
                pickle.extend(b"e\x85q\x01(");
                pickle.extend(b"h\0h\x01R".repeat(10_000));
                [pickle, b"l.".to_vec()].concat()
            },
            &["limit"],
        ),
        (
            "a long string in many places",
            {
                let mut pickle = [&b"\x80\x02X\0\0\x10\0"[..], &[b'x'; 1 << 20]].concat();
                pickle.extend(b"q\0(");
                pickle.extend(b"h\0".repeat(100_000));
                [pickle, b"l.".to_vec()].concat()
            },
            &["limit"],
        ),
        (
            "a long integer in many places",
            {
                let mut pickle = [&b"\x80\x02\x8b\xfa\x06\0\0"[..], &[7; 1786]].concat();
                pickle.extend(b"q\0(");
                pickle.extend(b"h\0".repeat(200_000));
                [pickle, b"l.".to_vec()].concat()
            },
            &["limit"],
        ),
        (
            "a tensor of 64 axes many times",
            {
                let axes = ["1"; 64];
                let one = tensor("0", &axes, &axes);
                let mut pickle = one[..one.len() - 2].to_vec();
                pickle.extend(b"q\0(ctorch._utils\n_rebuild_tensor_v2\nq\x01");
                pickle.extend(b"h\x01h\0R".repeat(200_000));
                [pickle, b"l.".to_vec()].concat()
            },
            &["limit"],
        ),
        ("a tensor of 65 axes", tensor("0", &["1"; 65], &["1"; 65]), &["limit"]),
        ("sizes and strides differ in number", tensor("0", &["1", "1"], &["1"]), &["bad_pickle"]),
        ("a negative size", tensor("0", &["-1"], &["1"]), &["bad_pickle"]),
        ("a negative offset", tensor("-1", &["1"], &["1"]), &["bad_pickle"]),
        ("a negative stride", tensor("3", &["2"], &["-1"]), &["bad_pickle"]),
        ("the whole storage", tensor("0", &["16"], &["1"]), &["ok"]),
        ("one past the storage", tensor("1", &["16"], &["1"]), &["out_of_bounds"]),
        ("a stride out of it", tensor("0", &["2"], &["16"]), &["out_of_bounds"]),
        (
            "a product that overflows",
            tensor("0", &["4294967296", "4294967296"], &["0", "0"]),
            &["out_of_bounds"],
        ),
        (
            "an empty product that overflows",
            tensor("0", &["0", "9223372036854775807", "9"], &["1", "1", "1"]),
            &["out_of_bounds"],
        ),
        (
            "a sum that overflows",
            tensor("9223372036854775807", &["2"], &["9223372036854775807"]),
            &["out_of_bounds"],
        ),
        ("a size past 64 bits", tensor("0", &["99999999999999999999"], &["0"]), &["bad_pickle"]),
        ("a tebibyte of stride 0", tensor("0", &["274877906944"], &["0"]), &["ok"]),
        ("an array of 2^60 items without bytes", items_without_bytes(), &["ok"]),
        ("empty, far behind the storage", tensor("1000", &["0"], &["1"]), &["ok"]),
    ]
}

/// An array of 2^30 by 2^30 items of dtype `V0` in Fortran order, which takes no bytes.
fn items_without_bytes() -> Vec<u8> {
    let mut pickle = b"\x80\x02cnumpy.core.numeric\n_frombuffer\n(".to_vec();
    pickle.extend(b"c_codecs\nencode\n(X\0\0\0\0U\x06latin1tR");
    pickle.extend(b"cnumpy\ndtype\n(U\x02V0tR");
    pickle.extend(b"(J\0\0\0\x40J\0\0\0\x40tU\x01FtR.");
    pickle
}

#[test]
fn hostile_pickles_have_an_expected_outcome() {
    let wrong: Vec<String> = hostile_pickles()
        .into_iter()
        .filter_map(|(name, pickle, expected)| {
            let (document, peak) = inspected(&capture_of(&pickle));
            let outcome = outcome_of(&document);
            let right = expected.contains(&outcome.as_str()) && peak < MAX_MEMORY;
            (!right).then(|| {
                format!("{name}: {outcome} with {peak} bytes, expected {expected:?}: {}", document["message"])
            })
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn container_that_contains_itself_is_named_by_its_path() {
    // {"k": [[<the first list>], <the dict>]}
    let (document, _) = inspected(&capture_of(b"\x80\x04}\x94\x8c\x01k]\x94(]h\x01ah\x00es."));
    let items = &document["root"]["items"][0][1]["items"];
    assert_eq!(items[0]["items"][0], serde_json::json!({"type": "cycle", "to": "$['k']"}), "{document}");
    assert_eq!(items[1], serde_json::json!({"type": "cycle", "to": "$"}));
}

#[test]
fn many_containers_that_contain_themselves_are_refused() {
    // Each of thirty lists contains all of them, so there are far too many paths through them.
    let mut pickle = b"\x80\x04(".to_vec();
    pickle.extend((0..30).flat_map(|_| [b']', 0x94]));
    pickle.extend(b"l\x94(");
    for list in 0..30u8 {
        pickle.extend([b'h', list, b'(']);
        pickle.extend((0..30u8).flat_map(|item| [b'h', item]));
        pickle.extend(b"e");
    }
    pickle.extend(b"10h\x1e.");
    let (document, peak) = inspected(&capture_of(&pickle));
    assert_eq!(outcome_of(&document), "limit", "{document}");
    assert!(peak < MAX_MEMORY);
}

#[test]
fn equal_keys_are_the_same_key() {
    with_file(&capture_of(b"\x80\x04}(K\x01S'a'\nG\x3f\xf0\0\0\0\0\0\0S'b'\n\x88S'c'\nu."), |path| {
        let capture = CaptureFile::open(path).expect("a capture");
        let Value::Dict { items, .. } = capture.root() else { panic!("no dict") };
        assert_eq!(items.len(), 1);
        assert_eq!(items[0], (Value::Int(1), Value::Str("c".into())));
    });
}

/// Code that visits the values of an opened capture does not count them, so opening must refuse such a capture.
#[test]
fn capture_that_unfolds_to_too_many_values_is_refused() {
    with_file(&capture_of(&billion_laughs(40)), |path| {
        assert_eq!(CaptureFile::open(path).expect_err("it is too large").kind.name(), "limit");
    });
    with_file(&capture_of(&billion_laughs(20)), |path| assert!(CaptureFile::open(path).is_ok()));
    // A capture may be small enough to be opened and still too large for a JSON document.
    assert_eq!(outcome_of(&inspected(&capture_of(&billion_laughs(20))).0), "limit");
}
