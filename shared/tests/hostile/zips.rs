//! Tests with zips that contradict themselves, and with paths that are not files.

use std::path::PathBuf;

use opt_shared::capture::inspect::document;

use crate::files::{inspected, outcome_of, tensor, zip};

#[test]
fn changed_zip_has_an_expected_outcome() {
    let pickle = tensor("0", &["16"], &["1"]);
    let data = [7; 64];
    let records: [(&str, &[u8]); 3] =
        [("a/data.pkl", &pickle), ("a/byteorder", b"little"), ("a/data/0", &data)];
    let valid = zip(&records);
    let with_version = |version: &[u8]| zip(&[records[0], records[2], ("a/version", version)]);
    assert_eq!(outcome_of(&inspected(&valid).0), "ok");
    let edited = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = valid.clone();
        edit(&mut bytes);
        bytes
    };
    let find = |bytes: &[u8], what: &[u8], from: usize| {
        from + bytes[from..].windows(what.len()).position(|window| window == what).expect("it is there")
    };
    let directory = find(&valid, b"PK\x01\x02", 0);
    let last = valid.len() - 22;
    let storage_entry = find(&valid, b"a/data/0", directory) - 46;
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("big-endian", zip(&[records[0], ("a/byteorder", b"big"), records[2]]), &["unsupported"]),
        (
            "TorchScript",
            zip(&[records[0], records[1], records[2], ("a/constants.pkl", b"")]),
            &["unsupported"],
        ),
        ("version 3", with_version(b"3\n"), &["ok"]),
        ("version 10", with_version(b"10"), &["ok"]),
        ("version 11", with_version(b"11\n"), &["unsupported"]),
        ("version 0", with_version(b"0\n"), &["unsupported"]),
        ("a version that is not a number", with_version(b"three"), &["unsupported"]),
        ("a long version", with_version(&[b'3'; 17]), &["limit"]),
        ("two pickles", zip(&[records[0], ("b/data.pkl", &pickle), records[2]]), &["corrupt_zip"]),
        ("one name twice", zip(&[records[0], records[2], records[2]]), &["corrupt_zip"]),
        ("no storage", zip(&[records[0], records[1]]), &["missing_record"]),
        ("nothing", zip(&[]), &["missing_record", "corrupt_zip"]),
        ("pickle damaged", edited(&|bytes| bytes[50] ^= 1), &["crc_mismatch"]),
        ("storage damaged", edited(&|bytes| bytes[directory - 1] ^= 1), &["crc_mismatch"]),
        (
            "overlap",
            edited(&|bytes| {
                // The directory's entry for the storage points to the header of the pickle.
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
        ("header behind 2^63", far_header(&valid, storage_entry, &[0xff; 8]), &["corrupt_zip"]),
        ("header at 2^63", far_header(&valid, storage_entry, &(1u64 << 63).to_le_bytes()), &["corrupt_zip"]),
        (
            "header behind the end",
            far_header(&valid, storage_entry, &(1u64 << 40).to_le_bytes()),
            &["corrupt_zip"],
        ),
        ("directory behind 2^63", far_directory(&valid, &(u64::MAX - 9).to_le_bytes()), &["corrupt_zip"]),
        ("end of directory behind 2^63", far_end(&valid), &["corrupt_zip"]),
        ("directory elsewhere", edited(&|bytes| bytes[last + 16..last + 20].fill(0xfe)), &["corrupt_zip"]),
        ("one record too many", edited(&|bytes| bytes[last + 10] += 1), &["corrupt_zip"]),
        ("one record too few", edited(&|bytes| bytes[last + 10] -= 1), &["corrupt_zip"]),
        ("bytes after the end", [&valid[..], b"trailing"].concat(), &["ok"]),
        (
            "comment with a false end",
            {
                let mut bytes = valid.clone();
                let comment = [&b"PK\x05\x06"[..], &[0xff; 30]].concat();
                bytes[last + 20] = u8::try_from(comment.len()).expect("small");
                [bytes, comment].concat()
            },
            &["ok"],
        ),
        (
            "cut in the comment",
            {
                let mut bytes = valid.clone();
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

/// Writes this offset of the storage's header to a zip64 field.
fn far_header(good: &[u8], entry: usize, offset: &[u8; 8]) -> Vec<u8> {
    let field = [&[1, 0, 8, 0], &offset[..]].concat();
    let mut bytes = good.to_vec();
    bytes[entry + 42..entry + 46].fill(0xff);
    let length = u8::try_from(field.len()).expect("small");
    bytes[entry + 30] = length;
    let name_end = entry + 46 + usize::from(bytes[entry + 28]);
    bytes.splice(name_end..name_end, field);
    let last = bytes.len() - 22;
    bytes[last + 12] += length;
    bytes
}

/// Writes this offset of the directory to its zip64 end record.
fn far_directory(good: &[u8], offset: &[u8; 8]) -> Vec<u8> {
    let last = good.len() - 22;
    let (zip, end) = good.split_at(last);
    let records = u64::from(end[10]).to_le_bytes();
    let size = u64::from(u32::from_le_bytes([end[12], end[13], end[14], end[15]])).to_le_bytes();
    let end64 = [
        b"PK\x06\x06",
        &44u64.to_le_bytes()[..],
        &[45, 0, 45, 0],
        &[0; 8],
        &records,
        &records,
        &size,
        offset,
    ]
    .concat();
    [zip, &end64, &locator(last as u64), &without_values(end)].concat()
}

/// Makes the zip64 locator point beyond 2^63.
fn far_end(good: &[u8]) -> Vec<u8> {
    let (zip, end) = good.split_at(good.len() - 22);
    [zip, &locator(u64::MAX - 99), &without_values(end)].concat()
}

fn locator(end64: u64) -> Vec<u8> {
    [b"PK\x06\x07", &[0; 4][..], &end64.to_le_bytes(), &1u32.to_le_bytes()].concat()
}

/// Sets the fields of the end record to 0xff, so that the zip64 end record is used.
fn without_values(end: &[u8]) -> Vec<u8> {
    let mut end = end.to_vec();
    end[8..20].fill(0xff);
    end
}

/// The header and data of the second storage are inside the first one. Each of the two is valid, but not both together.
#[test]
fn record_inside_another_is_refused() {
    let pickle = tensor("0", &["4"], &["1"]);
    let inner = zip(&[("a/data/1", &[9; 16])]);
    // This is the local header with its data, without the directory.
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

/// The old format does not store the length of its pickles, so lengths are compared with the length of the file.
#[test]
fn length_beyond_the_file_is_a_truncation() {
    let start = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.\x80\x04";
    let behind = vec![0; 65 << 20];
    for (claim, expected) in [
        ([&[0x8d], &(1u64 << 60).to_le_bytes()[..]].concat(), "truncated"),
        ([&[0x8b], &0x7fff_ffff_u32.to_le_bytes()[..]].concat(), "truncated"),
        ([&[0x95], &u64::MAX.to_le_bytes()[..]].concat(), "truncated"),
        // These bytes exist, but exceed the limit.
        ([&[0x8d], &(33u64 << 20).to_le_bytes()[..]].concat(), "limit"),
    ] {
        let (document, _) = inspected(&[&start[..], &claim, &behind].concat());
        assert_eq!(outcome_of(&document), expected, "{}", document["message"]);
    }
}

#[test]
fn file_of_another_kind_is_named() {
    let tar = [&[0; 257][..], b"ustar\0", &[0; 249]].concat();
    let safetensors = [
        &60u64.to_le_bytes()[..],
        b"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}  ",
        &[0; 4],
    ]
    .concat();
    for (bytes, what) in [
        (&b"\x93NUMPY\x01\0v\0{'descr': '<f4'"[..], "numpy .npy file"),
        (&zip(&[("arr_0.npy", b"\x93NUMPY")]), "npz"),
        (&zip(&[("entry_000000.pt", b"")]), "archive of captures"),
        (&zip(&[("a/code/__torch__.py", b""), ("a/constants.pkl", b"")]), "TorchScript"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "gzip"),
        (b"\x28\xb5\x2f\xfd\x04", "zstd"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "git lfs pull"),
        (b"\n<!DOCTYPE html><title>404</title>", "HTML"),
        (b"<html lang=en>", "HTML"),
        (&safetensors, "safetensors"),
        (&tar, "tar archive"),
        (b"\x7fELF\x02\x01", "library"),
        (b"Not Found\n", "text"),
        (b"\x80\x04\x95\x05\0\0\0\0\0\0\0]\x94K\x01a.", "another program's pickle"),
        (b"\x01\x02\x03\x04", "neither a zip nor"),
    ] {
        let (document, _) = inspected(bytes);
        let message = document["message"].as_str().unwrap_or_default();
        assert!(matches!(outcome_of(&document).as_str(), "bad_magic" | "missing_record"), "{document}");
        assert!(message.contains(what), "{what}: {message}");
    }
}

#[test]
fn path_that_is_not_a_file_is_an_io_error() {
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
