//! Python kernels that try to appear fast without doing their work, one for each class of cheat, with the status that
//! each must end with.
//!
//! No test checks a time. A cheat that must not pass ends with another status, and a cheat that passes gains nothing.

use opt_tests::{Scenario, Summary, data};

use super::{interpreter, plan_of};
use crate::isolation::generate;

const PASSED: &[&str] = &["PASSED"];
const NONDETERMINISTIC: &[&str] = &["NONDETERMINISTIC"];
const LATE: &[&str] = &["DEFERRED_WORK", "NONDETERMINISTIC"];

const EXPLOITS: &[(&str, &[&str])] = &[
    ("remembers_by_data_ptr", NONDETERMINISTIC),
    ("remembers_by_object", NONDETERMINISTIC),
    ("returns_a_kept_tensor", NONDETERMINISTIC),
    ("patches_the_copy", NONDETERMINISTIC),
    ("jumps_over_the_work", NONDETERMINISTIC),
    ("leaves_it_to_a_thread", LATE),
    ("computes_between_calls", LATE),
    ("says_done_early", &["DEFERRED_WORK", "NONDETERMINISTIC", "TIMEOUT", "RUNTIME_ERROR"]),
    // The next kernels pass because their results are right, but they gain nothing.
    ("remembers_by_values", PASSED),
    ("patches_time", PASSED),
    ("sleeps_in_its_import", PASSED),
    ("searches_for_answers", PASSED),
    ("spoils_torch", PASSED),
    // This honest kernel is the baseline.
    ("honest", PASSED),
];

#[test]
fn clock_exploits_in_python_end_as_expected() {
    let Some(python) = interpreter() else { return };
    let scenario = Scenario::create();
    let captures = generate(&scenario, "softmax", "64,256", 1);
    let kernels = data("kernels/python_exploits");
    let names: Vec<&str> = EXPLOITS.iter().map(|(name, _)| *name).collect();
    let more = "baseline = \"honest\"\nprofile = { entry_timeout = \"300ms\" }";
    let text = plan_of(&kernels, &python, "[\"build\", \"verify\", \"profile\"]", &names, more);
    let theirs = format!("captures = {:?}", data("demo/torch_nn_functional_softmax"));
    scenario.write("plan.toml", text.replace(&theirs, &format!("captures = {captures:?}")));
    let outcome = scenario.run(&["run", "--quiet", "plan.toml"]);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    outcome.expect_clean(&scenario.run_folder(), &scenario.runtime());
    let ended = EXPLOITS.iter().map(|(name, statuses)| (summary.candidate("softmax", name), name, statuses));
    let wrong: Vec<String> = ended
        .filter(|(it, _, statuses)| !it["status"].as_str().is_some_and(|status| statuses.contains(&status)))
        .map(|(it, name, statuses)| {
            format!("{name}: {} and not {statuses:?}: {}", it["status"], it["detail"])
        })
        .collect();
    outcome.expect(wrong.is_empty(), wrong.join("\n"));
    for (name, _) in EXPLOITS {
        let it = summary.candidate("softmax", name);
        let blame = (it["status"] != "PASSED").then_some("candidate");
        outcome.expect_equal(it["blame"].as_str(), blame, format_args!("the blame for {name}"));
    }
    let entry = &summary.candidate("softmax", "honest")["profile"]["entries"][0];
    outcome.expect_equal(
        &entry["varied"],
        &serde_json::json!(["input"]),
        "the inputs that vary between calls",
    );
}
