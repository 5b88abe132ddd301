//! Tests correct kernels that rely on relations between inputs, or between the values of one input. When timed calls
//! get new values, either the values keep these relations, or the input keeps its recorded values.

use std::process::Command;

use opt_tests::{Scenario, data};

use crate::python_kernels::interpreter;

/// The jobs. Each row also has the inputs of the second kernel that vary, and a part of the reason why the kernel's
/// entry does not count.
const JOBS: [(&str, &[&str], &str); 9] = [
    ("rope", &["q"], ""),
    ("padding", &["x"], ""),
    ("bounds", &["x"], ""),
    ("boxes", &["scale"], ""),
    ("one_hot", &["table"], ""),
    ("offsets", &["x"], ""),
    ("equal", &["x", "residual"], ""),
    ("unread", &["weight"], "wrong for new values of `x` ("),
    ("inverse", &["x"], "wrong for new values of `scale` ("),
];

#[test]
fn correct_kernels_that_rely_on_related_inputs_pass() {
    let Some(python) = interpreter() else { return };
    let kernels = data("kernels/related");
    let jobs: String = JOBS
        .iter()
        .map(|(name, ..)| {
            let source = kernels.join(format!("{name}.py"));
            let candidate = |symbol: &str| {
                format!("[[job.candidate]]\nname = {symbol:?}\nsources = [{source:?}]\nsymbol = {symbol:?}\n")
            };
            let (plain, clever) = (candidate("plain"), candidate("clever"));
            format!("[[job]]\nname = {name:?}\ncaptures = \"captures/{name}\"\nbaseline = \"plain\"\n{plain}{clever}")
        })
        .collect();
    let scenario = Scenario::with_plan(&format!(
        "[run]\nstages = [\"build\", \"verify\", \"profile\"]\n[build]\npython = {python:?}\n[limits]\nthreads = 1\n\
         [profile]\nentry_timeout = \"300ms\"\n{jobs}"
    ));
    let made = Command::new(&python)
        .arg(kernels.join("make_captures.py"))
        .arg(scenario.path().join("captures"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .status()
        .expect("the interpreter starts");
    assert!(made.success(), "the captures are made");
    let (outcome, summary) = scenario.run_plan(0, &[]);
    for (job, varied, why) in JOBS {
        let it = summary.candidate(job, "clever");
        outcome.expect_equal(it["status"].as_str(), Some("PASSED"), format_args!("{job}: {}", it["detail"]));
        let entry = &it["profile"]["entries"][0];
        let names: Vec<&str> =
            entry["varied"].as_array().into_iter().flatten().filter_map(|name| name.as_str()).collect();
        outcome.expect_equal(names.as_slice(), varied, format_args!("{job}: inputs that vary"));
        let found = entry["unvaried_because"].as_str();
        let agrees = match found {
            Some(found) => !why.is_empty() && found.contains(why),
            None => why.is_empty(),
        };
        outcome.expect(agrees, format_args!("{job}: {found:?}"));
        let says = it["feedback"].as_str().is_some_and(|text| text.contains("could remember the results"));
        outcome.expect_equal(says, !why.is_empty(), format_args!("{job}: {}", it["feedback"]));
    }
    let text = &outcome.stdout;
    outcome.expect(text.contains("clever has no rank"), "the table says why");
}
