//! Tests a run that is resumed after the source of its baseline has changed.

use std::fs;

use opt_tests::summary::list;
use opt_tests::{Scenario, Summary, repository};
use serde_json::Value;

use super::built;
use crate::results::plans::{Plan, SOFTMAX};

/// Returns the numbers of a candidate's attempts at a stage.
fn attempts(summary: &Summary, candidate: &str, stage: &str) -> Vec<Value> {
    list(&summary.candidate(SOFTMAX, candidate)["attempts"])
        .iter()
        .filter(|attempt| attempt["stage"] == stage)
        .map(|attempt| attempt["number"].clone())
        .collect()
}

#[test]
fn candidates_are_timed_again_if_the_baseline_has_changed() {
    let scenario = Scenario::create();
    let kernels = repository().join("configs/demo/softmax");
    for name in ["naive.c", "fast.c"] {
        let text = fs::read_to_string(kernels.join(name)).expect("a kernel of the demo");
        scenario.write(name, text);
    }
    let crash = "*(volatile int *)0 = 1";
    let arguments = "void *self, const OptAny *args, int32_t n, OptAny *ret";
    let text =
        format!("#include \"opt_candidate.h\"\nOPT_EXPORT int run({arguments}) {{ {crash}; return 0; }}\n");
    scenario.write("bad/segfaults.c", text);
    // The plan names copies of the kernels, because the test changes them.
    let plan = Plan::softmax(&["fast", "bad/segfaults"]).text();
    let plan = plan.replace(&kernels.display().to_string(), &scenario.path().display().to_string());
    scenario.write("plan.toml", plan);
    let run = |arguments: &[&str]| {
        let outcome = scenario.run(&[&["run", "plan.toml", "--quiet"], arguments].concat()).expect_exit(0);
        let summary = Summary::read(&scenario.run_folder(), &outcome);
        for (candidate, status) in [("naive", "PASSED"), ("fast", "PASSED"), ("segfaults", "CRASHED")] {
            outcome.expect_equal(summary.verdict(SOFTMAX, candidate).0, Some(status), candidate);
        }
        (outcome, summary)
    };
    let (_, before) = run(&[]);
    let timed = |summary: &Summary, candidate| attempts(summary, candidate, "profile");

    let (outcome, same) = run(&["--resume"]);
    outcome.expect_equal(timed(&same, "fast"), timed(&before, "fast"), "nothing has changed");

    let baseline = scenario.path().join("naive.c");
    let text = fs::read_to_string(&baseline).expect("the baseline");
    fs::write(&baseline, format!("{text}\n/* changed */\n")).expect("written");
    let (outcome, after) = run(&["--resume"]);
    for candidate in ["naive", "fast"] {
        let (old, new) = (timed(&before, candidate), timed(&after, candidate));
        let again = old.len() < new.len();
        outcome.expect(again, format_args!("{candidate} is timed again: {old:?}, {new:?}"));
    }
    // Results that do not depend on the baseline are kept.
    let verified = |summary: &Summary| attempts(summary, "segfaults", "verify");
    outcome.expect_equal(
        verified(&after),
        verified(&before),
        "a candidate that was not timed keeps its verdict",
    );
    let builds = built(&after).iter().filter(|it| **it == "fast").count();
    outcome.expect_equal(builds, 1, "the build of a candidate is kept");
}
