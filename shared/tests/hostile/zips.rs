//! Zips that contradict themselves, and what is no file at all.

use std::path::PathBuf;

use opt_shared::capture::inspect::document;

use crate::files::{inspected, outcome_of, tensor, zip};

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
                bytes[last + 20] = u8::try_from(comment.len()).expect("small");
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
    overlapping[entry + 42..entry + 46].copy_from_slice(&u32::try_from(inside).expect("small").to_le_bytes());
    let document = outcome(&overlapping);
    assert_eq!(outcome_of(&document), "corrupt_zip");
    assert!(document["message"].as_str().is_some_and(|message| message.contains("overlap")), "{document}");
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
