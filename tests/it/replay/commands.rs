//! Tests other commands on plans and runs with replays: `eval`, `repro`, `report` in Markdown and HTML, comparisons of
//! two runs, and `check`, which reports all mistakes at once.

use opt_tests::{Scenario, repository};

use super::{captures, floor, plan, replay, run};

#[test]
fn eval_and_repro_ignore_replays() {
    let scenario = Scenario::create();
    captures(&scenario);
    run(&scenario, 0, &plan("lookups", &[("model", "64MiB", "")]), &[]);
    let fast = repository().join("configs/demo/softmax/fast.c").display().to_string();
    let evaluated = scenario.run(&["eval", "plan.toml", &fast, "--job", "rows", "--json"]).expect_exit(0);
    assert_eq!(evaluated.json()["status"], "PASSED", "{}", evaluated.json());
    let folder = scenario.path().join("runs/plan-eval");
    let summary: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("summary.json")).expect("a summary"))
            .expect("JSON");
    assert_eq!(summary["replays"], serde_json::json!([]), "`eval` makes no replays");
    assert!(!folder.join("replay").exists());
    let again = scenario.run(&["repro", "runs/plan", "rows/naive", "--entry", "entry_000001"]).expect_exit(0);
    again.expect_stdout(&["PASSED"]);
    assert!(!again.stdout.contains("replay model"), "{}", again.stdout);
}

#[test]
fn reports_and_comparisons_show_replays() {
    let scenario = Scenario::create();
    captures(&scenario);
    let (min, whole) = floor(&scenario, "lookups");
    let of = |budget: u64| plan("lookups", &[("model", &format!("{budget}B"), "")]);
    let (outcome, summary) = run(&scenario, 0, &of(min), &[]);
    let result = &replay(&summary, "model")["result"];
    outcome.expect_stdout(&["calls by naive (lookups), naive (rows)", "replay "]);
    let report = |more: &[&str]| scenario.run(&[&["report", "runs/plan"], more].concat()).expect_exit(0);
    report(&["--format", "md"]).expect_stdout(&[
        "### Replays under a budget",
        "| `model` | PASSED |",
        "of that pool",
    ]);
    let page = report(&["--format", "html"]).stdout;
    let evictions = format!("evictions</p><p class=\"figure\">{}</p>", result["evictions"]);
    for part in
        ["Replays under a budget", "12 steps", "keeping everything", evictions.as_str(), "swatch replay"]
    {
        assert!(page.contains(part), "{part}");
    }
    // In the second run, the pool has room for all tensors.
    scenario.write("plan.toml", of(whole));
    scenario.run(&["run", "plan.toml", "--dir", "other"]).expect_exit(0);
    report(&["other"]).expect_stdout(&["replay", "difference", "% time", "note: the budget changed from"]);
    report(&["other", "--format", "md"]).expect_stdout(&["### Replays under a budget", "| `model` |"]);
    let compared = report(&["other", "--format", "json"]).json();
    assert_eq!(compared["replays"][0]["same_outputs"], true, "{compared}");
    assert_eq!(compared["replays"][0]["same_recording"], true, "{compared}");
}

#[test]
fn all_mistakes_of_all_replays_are_reported_at_once() {
    let scenario = Scenario::create();
    captures(&scenario);
    let text = plan(
        "lookups",
        &[("small", "4KiB", ""), ("right", "64MiB", ""), ("pinned", "64MiB", "pin = [\"wieght\"]")],
    );
    scenario.write("plan.toml", &text);
    for command in ["check", "run"] {
        let refused = scenario.run(&[command, "plan.toml"]).expect_exit(2);
        refused.expect_stderr(&["replay `small`", "replay `pinned`: no tensor is named `wieght`"]);
        assert!(!refused.stderr.contains("`right`"), "{}", refused.stderr);
    }
    // A mistake in a job and a mistake in a step are reported together.
    let wrong = text
        .replace("captures = \"rows\"", "captures = \"nowhere\"")
        .replace("entry_000002\"", "entry_000099\"");
    scenario.write("plan.toml", wrong);
    scenario
        .run(&["check", "plan.toml"])
        .expect_exit(2)
        .expect_stderr(&["cannot find the folder", "job `lookups` has no entry `entry_000099`"]);
}
