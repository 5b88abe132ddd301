//! Runs the tests of the Python packages. The interpreter is that of the environment that `.ci/run` creates for torch,
//! or else `python3`.

use std::path::Path;

use opt_tests::python::python_with;
use opt_tests::{Outcome, Scenario, binary, repository};

use crate::report::browser::skipped;

/// Runs the tests in the files of `python/tests` that match `pattern`.
fn unittest(scenario: &Scenario, python: &Path, pattern: &str) -> Outcome {
    let folder = repository().join("python");
    let folder = folder.to_str().expect("a path in UTF-8");
    let tests = format!("{folder}/tests");
    let arguments = ["-B", "-m", "unittest", "discover", "-s", &tests, "-t", folder, "-p", pattern];
    let mut command = scenario.command_of(python, &arguments);
    let child = command.env("OPT_SUPERVISOR", binary()).env("PYTHONPATH", folder).spawn();
    scenario.finish(child.expect("python starts"), &arguments)
}

#[test]
fn recorder_passes_its_own_tests() {
    let Some(python) = python_with("torch.overrides", "torch") else {
        skipped("the recorder was not tried: there is no python3 with torch");
        return;
    };
    let scenario = Scenario::create();
    // Run all files except those of the client, which `client_passes_its_own_tests` runs.
    let outcome = unittest(&scenario, &python, "test_[!c]*.py").expect_exit(0);
    outcome.expect(outcome.stderr.trim_end().ends_with("OK"), "no test was skipped");
}

#[test]
fn client_passes_its_own_tests() {
    // Some tests need pytest or torch; the others need no package.
    let complete = python_with("pytest, torch", "torch");
    let Some(python) = complete.clone().or_else(|| python_with("tomllib", "torch")) else {
        skipped("the Python client was not tried: there is no python3 of version 3.11 or newer");
        return;
    };
    let outcome = unittest(&Scenario::create(), &python, "test_c*.py").expect_exit(0);
    if complete.is_none() && outcome.stderr.contains("OK (skipped=") {
        skipped("parts of the Python client were not tried: torch or pytest is not installed");
    } else {
        outcome.expect(outcome.stderr.trim_end().ends_with("OK"), "no test was skipped");
    }
}
