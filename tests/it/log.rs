//! Tests the log of a run: JSON lines in the run's folder, which do not depend on `RUST_LOG`, and readable lines on
//! standard error, which `RUST_LOG` filters.

use opt_tests::summary::list;
use opt_tests::{Outcome, Scenario, Summary};
use serde_json::Value;

use crate::results::plans::{Plan, SOFTMAX};

fn logged(filter: Option<&str>) -> (Outcome, Vec<Value>, Summary) {
    let scenario = Scenario::with_plan(&Plan::softmax(&["fast"]).text());
    let arguments = ["run", "plan.toml", "--quiet"];
    let mut command = scenario.command(&arguments);
    if let Some(filter) = filter {
        command.env("RUST_LOG", filter);
    }
    let outcome = scenario.finish(command.spawn().expect("the program starts"), &arguments).expect_exit(0);
    let log = std::fs::read_to_string(scenario.run_folder().join("log.jsonl")).expect("a log");
    let line = |line| {
        serde_json::from_str(line).unwrap_or_else(|error| outcome.fail(format_args!("{line}: {error}")))
    };
    let lines: Vec<Value> = log.lines().map(line).collect();
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    (outcome, lines, summary)
}

#[test]
fn log_file_has_every_attempt_whatever_the_filter_for_standard_error() {
    for (filter, is_shown) in
        [(None, false), (Some("opt_supervisor::driver=debug"), true), (Some("off"), false)]
    {
        let (outcome, lines, summary) = logged(filter);
        outcome.expect_equal(
            outcome.stderr.contains("DEBUG attempt"),
            is_shown,
            "attempts on standard error",
        );
        if filter == Some("off") {
            outcome.expect_equal(outcome.stderr.as_str(), "", "nothing is shown");
        }
        for field in ["timestamp", "level", "fields", "target"] {
            outcome.expect(lines.iter().all(|line| !line[field].is_null()), field);
        }
        let ended: Vec<&str> = lines
            .iter()
            .filter(|line| line["fields"]["message"] == "candidate")
            .filter_map(|line| line["fields"]["status"].as_str())
            .collect();
        outcome.expect_equal(
            ended,
            vec!["PASSED", "PASSED"],
            "the file has the end of each candidate, independent of the filter",
        );
        let attempts = lines.iter().filter(|line| line["fields"]["message"] == "attempt").count();
        let names = ["naive", "fast"];
        let all: usize =
            names.iter().map(|name| list(&summary.candidate(SOFTMAX, name)["attempts"]).len()).sum();
        outcome.expect_equal(attempts, all, "attempts");
        let counting: usize = names.iter().map(|name| summary.attempts_that_count(SOFTMAX, name)).sum();
        // Three attempts for each candidate, and one to confirm the faster candidate unless noise hid the difference.
        let confirmed = summary.candidate(SOFTMAX, "fast")["profile"]["stage"] == "confirm";
        outcome.expect_equal(counting, 6 + usize::from(confirmed), "attempts that count");
    }
}
