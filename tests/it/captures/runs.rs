//! Tests runs from a store: they give the same verdicts as runs from files, and a damaged store affects only its own
//! job.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use opt_shared::capture::CaptureFile;
use opt_tests::{Scenario, Summary, data};
use serde_json::{Map, Value};

use super::{blobs, pack};
use crate::results::plans::{Plan, SOFTMAX};

const CANDIDATES: [&str; 4] =
    ["fast", "bad/wrong_by_nine_percent", "bad/writes_into_an_input", "bad/segfaults"];

fn run(captures: &Path) -> (Scenario, Summary) {
    // Leave out profiling, because times differ between runs.
    let plan = Plan { captures: captures.to_owned(), ..Plan::softmax(&CANDIDATES) }.text();
    let scenario = Scenario::with_plan(&format!("[run]\nstages = [\"build\", \"verify\"]\n{plan}"));
    let (_, summary) = scenario.run_plan(0, &[]);
    (scenario, summary)
}

/// Returns the candidates of a run, without the addresses of illegal writes, because these differ between runs.
fn verdicts(summary: &Summary) -> Vec<Value> {
    const OF_CANDIDATE: [&str; 6] = ["name", "status", "blame", "detail", "failures", "failed_stage"];
    const OF_VERIFY: [&str; 6] = [
        "entries_run",
        "entries_passed",
        "max_absolute_error",
        "max_relative_error",
        "worst",
        "validated_bytes",
    ];
    let values = |object: &Value, keys: &[&str]| {
        let value = |key: &&str| {
            let value = object.get(*key).unwrap_or_else(|| panic!("`{key}` is missing in {object}"));
            ((*key).to_owned(), value.clone())
        };
        keys.iter().map(value).collect::<Map<_, _>>()
    };
    let candidates = summary.job(SOFTMAX)["candidates"].as_array().expect("a list");
    candidates
        .iter()
        .map(|candidate| {
            let mut all = values(candidate, &OF_CANDIDATE);
            all.extend(values(&candidate["verify"], &OF_VERIFY));
            without_addresses(Value::Object(all))
        })
        .collect()
}

fn without_addresses(value: Value) -> Value {
    let text = value.to_string();
    let mut parts = text.split("(address 0x");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    parts.for_each(|part| plain.push_str(part.trim_start_matches(|c: char| c.is_ascii_hexdigit())));
    serde_json::from_str(&plain).expect("JSON")
}

#[test]
fn run_from_a_store_gives_the_verdicts_of_a_run_from_files() {
    let files = data("demo/torch_nn_functional_softmax");
    let packing = Scenario::create();
    let store = pack(&packing, &files, "store");
    let (of_files, of_store) = (run(&files).1, run(&store).1);
    let (of_files_verdicts, of_store_verdicts) = (verdicts(&of_files), verdicts(&of_store));
    assert_eq!(of_store_verdicts.len(), of_files_verdicts.len());
    for (candidate, other) in of_store_verdicts.iter().zip(&of_files_verdicts) {
        for (key, value) in candidate.as_object().expect("an object") {
            assert_eq!(value, &other[key], "`{key}` of {}", candidate["name"]);
        }
    }
    let (job, other) = (of_store.job(SOFTMAX), of_files.job(SOFTMAX));
    for key in ["entries", "bytes", "unique_bytes", "digest"] {
        assert_eq!(job["captures"][key], other["captures"][key], "{key}");
    }
    assert_eq!(job["signature_digest"], other["signature_digest"]);
    assert_eq!((&job["captures"]["form"], &other["captures"]["form"]), (&"store".into(), &"files".into()));
}

/// The captures include strided views, a lazy conjugate, and arguments without tensors.
#[test]
fn check_of_a_store_equals_the_check_of_its_files() {
    let scenario = Scenario::create();
    for folder in std::fs::read_dir(data("captures")).expect("fixtures") {
        let folder = folder.expect("a folder").path();
        let op = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let store = pack(&scenario, &folder, &op);
        let [of_files, of_store] = [&folder, &store].map(|captures| {
            let plan = Plan { captures: captures.clone(), ..Plan::softmax(&[]) };
            scenario.write("plan.toml", plan.text());
            let signature =
                scenario.run(&["check", "plan.toml", "--signature", "--json"]).expect_exit(0).json();
            let facts = scenario.run(&["check", "plan.toml", "--json"]).json();
            (signature, facts["jobs"][0]["captures"].clone())
        });
        assert_eq!(of_files, of_store, "{op}");
    }
}

#[test]
fn missing_blob_ends_its_job_as_capture_error() {
    let scenario = Scenario::create();
    let files = data("demo/torch_nn_functional_softmax");
    pack(&scenario, &files, "good");
    let broken = pack(&scenario, &files, "broken");
    let blob = blobs(&broken).remove(0);
    std::fs::remove_file(&blob).expect("removed");
    let job = |name: &str| {
        let captures = scenario.path().join(name);
        Plan { name: name.to_owned(), captures, ..Plan::softmax(&["fast"]) }
    };
    scenario.write("plan.toml", format!("{}{}", job("broken").text(), job("good").job()));
    let (outcome, summary) = scenario.run_plan(1, &[]);
    let (broken_job, good_job) = (summary.job("broken"), summary.job("good"));
    outcome.expect_equal(&broken_job["status"], &"CAPTURE_ERROR".into(), "the broken job");
    outcome.expect_equal(&good_job["status"], &"PASSED".into(), "the good job");
    let detail = broken_job["detail"].as_str().unwrap_or_default();
    let name = blob.file_name().expect("a name").to_string_lossy();
    outcome.expect(detail.contains(&*name), format_args!("`{detail}` names the blob {name}"));
}

/// If damage does not change the size of a blob, it shows only as wrong values. When a candidate fails, the worker
/// therefore checks the capture before it blames the candidate.
#[test]
fn damaged_blob_ends_as_capture_error() {
    let scenario = Scenario::create();
    let store = pack(&scenario, &data("demo/torch_nn_functional_softmax"), "store");
    let first = CaptureFile::open(&store.join("entries/entry_000000.pt")).expect("a packed capture");
    let expected = first
        .storages()
        .last()
        .expect("the output is the last storage")
        .blob
        .expect("a storage of a store is a blob");
    let name = expected.to_string();
    let path = store.join("blobs").join(&name[..2]).join(&name);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("writable");
    let file = std::fs::File::options().write(true).open(&path).expect("opened");
    file.write_all_at(&[0x7f; 64], 128).expect("damaged");
    scenario.write("plan.toml", Plan { captures: store, ..Plan::softmax(&["fast"]) }.text());
    let (outcome, summary) = scenario.run_plan(1, &[]);
    outcome.expect_equal(
        summary.verdict(SOFTMAX, "fast"),
        (Some("CAPTURE_ERROR"), Some("capture")),
        "the verdict",
    );
    let detail = summary.candidate(SOFTMAX, "fast")["detail"].as_str().unwrap_or_default();
    outcome.expect(detail.contains(&name), format_args!("`{detail}` names the blob {name}"));
}
