//! Tests replays of recorded calls under a budget. Outputs are the same with every budget, the budget is never
//! exceeded, and a replay that deviates from its schedule has no result.

mod commands;
mod failures;
mod on_devices;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use opt_shared::replay::Recording;
use opt_tests::{Outcome, Scenario, Summary, binary, repository, summary::list};
use serde_json::Value;

fn generate(scenario: &Scenario, folder: &str, arguments: &[&str]) {
    let program = binary().with_file_name("gen-captures");
    let mut command = Command::new(program);
    command.args(arguments).arg("--out").arg(scenario.path().join(folder));
    let output = command.output().expect("gen-captures starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Generates two sets: alternating lookups in two tables, and calls that each use a different tensor.
fn captures(scenario: &Scenario) {
    generate(scenario, "lookups", &["embedding", "--entries", "4", "--total", "3MB"]);
    generate(scenario, "rows", &["op", "--name", "softmax", "--shape", "64,1024", "--entries", "6"]);
}

/// A plan with two jobs, each with a baseline, and these replays. A replay is given as its name, its budget and more
/// keys.
fn plan(lookups: &str, replays: &[(&str, &str, &str)]) -> String {
    let kernel = |name: &str| repository().join(format!("configs/demo/{name}.c")).display().to_string();
    let mut text = format!(
        "[run]\nstages = [\"build\", \"verify\"]\n[build]\nlibraries = [\"m\"]\n\
         [[job]]\nname = \"lookups\"\ncaptures = \"{lookups}\"\nbaseline = '{}'\n\
         [[job]]\nname = \"rows\"\ncaptures = \"rows\"\nbaseline = '{}'\n",
        kernel("embedding/naive"),
        kernel("softmax/naive")
    );
    let row = |entry: u32| format!("[\"rows\", \"entry_{entry:06}\"]");
    let lookup = |entry: u32| format!("[\"lookups\", \"entry_{entry:06}\"]");
    let steps = [
        lookup(0),
        row(0),
        row(1),
        row(2),
        lookup(2),
        row(3),
        row(4),
        lookup(1),
        row(5),
        row(0),
        lookup(3),
        row(1),
    ]
    .join(", ");
    for (name, budget, more) in replays {
        let _ =
            write!(text, "[[replay]]\nname = \"{name}\"\nsteps = [{steps}]\nbudget = \"{budget}\"\n{more}\n");
    }
    text
}

/// Returns the smallest possible budget and the size of all constants, according to `check`.
fn floor(scenario: &Scenario, lookups: &str) -> (u64, u64) {
    scenario.write("plan.toml", plan(lookups, &[("asked", "1GiB", "")]));
    let checked = scenario.run(&["check", "plan.toml", "--json"]).expect_exit(0);
    let replay = checked.json()["replays"][0].clone();
    let figure = |name: &str| replay[name].as_u64().expect("a figure");
    (figure("floor_bytes"), figure("all_resident_bytes"))
}

fn run(scenario: &Scenario, code: i32, text: &str, more: &[&str]) -> (Outcome, Summary) {
    scenario.write("plan.toml", text);
    scenario.run_plan(code, more)
}

fn replay<'s>(summary: &'s Summary, name: &str) -> &'s Value {
    let replays = list(&summary.document["replays"]);
    replays.iter().find(|replay| replay["name"] == name).unwrap_or_else(|| panic!("no {name}: {replays:?}"))
}

