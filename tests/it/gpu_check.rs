//! Tests `gpu-check` without a driver, and as a dry run over the twins of libcuda and NVML.

use std::path::PathBuf;
use std::process::Command;

use opt_nvml_twin::{Device, Script};
use opt_tests::devices::{device, on_a_card, twin, with_context};
use opt_tests::{Outcome, Scenario, binary, summary::list};
use serde_json::Value;

fn program() -> PathBuf {
    let program = binary().with_file_name("gpu-check");
    assert!(
        program.is_file(),
        "{} is missing: build all with `cargo build --workspace --bins`",
        program.display()
    );
    program
}

fn run(scenario: &Scenario, mut command: Command, arguments: &[&str]) -> Outcome {
    let child = command.spawn().expect("started");
    scenario.finish(child, arguments)
}

/// Runs `gpu-check` over the twins. `misbehaviour` lists functions of libcuda's twin that hang or crash, and kernels
/// whose launches do nothing.
fn on_twins(scenario: &Scenario, arguments: &[&str], misbehaviour: &str) -> Outcome {
    let devices = vec![Device { processes: vec![with_context(&[(0, 300)])], ..device() }];
    let twin = twin(scenario, &Script { devices, ..Script::default() });
    let mut command = scenario.command_of(&program(), arguments);
    on_a_card(scenario, &twin, &mut command).env("OPT_CUDA_TWIN_MISBEHAVIOUR", misbehaviour);
    run(scenario, command, arguments)
}

fn document(scenario: &Scenario) -> Value {
    let text = std::fs::read(scenario.path().join("results.json")).expect("the results");
    serde_json::from_slice(&text).expect("JSON")
}

/// Returns the rows of a step: the judgement and the whole text of each row.
fn rows(document: &Value, step: &str) -> Vec<(String, String)> {
    let found = list(&document["steps"]).iter().find(|it| it["step"] == step);
    let found = found.unwrap_or_else(|| panic!("no step {step}"));
    list(&found["rows"])
        .iter()
        .map(|row| (row["judgement"].as_str().unwrap_or_default().to_owned(), row.to_string()))
        .collect()
}

#[test]
fn check_without_a_driver_exits_with_3() {
    let scenario = Scenario::create();
    // If this machine has a driver, one step is enough.
    let arguments = ["--dir", ".", "--steps", "relu"];
    let outcome = run(&scenario, scenario.command_of(&program(), &arguments), &arguments);
    if outcome.code == Some(0) {
        outcome.expect_stdout(&["card: ", "relu/naive"]);
    } else {
        outcome.expect_stderr(&["no CUDA driver"]);
        outcome.expect_equal(outcome.stdout.as_str(), "", "standard output");
        outcome.expect_exit(3);
    }
}

#[test]
fn twin_is_never_taken_for_a_card() {
    let scenario = Scenario::create();
    let outcome = on_twins(&scenario, &["--steps", "relu"], "");
    outcome.expect_stderr(&["this driver is a twin, not a card's", "--dry-run"]);
    outcome.expect_equal(outcome.stdout.as_str(), "", "standard output");
    outcome.expect_exit(3);
}

#[test]
fn dry_run_gives_an_answer_for_every_step() {
    let scenario = Scenario::create();
    let arguments = ["--dry-run", "--json", "results.json", "--markdown", "results.md"];
    let outcome = on_twins(&scenario, &arguments, "");
    outcome.expect_stdout(&["twin: twin of a card", "This is a dry run"]);
    let document = document(&scenario);
    outcome.expect_equal(document["kind"].as_str(), Some("twin"), "its kind");
    let steps = list(&document["steps"]);
    outcome.expect(28 <= steps.len(), format_args!("{} steps", steps.len()));
    for step in steps {
        let name = step["step"].as_str().unwrap_or_default();
        let rows = rows(&document, name);
        outcome.expect(!rows.is_empty(), format_args!("{name} has rows"));
        for (judgement, row) in rows {
            let is_fine = ["passed", "measured", "skipped"].contains(&judgement.as_str());
            outcome.expect(is_fine, format_args!("{name}: {row}"));
        }
    }
    // These rows judge kernels and faults, and compare them with the emulated device.
    for (step, words) in [
        ("matmul", "the same bits on both"),
        ("trap", "CUDA_ERROR_LAUNCH_FAILED (719), PTX line"),
        ("illegal-address", "a new process: correct"),
        ("endless", "CUDA_ERROR_LAUNCH_TIMEOUT (702)"),
        ("out-of-memory", "CUDA_ERROR_OUT_OF_MEMORY (2)"),
        ("cap", "60.0 MiB placed, then refused"),
        ("pool", "refused"),
    ] {
        let found = rows(&document, step);
        let is_found = found.iter().any(|(_, row)| row.contains(words));
        outcome.expect(is_found, format_args!("`{words}` in {found:?}"));
    }
    let markdown = std::fs::read_to_string(scenario.path().join("results.md")).expect("the table");
    let is_marked = markdown.starts_with("# GPU check: dry run\n\n**This is a dry run on the twin");
    outcome.expect(is_marked, "the table says what it is");
    outcome.expect_exit(0);
}

#[test]
fn gpu_check_limits_wrong_kernel_hang_and_crash_to_their_rows() {
    let scenario = Scenario::create();
    let steps = "relu,relu-f16,pool,nvml,device-copies,launches";
    let arguments = ["--dry-run", "--json", "results.json", "--steps", steps];
    let misbehaviour = "skips:packed,hangs:cuMemPoolCreate,crashes:cuMemcpyDtoDAsync_v2";
    let outcome = on_twins(&scenario, &arguments, misbehaviour);
    let document = document(&scenario);
    for (step, judgement, words) in [
        ("relu", "passed", "relu/naive"),
        ("relu-f16", "failed", "WRONG"),
        ("pool", "no_answer", "hung: killed after"),
        ("nvml", "measured", "cost of one sample"),
        ("device-copies", "no_answer", "crashed: ended by signal 6"),
        ("launches", "measured", "a launch among many"),
    ] {
        let found = rows(&document, step);
        let is_found = found.iter().any(|(found, row)| found == judgement && row.contains(words));
        outcome.expect(is_found, format_args!("{step}: {found:?}"));
    }
    outcome.expect_equal(document["is_good"].as_bool(), Some(false), "`is_good`");
    outcome.expect_stdout(&["1 failed", "2 without an answer"]);
    outcome.expect_exit(1);
}
