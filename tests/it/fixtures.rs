//! Runs `inspect FILE --json --digests` on every golden fixture, and compares the output with the values that torch
//! reads.

use std::path::Path;

use opt_tests::{Outcome, Scenario, data};
use serde_json::Value;

/// The number of fixtures. It is fixed here, so that the test notices if it reads only some of them.
const FIXTURES: usize = 140;

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_fixture_is_inspected_as_expected() {
    let manifest = read(&data("MANIFEST.json"));
    let files: Vec<&str> = manifest["files"]
        .as_array()
        .expect("the manifest lists files")
        .iter()
        .map(|row| row["file"].as_str().expect("a row names its file"))
        .collect();
    assert_eq!(files.len(), FIXTURES);
    let scenario = Scenario::create();
    let wrong: Vec<String> = files
        .iter()
        .filter_map(|name| {
            let path = data(name);
            let outcome = scenario.run(&[
                "inspect".as_ref(),
                path.as_os_str(),
                "--json".as_ref(),
                "--digests".as_ref(),
            ]);
            let expected = read(&data(&format!("expected/{name}.json")));
            difference(&outcome, &expected).map(|what| format!("{name}: {what}\n{outcome}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {FIXTURES} differ; the first: {}", wrong.len(), wrong[0]);
}

/// Returns what is wrong with the output, or `None` if it is right.
fn difference(outcome: &Outcome, expected: &Value) -> Option<String> {
    let found = outcome.json();
    let wanted = expected["outcome"].as_str().expect("an expectation has an outcome");
    let found_outcome = found["outcome"].as_str().unwrap_or_default();
    let code = if found_outcome == "ok" { 0 } else { 1 };
    if outcome.code != Some(code) {
        return Some(format!("outcome {found_outcome} with exit code {:?}", outcome.code));
    }
    match (found_outcome, wanted) {
        ("ok", "ok" | "either") => first_difference("storages", &found["storages"], &expected["storages"])
            .or_else(|| first_difference("root", &found["root"], &expected["root"])),
        ("error", "error" | "either") => {
            let kinds = expected["error_kinds"].as_array().expect("an expectation lists kinds");
            (!kinds.contains(&found["error_kind"]))
                .then(|| format!("error kind {}, expected one of {kinds:?}", found["error_kind"]))
        }
        _ => Some(format!("outcome {found_outcome}, expected {wanted}")),
    }
}

/// Returns the first difference between two documents, with both values.
fn first_difference(path: &str, found: &Value, expected: &Value) -> Option<String> {
    match (found, expected) {
        (Value::Object(left), Value::Object(right)) => {
            let (left_keys, right_keys): (Vec<_>, Vec<_>) = (left.keys().collect(), right.keys().collect());
            if left_keys != right_keys {
                return Some(format!("{path} has the keys {left_keys:?}, expected {right_keys:?}"));
            }
            left.iter()
                .find_map(|(key, value)| first_difference(&format!("{path}.{key}"), value, &right[key]))
        }
        (Value::Array(left), Value::Array(right)) => {
            if left.len() != right.len() {
                return Some(format!("{path} has {} items, expected {}", left.len(), right.len()));
            }
            let mut pairs = left.iter().zip(right).enumerate();
            pairs
                .find_map(|(index, (left, right))| first_difference(&format!("{path}[{index}]"), left, right))
        }
        _ => (found != expected).then(|| format!("{path} is {found}, expected {expected}")),
    }
}

#[test]
fn inspect_shows_the_tree_of_a_capture_and_none_of_a_malicious_file() {
    let scenario = Scenario::create();
    let path = data("captures/torch_nn_functional_embedding/entry_000000.pt");
    let outcome = scenario.run(&["inspect".as_ref(), path.as_os_str()]).expect_exit(0);
    outcome.expect_stdout(&["float32[", "int64[", "weight"]);
    outcome.expect(outcome.stdout.contains(" B") || outcome.stdout.contains("KiB"), "sizes are shown");

    let malicious = data("formats/malicious_os_system.pt");
    let outcome = scenario.run(&["inspect".as_ref(), malicious.as_os_str()]).expect_exit(1);
    outcome.expect(outcome.stdout.is_empty(), "a refused file has no tree");
    outcome.expect_stderr(&["system"]);
}

#[test]
fn inspect_shows_no_control_characters_of_file_names() {
    let scenario = Scenario::create();
    let capture = std::fs::read(data("captures/torch_nn_functional_relu/entry_000000.pt")).expect("readable");
    scenario.write("captures/entry_\x1b[31m0.pt", &capture);
    scenario.write("captures/entry_1\n.pt", b"no capture");
    let outcome = scenario.run(&["inspect", "captures"]).expect_exit(1);
    outcome.expect_stdout(&["2 entries of captures", "entry_\u{fffd}[31m0 ", "entry_1 : capture"]);
    outcome.expect(!outcome.stdout.contains('\x1b'), "no control character");
}