#[test]
fn every_budget_gives_the_same_outputs() {
    let scenario = Scenario::create();
    captures(&scenario);
    let (floor, whole) = floor(&scenario, "lookups");
    assert!(floor + 4096 < whole, "floor {floor}, everything {whole}");
    let budgets: Vec<(String, u64)> =
        (0..=4).map(|part| (format!("at_{part}"), floor + (whole - floor) * part / 4)).collect();
    let texts: Vec<(String, String)> =
        budgets.iter().map(|(name, bytes)| (name.clone(), format!("{bytes}B"))).collect();
    let mut replays: Vec<(&str, &str, &str)> =
        texts.iter().map(|(name, budget)| (name.as_str(), budget.as_str(), "")).collect();
    let at_floor = texts[0].1.clone();
    replays.push(("far_ahead", &at_floor, "prefetch = 4"));
    replays.push(("not_ahead", &at_floor, "prefetch = 0"));
    let whole_text = format!("{whole}B");
    replays.push(("pinned", &whole_text, "pin = [\"lookups/weight\"]"));
    let (outcome, summary) = run(&scenario, 0, &plan("lookups", &replays), &[]);
    let first = replay(&summary, "at_0")["result"].clone();
    for (name, budget, _) in &replays {
        let it = replay(&summary, name);
        outcome.expect_equal(it["status"].as_str(), Some("PASSED"), name);
        let result = &it["result"];
        let figure = |key: &str| result[key].as_u64().unwrap_or_else(|| panic!("{name}: {key} of {result}"));
        let budget: u64 = budget.trim_end_matches('B').parse().expect("a budget in bytes");
        outcome.expect(
            figure("peak_pool_bytes") <= budget,
            format_args!("{name} stays within {budget}: {result}"),
        );
        outcome.expect_equal(
            &result["outputs_digest"],
            &first["outputs_digest"],
            "every byte of every output",
        );
        outcome.expect_equal(&result["recording_digest"], &first["recording_digest"], "catalog and schedule");
        outcome.expect_equal(figure("hits") + figure("misses"), figure("uses"), "uses");
        outcome.expect_equal(list(&result["steps"]).len(), 12, "steps");
        outcome.expect(figure("unique_bytes") <= figure("bytes_moved"), "every byte was moved at least once");
        if budget == whole {
            outcome.expect_equal(figure("bytes_moved"), figure("unique_bytes"), "moved once");
            outcome.expect_equal(figure("evictions"), 0, "evictions");
        }
    }
    outcome.expect(0 < first["evictions"].as_u64().unwrap_or(0), "the smallest budget causes evictions");
    outcome.expect_stdout(&["replay at_0: 12 steps", "moved", "compared with keeping everything"]);
}

#[test]
fn budget_below_the_floor_is_refused_with_the_size_needed() {
    let scenario = Scenario::create();
    captures(&scenario);
    let (floor, _) = floor(&scenario, "lookups");
    let below = format!("{}B", floor - 1);
    scenario.write("plan.toml", plan("lookups", &[("model", &below, "")]));
    for arguments in [["run", "plan.toml"], ["check", "plan.toml"]] {
        let refused = scenario.run(&arguments).expect_exit(2);
        refused.expect_stderr(&[
            "replay `model`",
            &below.replace('B', " bytes"),
            &format!("the minimum is {floor} bytes"),
        ]);
    }
    assert!(!scenario.run_folder().exists(), "no run folder was made");
    let misnamed = plan("lookups", &[("model", "1GiB", "pin = [\"wieght\"]")]);
    scenario.write("plan.toml", misnamed);
    scenario.run(&["run", "plan.toml"]).expect_exit(2).expect_stderr(&["no tensor is named `wieght`"]);
}

/// Restores the state of a run that was interrupted before its replay: the recording exists, but the result does not.
fn forget_result(scenario: &Scenario) {
    let store =
        rusqlite::Connection::open(scenario.run_folder().join("run.sqlite")).expect("the run's store");
    store.execute("UPDATE replay SET status = NULL, result = NULL, inputs = NULL", []).expect("forgotten");
}

/// Resumes the run. Checks that the replay has no result, and that its detail contains these parts.
fn expect_refused(scenario: &Scenario, parts: &[&str]) {
    let (outcome, summary) = scenario.run_plan(3, &["--resume"]);
    let it = replay(&summary, "model");
    outcome.expect_equal(it["status"].as_str(), Some("INFRA_ERROR"), "the replay");
    outcome.expect(it["result"].is_null(), "no result");
    for part in parts {
        outcome.expect(
            it["detail"].as_str().is_some_and(|detail| detail.contains(part)),
            format_args!("{part}: {it}"),
        );
    }
}

