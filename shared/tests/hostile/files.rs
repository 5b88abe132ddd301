//! Makes hostile files by hand, as the simplest zip around a pickle, and runs every query on a file.

use std::path::Path;

use opt_shared::capture::CaptureFile;
use opt_shared::capture::inspect::{document, tree};
use serde_json::Value as Json;

use crate::memory::peak_of;

/// Makes a simple zip in which these records are stored.
pub(crate) fn zip(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut directory = Vec::new();
    for (name, data) in records {
        let offset = u32::try_from(bytes.len()).expect("small");
        let mut fields = Vec::new();
        fields.extend([0u16, 0, 0, 0].iter().flat_map(|field| field.to_le_bytes()));
        fields.extend(crc32(data).to_le_bytes());
        fields.extend(
            [u32::try_from(data.len()).expect("small"); 2].iter().flat_map(|field| field.to_le_bytes()),
        );
        fields.extend(
            [u16::try_from(name.len()).expect("small"), 0].iter().flat_map(|field| field.to_le_bytes()),
        );
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
    let start = u32::try_from(bytes.len()).expect("small");
    let count = u16::try_from(records.len()).expect("small");
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend([count, count].iter().flat_map(|field| field.to_le_bytes()));
    bytes.extend(u32::try_from(directory.len()).expect("small").to_le_bytes());
    bytes.extend(start.to_le_bytes());
    bytes.extend([0, 0]);
    bytes
}

fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

pub(crate) fn capture_of(pickle: &[u8]) -> Vec<u8> {
    zip(&[("a/data.pkl", pickle), ("a/byteorder", b"little"), ("a/data/0", &[7; 64]), ("a/version", b"3\n")])
}

pub(crate) fn with_file<T>(bytes: &[u8], call: impl FnOnce(&Path) -> T) -> T {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), bytes).expect("written");
    call(file.path())
}

/// Runs every query on a file. Returns the document and the largest memory use.
pub(crate) fn inspected(bytes: &[u8]) -> (Json, usize) {
    with_file(bytes, |path| {
        peak_of(|| {
            if let Ok(capture) = CaptureFile::open(path) {
                assert!(tree(&capture).lines().count() < 4_000);
            }
            document(path, true)
        })
    })
}

pub(crate) fn outcome_of(document: &Json) -> String {
    document["error_kind"].as_str().unwrap_or("ok").to_owned()
}

fn short_text(text: &str) -> Vec<u8> {
    [&[0x8c, u8::try_from(text.len()).expect("small")], text.as_bytes()].concat()
}

/// A pickle that calls `_rebuild_tensor_v2` with the given encoded sizes. Storage 0 has 64 bytes of float32.
pub(crate) fn tensor(offset: &str, size: &[&str], stride: &[&str]) -> Vec<u8> {
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

/// A pickle of nested lists, each of which contains the next one twice, like the "billion laughs" attack on XML.
pub(crate) fn billion_laughs(levels: usize) -> Vec<u8> {
    let mut pickle = b"\x80\x04]\x94".to_vec();
    for level in 0..u8::try_from(levels).expect("small") {
        pickle.extend(b"]\x94(");
        pickle.extend([b'h', level, b'h', level, b'e']);
    }
    pickle.push(b'.');
    pickle
}
