//! Files that want to hurt: every one is refused cleanly (or read, where it is valid), with memory in proportion.
//!
//! Pickles are written by hand and wrapped into the plainest zip. Memory is counted by an allocator of this binary,
//! for each thread on its own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};

use opt_shared::capture::inspect::{document, tree};
use opt_shared::capture::{CaptureFile, Value};
use proptest::prelude::*;
use serde_json::Value as Json;

// ---- Memory -----------------------------------------------------------------------------------------------------

struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that is ending has no counters any more; nothing is measured then.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is handed to the system's allocator unchanged; the counters are plain cells without destructors,
// so counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: `pointer` came from `alloc` above, which is the system's, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a call allocated at its height, beyond what was there before.
fn peak_of<T>(call: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = call();
    (result, usize::try_from(PEAK.get() - before).unwrap_or(0))
}

/// For a small file, whatever it says: buffers of a few MiB, and objects up to their limit.
const MOST_MEMORY: usize = 160 << 20;

// ---- Files ------------------------------------------------------------------------------------------------------

/// A stored zip of these records, as plain as can be.
fn zip(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut directory = Vec::new();
    for (name, data) in records {
        let offset = bytes.len() as u32;
        let mut fields = Vec::new();
        fields.extend([0u16, 0, 0, 0].iter().flat_map(|field| field.to_le_bytes()));
        fields.extend(crc32(data).to_le_bytes());
        fields.extend([data.len() as u32; 2].iter().flat_map(|field| field.to_le_bytes()));
        fields.extend([name.len() as u16, 0].iter().flat_map(|field| field.to_le_bytes()));
        bytes.extend(b"PK\x03\x04\x14\x00");
        bytes.extend(&fields);
        bytes.extend(name.as_bytes());
        bytes.extend(*data);
        directory.extend(b"PK\x01\x02\x14\x00\x14\x00");
        directory.extend(&fields);
        directory.extend([0; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let start = bytes.len() as u32;
    let count = records.len() as u16;
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend([count, count].iter().flat_map(|field| field.to_le_bytes()));
    bytes.extend((directory.len() as u32).to_le_bytes());
    bytes.extend(start.to_le_bytes());
    bytes.extend([0, 0]);
    bytes
}

fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

fn capture_of(pickle: &[u8]) -> Vec<u8> {
    zip(&[("a/data.pkl", pickle), ("a/byteorder", b"little"), ("a/data/0", &[7; 64]), ("a/version", b"3\n")])
}

fn with_file<T>(bytes: &[u8], call: impl FnOnce(&Path) -> T) -> T {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), bytes).expect("written");
    call(file.path())
}

/// Everything that can be asked of a file; the document and the most memory that it took.
fn inspected(bytes: &[u8]) -> (Json, usize) {
    with_file(bytes, |path| {
        peak_of(|| {
            if let Ok(capture) = CaptureFile::open(path) {
                assert!(tree(&capture).lines().count() < 4_000);
            }
            document(path, true)
        })
    })
}

fn outcome_of(document: &Json) -> String {
    document["error_kind"].as_str().unwrap_or("ok").to_owned()
}

// ---- Pickles ----------------------------------------------------------------------------------------------------

fn short_text(text: &str) -> Vec<u8> {
    [&[0x8c, text.len() as u8], text.as_bytes()].concat()
}

/// `_rebuild_tensor_v2` over storage 0, which is 64 bytes of float32, with these sizes as they are spelled.
fn tensor(offset: &str, size: &[&str], stride: &[&str]) -> Vec<u8> {
    let ints = |values: &[&str]| -> String { values.iter().map(|value| format!("I{value}\n")).collect() };
    let mut pickle = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((".to_vec();
    pickle.extend(short_text("storage"));
    pickle.extend(b"ctorch\nFloatStorage\n");
    pickle.extend([short_text("0"), short_text("cpu")].concat());
    pickle.extend(
        format!("I16\ntQI{offset}\n({}t({}t\u{89}}}tR.", ints(size), ints(stride)).chars().map(|c| c as u8),
    );
    pickle
}

/// A list of two references to a list of two references to …
fn laughs(levels: usize) -> Vec<u8> {
    let mut pickle = b"\x80\x04]\x94".to_vec();
    for level in 0..levels as u8 {
        pickle.extend(b"]\x94(");
        pickle.extend([b'h', level, b'h', level, b'e']);
    }
    pickle.push(b'.');
    pickle
}

fn table() -> Vec<(&'static str, Vec<u8>, &'static [&'static str])> {
    let repeated = |start: &[u8], unit: &[u8], times: usize, end: &[u8]| -> Vec<u8> {
        [start, &unit.repeat(times), end].concat()
    };
    let claim = |opcode: u8, length: &[u8]| -> Vec<u8> { [&[0x80, 4, opcode], length, b"abc."].concat() };
    let huge = u64::MAX.to_le_bytes();
    let large = (20u64 << 20).to_le_bytes();
    vec![
        ("laughs that fit", laughs(10), &["ok"]),
        ("billion laughs", laughs(40), &["limit"]),
        ("many laughs", laughs(199), &["limit"]),
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
        ("memo entry that is not there", b"\x80\x04h\x05.".to_vec(), &["bad_pickle"]),
        ("pop from nothing", b"\x80\x040.".to_vec(), &["bad_pickle"]),
        ("nothing at the end", b"\x80\x04.".to_vec(), &["bad_pickle"]),
        ("tuple across a mark", b"\x80\x04N(\x86.".to_vec(), &["bad_pickle"]),
        ("no end", b"\x80\x04N".to_vec(), &["bad_pickle"]),
        ("no such opcode", b"\x80\x04\xff.".to_vec(), &["bad_pickle"]),
        ("no such protocol", b"\x80\x09N.".to_vec(), &["bad_pickle"]),
        ("string of 2^64 bytes", claim(0x8d, &huge), &["limit"]),
        ("bytes of 2^64 bytes", claim(0x8e, &huge), &["limit"]),
        ("bytearray of 2^64 bytes", claim(0x96, &huge), &["limit"]),
        ("string of 20 MiB that is not there", claim(0x8d, &large), &["bad_pickle"]),
        ("string of 4 GiB", claim(b'X', &[0xff; 4]), &["limit"]),
        ("int of 2 GiB", claim(0x8b, &[0xff, 0xff, 0xff, 0x7f]), &["limit"]),
        ("int of negative length", claim(0x8b, &[0xff; 4]), &["bad_pickle"]),
        ("int of 4 KiB", [&b"\x80\x04\x8b\0\x10\0\0"[..], &[1; 4096], b"."].concat(), &["limit"]),
        ("int of 10,000 digits", [&b"L"[..], &[b'7'; 10_000], b"L\n."].concat(), &["limit"]),
        ("line without an end", [&b"I"[..], &[b'7'; 100_000]].concat(), &["limit"]),
        ("frame of 2^64 bytes", claim(0x95, &huge), &["limit"]),
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
        ("empty, far behind the storage", tensor("1000", &["0"], &["1"]), &["ok"]),
    ]
}

#[test]
fn each_kind_of_harm_has_its_answer() {
    let wrong: Vec<String> = table()
        .into_iter()
        .filter_map(|(name, pickle, expected)| {
            let (document, peak) = inspected(&capture_of(&pickle));
            let outcome = outcome_of(&document);
            let right = expected.contains(&outcome.as_str()) && peak < MOST_MEMORY;
            (!right).then(|| {
                format!("{name}: {outcome} with {peak} bytes, expected {expected:?}: {}", document["message"])
            })
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_container_that_holds_itself_is_named_by_its_path() {
    // {"k": [[<the first list>], <the dict>]}
    let (document, _) = inspected(&capture_of(b"\x80\x04}\x94\x8c\x01k]\x94(]h\x01ah\x00es."));
    let items = &document["root"]["items"][0][1]["items"];
    assert_eq!(items[0]["items"][0], serde_json::json!({"type": "cycle", "to": "$['k']"}), "{document}");
    assert_eq!(items[1], serde_json::json!({"type": "cycle", "to": "$"}));
}

#[test]
fn many_containers_that_hold_themselves_are_refused() {
    // Thirty lists, each of which holds all of them: paths through them are beyond number.
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
    assert!(peak < MOST_MEMORY);
}

#[test]
fn equal_keys_are_one() {
    with_file(&capture_of(b"\x80\x04}(K\x01S'a'\nG\x3f\xf0\0\0\0\0\0\0S'b'\n\x88S'c'\nu."), |path| {
        let capture = CaptureFile::open(path).expect("a capture");
        let Value::Dict { items, .. } = capture.root() else { panic!("no dict") };
        assert_eq!(items.len(), 1);
        assert_eq!(items[0], (Value::Int(1.into()), Value::Str("c".into())));
    });
}

// ---- Zips -------------------------------------------------------------------------------------------------------

#[test]
fn a_zip_that_contradicts_itself_is_refused() {
    let pickle = tensor("0", &["16"], &["1"]);
    let data = [7; 64];
    let records: [(&str, &[u8]); 3] =
        [("a/data.pkl", &pickle), ("a/byteorder", b"little"), ("a/data/0", &data)];
    let good = zip(&records);
    assert_eq!(outcome_of(&inspected(&good).0), "ok");
    let edited = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        edit(&mut bytes);
        bytes
    };
    let find = |bytes: &[u8], what: &[u8], from: usize| {
        from + bytes[from..].windows(what.len()).position(|window| window == what).expect("it is there")
    };
    let directory = find(&good, b"PK\x01\x02", 0);
    let last = good.len() - 22;
    let storage_entry = find(&good, b"a/data/0", directory) - 46;
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("big-endian", zip(&[records[0], ("a/byteorder", b"big"), records[2]]), &["unsupported"]),
        (
            "TorchScript",
            zip(&[records[0], records[1], records[2], ("a/constants.pkl", b"")]),
            &["unsupported"],
        ),
        ("two pickles", zip(&[records[0], ("b/data.pkl", &pickle), records[2]]), &["corrupt_zip"]),
        ("one name twice", zip(&[records[0], records[2], records[2]]), &["corrupt_zip"]),
        ("no storage", zip(&[records[0], records[1]]), &["missing_record"]),
        ("nothing", zip(&[]), &["missing_record", "corrupt_zip"]),
        ("pickle damaged", edited(&|bytes| bytes[50] ^= 1), &["crc_mismatch"]),
        ("storage damaged", edited(&|bytes| bytes[directory - 1] ^= 1), &["crc_mismatch"]),
        (
            "overlap",
            edited(&|bytes| {
                // The storage's header is claimed to be the pickle's.
                bytes[storage_entry + 42..storage_entry + 46].fill(0);
            }),
            &["corrupt_zip"],
        ),
        (
            "storage larger than the file",
            edited(&|bytes| {
                bytes[storage_entry + 20..storage_entry + 28].fill(0x7f);
            }),
            &["corrupt_zip"],
        ),
        (
            "storage of 4 GiB without zip64",
            edited(&|bytes| {
                bytes[storage_entry + 20..storage_entry + 28].fill(0xff);
            }),
            &["corrupt_zip"],
        ),
        ("deflated", edited(&|bytes| bytes[storage_entry + 10] = 8), &["corrupt_zip"]),
        ("encrypted", edited(&|bytes| bytes[storage_entry + 8] |= 1), &["unsupported"]),
        ("header elsewhere", edited(&|bytes| bytes[storage_entry + 42] ^= 4), &["corrupt_zip"]),
        ("directory elsewhere", edited(&|bytes| bytes[last + 16..last + 20].fill(0xfe)), &["corrupt_zip"]),
        ("one record too many", edited(&|bytes| bytes[last + 10] += 1), &["corrupt_zip"]),
        ("one record too few", edited(&|bytes| bytes[last + 10] -= 1), &["corrupt_zip"]),
        ("bytes after the end", [&good[..], b"trailing"].concat(), &["ok"]),
        (
            "comment with a false end",
            {
                let mut bytes = good.clone();
                let comment = [&b"PK\x05\x06"[..], &[0xff; 30]].concat();
                bytes[last + 20] = comment.len() as u8;
                [bytes, comment].concat()
            },
            &["ok"],
        ),
        (
            "cut in the comment",
            {
                let mut bytes = good.clone();
                bytes[last + 20] = 9;
                bytes
            },
            &["truncated"],
        ),
    ];
    let wrong: Vec<String> = cases
        .into_iter()
        .filter_map(|(name, bytes, expected)| {
            let (document, _) = inspected(&bytes);
            let outcome = outcome_of(&document);
            (!expected.contains(&outcome.as_str()))
                .then(|| format!("{name}: {outcome}, expected {expected:?}: {}", document["message"]))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The second storage's header and data lie inside the first storage: each is whole, both cannot be.
#[test]
fn a_record_inside_another_is_refused() {
    let pickle = tensor("0", &["4"], &["1"]);
    let inner = zip(&[("a/data/1", &[9; 16])]);
    // Its local header and data, without the directory.
    let inner = &inner[..30 + 8 + 16];
    let bytes =
        zip(&[("a/data.pkl", &pickle), ("a/data/0", &[inner, &[7; 64]].concat()), ("a/data/1", &[9; 16])]);
    let find = |what: &[u8], from: usize| {
        from + bytes[from..].windows(what.len()).position(|window| window == what).expect("it is there")
    };
    let inside = find(inner, 0);
    let entry = find(b"a/data/1", find(b"PK\x01\x02", 0)) - 46;
    let outcome = |bytes: &[u8]| inspected(bytes).0;
    assert_eq!(outcome_of(&outcome(&bytes)), "ok");
    let mut overlapping = bytes.clone();
    overlapping[entry + 42..entry + 46].copy_from_slice(&(inside as u32).to_le_bytes());
    let document = outcome(&overlapping);
    assert_eq!(outcome_of(&document), "corrupt_zip");
    assert!(document["message"].as_str().is_some_and(|message| message.contains("overlap")), "{document}");
}

/// Whoever walks the values of an opened capture need not keep count.
#[test]
fn what_unfolds_without_end_is_not_opened() {
    with_file(&capture_of(&laughs(40)), |path| {
        assert_eq!(CaptureFile::open(path).expect_err("it is too large").kind.name(), "limit");
    });
    with_file(&capture_of(&laughs(20)), |path| assert!(CaptureFile::open(path).is_ok()));
    // What may be opened may still be too much to write out.
    assert_eq!(outcome_of(&inspected(&capture_of(&laughs(20))).0), "limit");
}

#[test]
fn what_is_no_file_is_an_io_error() {
    let folder = tempfile::tempdir().expect("a folder");
    for path in [folder.path().to_owned(), folder.path().join("missing.pt"), PathBuf::from("/dev/zero")] {
        let document = document(&path, false);
        assert_eq!(document["error_kind"], "io", "{document}");
        assert!(
            document["message"]
                .as_str()
                .is_some_and(|message| message.contains(path.to_str().unwrap_or("?")))
        );
    }
}

// ---- Chance -----------------------------------------------------------------------------------------------------

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

/// The pickle of a fixture in a zip of its own, so that a change of it does not only break its CRC.
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

/// A damaged small file may cost its buffers, and no more.
const MOST_MEMORY_OF_SMALL: usize = 24 << 20;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_change_of_a_fixture_does_harm(which in any::<prop::sample::Index>(), edits in prop::collection::vec(edit(), 1..6)) {
        let fixtures = small_fixtures();
        let mut bytes = which.get(&fixtures).clone();
        edits.iter().for_each(|edit| apply(&mut bytes, edit));
        let (document, peak) = inspected(&bytes);
        prop_assert!(document["outcome"] == "ok" || document["message"].is_string());
        prop_assert!(peak < MOST_MEMORY_OF_SMALL, "{} bytes", peak);
    }

    #[test]
    fn no_change_of_a_pickle_does_harm(which in any::<prop::sample::Index>(), edits in prop::collection::vec(edit(), 1..6)) {
        let pickles: Vec<Vec<u8>> = small_fixtures().iter().filter_map(|bytes| pickle_of(bytes)).collect();
        prop_assert!(pickles.len() > 30);
        let mut pickle = which.get(&pickles).clone();
        edits.iter().for_each(|edit| apply(&mut pickle, edit));
        let (document, peak) = inspected(&capture_of(&pickle));
        prop_assert!(document["outcome"] == "ok" || document["message"].is_string());
        prop_assert!(peak < MOST_MEMORY_OF_SMALL, "{} bytes", peak);
    }

    #[test]
    fn no_random_file_does_harm(start in prop::sample::select(vec![&b"PK\x03\x04"[..], b"\x80\x02", b"", b"PK\x05\x06"]), bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let (document, peak) = inspected(&[start, &bytes].concat());
        prop_assert_eq!(&document["outcome"], "error");
        prop_assert!(peak < MOST_MEMORY_OF_SMALL);
    }

    #[test]
    fn no_random_pickle_does_harm(opcodes in prop::collection::vec(prop_oneof![
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
        prop_assert!(peak < MOST_MEMORY_OF_SMALL);
    }
}
