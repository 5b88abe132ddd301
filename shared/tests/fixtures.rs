//! Compares what is read from every golden fixture with its expectation: outcome, kind of error, storages and root.
//!
//! Torch wrote both the files and their expectations, so torch decides what is right.

use std::path::{Path, PathBuf};

use opt_shared::capture::CaptureFile;
use opt_shared::capture::inspect::{document, tree};
use serde_json::Value as Json;

/// The number of fixtures, so that missing ones are noticed.
const FIXTURES: usize = 140;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data")
}

fn read(path: &Path) -> Json {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The fixtures with their expectations.
fn fixtures() -> Vec<(PathBuf, Json)> {
    let manifest = read(&data().join("MANIFEST.json"));
    let rows = manifest["files"].as_array().expect("the manifest lists files");
    rows.iter()
        .map(|row| {
            let name = row["file"].as_str().expect("a row names its file");
            (data().join(name), read(&data().join("expected").join(format!("{name}.json"))))
        })
        .collect()
}

/// Returns the path of the first difference between two documents, and both values.
fn first_difference(path: &str, found: &Json, expected: &Json) -> Option<String> {
    match (found, expected) {
        (Json::Object(left), Json::Object(right)) => {
            let (left_keys, right_keys): (Vec<_>, Vec<_>) = (left.keys().collect(), right.keys().collect());
            if left_keys != right_keys {
                return Some(format!("{path}: keys {left_keys:?}, expected {right_keys:?}"));
            }
            left.iter()
                .find_map(|(key, value)| first_difference(&format!("{path}.{key}"), value, &right[key]))
        }
        (Json::Array(left), Json::Array(right)) => {
            let pairs = left.iter().zip(right).enumerate();
            pairs
                .filter_map(|(index, (left, right))| {
                    first_difference(&format!("{path}[{index}]"), left, right)
                })
                .next()
                .or_else(|| {
                    (left.len() != right.len())
                        .then(|| format!("{path}: {} items, expected {}", left.len(), right.len()))
                })
        }
        _ => (found != expected).then(|| format!("{path}: {found}, expected {expected}")),
    }
}

fn difference(found: &Json, expected: &Json) -> Option<String> {
    let outcome = expected["outcome"].as_str().expect("an expectation has an outcome");
    let kinds = expected["error_kinds"].as_array().expect("an expectation lists kinds");
    match (found["outcome"].as_str(), outcome) {
        (Some("ok"), "ok" | "either") => {
            first_difference("storages", &found["storages"], &expected["storages"])
                .or_else(|| first_difference("root", &found["root"], &expected["root"]))
        }
        (Some("error"), "error" | "either") => (!kinds.contains(&found["error_kind"]))
            .then(|| format!("{} ({}), expected one of {kinds:?}", found["error_kind"], found["message"])),
        _ => Some(format!("outcome {} ({}), expected {outcome}", found["outcome"], found["message"])),
    }
}

#[test]
fn every_fixture_is_read_as_torch_reads_it() {
    let fixtures = fixtures();
    assert_eq!(fixtures.len(), FIXTURES);
    let wrong: Vec<String> = fixtures
        .iter()
        .filter_map(|(path, expected)| {
            difference(&document(path, true), expected).map(|what| format!("{}: {what}", path.display()))
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {FIXTURES} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Without digests, the CRCs of storages are not checked and digests are null. Everything else is the same.
#[test]
fn document_without_digests_is_otherwise_the_same() {
    fn without_digests(node: &mut Json) {
        match node {
            Json::Object(fields) => fields.iter_mut().for_each(|(key, value)| {
                if matches!(key.as_str(), "sha256" | "blake2b_256" | "head_hex") {
                    *value = Json::Null;
                } else {
                    without_digests(value);
                }
            }),
            Json::Array(items) => items.iter_mut().for_each(without_digests),
            _ => {}
        }
    }
    for (path, mut expected) in fixtures() {
        without_digests(&mut expected);
        let needs_data = expected["error_kinds"][0] == "crc_mismatch";
        let found = document(&path, false);
        if needs_data {
            assert_eq!(found["outcome"], "ok", "{}", path.display());
        } else if let Some(what) = difference(&found, &expected) {
            panic!("{}: {what}", path.display());
        }
    }
}

#[test]
fn every_readable_fixture_has_a_tree() {
    for (path, _) in fixtures() {
        let Ok(capture) = CaptureFile::open(&path) else { continue };
        let text = tree(&capture);
        assert!(text.lines().count() >= 2, "{text}");
    }
    let embedding = data().join("captures/torch_nn_functional_embedding/entry_000000.pt");
    let text = tree(&CaptureFile::open(&embedding).expect("a capture"));
    assert!(text.contains("float32["), "{text}");
}