#[test]
fn resumed_replay_uses_its_recording_and_refuses_a_wrong_one() {
    let scenario = Scenario::create();
    captures(&scenario);
    let text = plan("lookups", &[("model", "64MiB", "")]);
    let (_, summary) = run(&scenario, 0, &text, &[]);
    let first = replay(&summary, "model")["result"].clone();
    let path = scenario.run_folder().join("replay/model.recording");
    let recorded = std::fs::read(&path).expect("the recording");

    // If the result exists, the run reuses it. If not, the run computes the result from the same recording.
    let (outcome, summary) = scenario.run_plan(0, &["--resume"]);
    outcome.expect_equal(&replay(&summary, "model")["result"], &first, "the result is unchanged");
    forget_result(&scenario);
    let (outcome, summary) = scenario.run_plan(0, &["--resume"]);
    let again = &replay(&summary, "model")["result"];
    for key in ["outputs_digest", "recording_digest", "bytes_moved", "hits", "misses", "evictions"] {
        outcome.expect_equal(&again[key], &first[key], key);
    }

    // Change one byte of the recording.
    forget_result(&scenario);
    let mut changed = recorded.clone();
    changed[recorded.len() / 2] ^= 1;
    std::fs::write(&path, &changed).expect("written");
    expect_refused(&scenario, &["cannot be used (remove it"]);

    // Swap two uses and adjust the rest of the recording, so that it is consistent.
    let mut swapped = Recording::decode(&recorded).expect("a recording");
    let at = swapped.uses.iter().position(|it| it.step == 3).expect("a use in step 3") - 1;
    let (one, other) = (swapped.uses[at], swapped.uses[at + 1]);
    for (index, from) in [(at, other), (at + 1, one)] {
        let it = &mut swapped.uses[index];
        (it.constant, it.name, it.bytes, it.epoch) = (from.constant, from.name, from.bytes, from.epoch);
    }
    assert!(Recording::decode(&swapped.encode()).is_ok(), "the recording can be decoded");
    std::fs::write(&path, swapped.encode()).expect("written");
    expect_refused(&scenario, &["at use", &at.to_string(), "expected", "actual"]);

    // If the recording is missing, the run makes a new one.
    std::fs::remove_file(&path).expect("removed");
    let (outcome, summary) = scenario.run_plan(0, &["--resume"]);
    outcome.expect_equal(
        &replay(&summary, "model")["result"]["outputs_digest"],
        &first["outputs_digest"],
        "outputs",
    );
    outcome.expect_equal(std::fs::read(&path).expect("the recording"), recorded, "the recording");
}

#[test]
fn replay_from_a_store_equals_one_from_files() {
    let scenario = Scenario::create();
    captures(&scenario);
    scenario.run(&["captures", "pack", "lookups", "store"]).expect_exit(0);
    let budget = format!("{}B", floor(&scenario, "store").0);
    let (outcome, of_store) = run(&scenario, 0, &plan("store", &[("model", &budget, "")]), &[]);
    let of_store = replay(&of_store, "model")["result"].clone();
    std::fs::remove_dir_all(scenario.run_folder()).expect("removed");
    let (_, of_files) = run(&scenario, 0, &plan("lookups", &[("model", &budget, "")]), &[]);
    let of_files = &replay(&of_files, "model")["result"];
    for key in ["outputs_digest", "bytes_moved", "evictions", "peak_pool_bytes", "constants"] {
        outcome.expect_equal(&of_store[key], &of_files[key], key);
    }
}

/// A replay needs a kernel from each of its jobs.
#[test]
fn replay_of_a_job_without_a_passing_kernel_is_skipped() {
    let scenario = Scenario::create();
    captures(&scenario);
    let text = plan("lookups", &[("model", "64MiB", "")]);
    let broken = Path::new("configs/demo/softmax/bad/wrong_by_nine_percent.c");
    let text = text.replace(
        &repository().join("configs/demo/softmax/naive.c").display().to_string(),
        &repository().join(broken).display().to_string(),
    );
    let (outcome, summary) = run(&scenario, 1, &text, &[]);
    let it = replay(&summary, "model");
    outcome.expect_equal(it["status"].as_str(), Some("SKIPPED"), "the replay");
    outcome.expect(it["result"].is_null(), "no result");
    outcome.expect(it["detail"].as_str().is_some_and(|why| why.contains("job `rows`")), "why");
}
