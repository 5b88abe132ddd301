//! Tests kernels in Triton, which are verified with Triton's interpreter and not timed. The tests need a Python
//! interpreter with torch and Triton.

use std::path::PathBuf;

use opt_tests::python::python_with;
use opt_tests::{Scenario, Summary, data, repository};

use crate::report::browser::skipped;

/// The kernels, each with its status and a part of its detail.
const KERNELS: [(&str, &str, &str); 7] = [
    ("rows", "PASSED", ""),
    ("writes", "PASSED", ""),
    ("wrong_by_nine_percent", "INCORRECT_NUMERICAL", "elements"),
    ("skips_the_last_row", "UNWRITTEN_OUTPUT", "elements"),
    ("forgets_the_mask", "OUT_OF_BOUNDS", "`output`"),
    ("writes_into_its_input", "INPUT_MUTATED", "stored into the input `input`"),
    ("calls_a_missing_function", "RUNTIME_ERROR", "exponential"),
];

pub fn interpreter() -> Option<PathBuf> {
    let named = std::env::var_os("OPT_TEST_PYTHON").map(PathBuf::from);
    let found = named.or_else(|| python_with("torch, triton", "torch"));
    if found.is_none() {
        skipped(
            "Triton kernels were not tried: there is no python3 with torch and triton (set OPT_TEST_PYTHON)",
        );
    }
    found
}

fn plan(stages: &str, job: &str, names: &[&str]) -> Option<String> {
    let python = interpreter()?;
    let mut plan = format!(
        "[run]\nstages = {stages}\n[build]\npython = {python:?}\n[verify]\nstop_after = 1\n[limits]\nthreads = 1\n\
         [[job]]\nname = \"softmax\"\ncaptures = {captures:?}\nentries = [\"entry_000001.pt\"]\n{job}\n",
        captures = data("demo/torch_nn_functional_softmax"),
    );
    for name in names {
        let source = data("kernels/triton").join(format!("{name}.py"));
        plan +=
            &format!("[[job.candidate]]\nname = {name:?}\nlanguage = \"triton\"\nsources = [{source:?}]\n");
    }
    Some(plan)
}

#[test]
fn every_triton_kernel_ends_as_expected() {
    let names = KERNELS.map(|(name, ..)| name);
    let Some(plan) = plan("[\"build\", \"verify\"]", "", &names) else { return };
    let scenario = Scenario::with_plan(&plan);
    let outcome = scenario.run(&["run", "plan.toml"]).expect_exit(0);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    for (name, status, says) in KERNELS {
        let it = summary.candidate("softmax", name);
        let detail = it["detail"].as_str().unwrap_or_default();
        outcome.expect_equal(it["status"].as_str(), Some(status), format_args!("{name}: {detail}"));
        let blame = (status != "PASSED").then_some("candidate");
        outcome.expect_equal(it["blame"].as_str(), blame, format_args!("the blame for {name}"));
        outcome.expect(
            detail.contains(says),
            format_args!("the detail of {name} contains {says:?}: {detail:?}"),
        );
        outcome.expect_equal(it["tier"].as_str(), Some("B"), name);
    }
    let compiler = &summary.candidate("softmax", "rows")["build"]["compiler"];
    outcome.expect(
        compiler.as_str().is_some_and(|it| it.contains("triton")),
        format_args!("the version of Triton is recorded: {compiler}"),
    );
}

#[test]
fn triton_kernel_passes_without_a_time_beside_timed_kernels() {
    let naive = repository().join("configs/demo/softmax/naive.c");
    let job = format!(
        "baseline = \"torch\"\nprofile = {{ entry_timeout = \"500ms\" }}\n[[job.candidate]]\nsources = [{naive:?}]\n"
    );
    let Some(plan) = plan("[\"build\", \"verify\", \"profile\"]", &job, &["rows"]) else { return };
    let scenario = Scenario::with_plan(&plan);
    let outcome = scenario.run(&["run", "plan.toml"]).expect_exit(0);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    for (name, is_timed) in [("torch", true), ("naive", true), ("rows", false)] {
        let it = summary.candidate("softmax", name);
        outcome.expect_equal(it["status"].as_str(), Some("PASSED"), format_args!("{name}: {}", it["detail"]));
        outcome.expect_equal(it["profile"]["median_time_ms"].is_number(), is_timed, name);
        outcome.expect_equal(it["not_timed_because"].is_string(), !is_timed, name);
        outcome.expect_equal(it["rank"].is_number(), is_timed, name);
    }
    outcome.expect_stdout(&["rows", "not timed"]);
}

/// If nothing can be timed, the exit code is 0 if candidates pass the verification.
#[test]
fn job_with_only_triton_kernels_passes_without_times() {
    let Some(plan) = plan("[\"build\", \"verify\", \"profile\"]", "", &["rows"]) else { return };
    let scenario = Scenario::with_plan(&plan);
    let outcome = scenario.run(&["run", "plan.toml"]).expect_exit(0);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    let job = summary.job("softmax");
    outcome.expect_equal(job["status"].as_str(), Some("PASSED"), "the job");
    outcome.expect(
        job["detail"].as_str().is_some_and(|it| it.contains("nothing was timed: Triton's interpreter")),
        format_args!("the job's detail has the reason: {}", job["detail"]),
    );
}

#[test]
fn triton_kernel_as_a_baseline_or_as_plain_python_is_explained() {
    let Some(as_baseline) = plan("[\"build\", \"verify\"]", "baseline = \"rows\"", &["rows"]) else { return };
    let scenario = Scenario::with_plan(&as_baseline);
    scenario
        .run(&["check", "plan.toml"])
        .expect_exit(2)
        .expect_stderr(&["a baseline must be timed, but this one cannot be: Triton's interpreter"]);
    let as_python = as_baseline.replace("baseline = \"rows\"\n", "").replace("language = \"triton\"\n", "");
    let scenario = Scenario::with_plan(&as_python);
    let outcome = scenario.run(&["run", "plan.toml"]).expect_exit(1);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    let it = summary.candidate("softmax", "rows");
    outcome.expect_equal(it["status"].as_str(), Some("RUNTIME_ERROR"), "its status");
    outcome.expect_equal(it["blame"].as_str(), Some("candidate"), "its blame");
    outcome.expect(
        it["detail"].as_str().is_some_and(|it| it.contains("`language = \"triton\"`")),
        format_args!("the detail says what to do: {}", it["detail"]),
    );
}
