//! Tests commands before and after a run: `init`, `check`, `inspect`, `repro`.

use opt_tests::{Scenario, data, summary::list};
use serde_json::Value;

use super::plans::{Plan, SOFTMAX};

#[test]
fn generated_plan_is_accepted_and_its_skeleton_compiles() {
    let captures = data("captures/torch_nn_functional_embedding");
    let scenario = Scenario::create();
    let made = scenario.run(&["init".as_ref(), captures.as_os_str()]).expect_exit(0);
    made.expect_stdout(&["plan.toml", "kernels/torch_nn_functional_embedding.c"]);
    scenario.run(&["check", "plan.toml"]).expect_exit(0);

    // The skeleton computes nothing yet, so it must not pass.
    let (outcome, summary) = scenario.run_plan(1, &["--set", "run.stages=[\"build\", \"verify\"]"]);
    let job = &summary.jobs()[0];
    let candidate = &job["candidates"][0];
    let status = candidate["status"].as_str().unwrap_or_default();
    outcome.expect(
        ["UNSUPPORTED", "UNWRITTEN_OUTPUT"].contains(&status),
        format_args!("the skeleton was built and called: {status}"),
    );
    outcome.expect(candidate["artifact_digest"].is_string(), "the skeleton was built");
    let head = candidate["build"]["log_head"].as_str().unwrap_or_default();
    outcome.expect(!head.contains("warning"), format_args!("the build has no warnings: {head}"));

    // Neither file is overwritten. If the plan exists, no new skeleton is written.
    let skeleton = scenario.path().join("kernels/torch_nn_functional_embedding.c");
    let again = || scenario.run(&["init".as_ref(), captures.as_os_str()]).expect_exit(2);
    std::fs::remove_file(&skeleton).expect("removed");
    again().expect_stderr(&["writing the new file plan.toml"]);
    assert!(!skeleton.exists());
    scenario.write("kernels/torch_nn_functional_embedding.c", "// mine");
    std::fs::remove_file(scenario.path().join("plan.toml")).expect("removed");
    again().expect_stderr(&["torch_nn_functional_embedding.c"]);
    assert_eq!(std::fs::read_to_string(&skeleton).expect("readable"), "// mine");
}

#[test]
fn check_prints_the_argument_order() {
    let scenario = Scenario::with_plan(&Plan::softmax(&["fast"]).text());
    let outcome = scenario.run(&["check", "plan.toml", "--signature"]).expect_exit(0);
    outcome.expect_stdout(&["input", "dim", "_stacklevel", "dtype", "int run(void *self"]);
    let order: Vec<Option<usize>> =
        ["input", "dim", "_stacklevel", "dtype"].iter().map(|name| outcome.stdout.find(name)).collect();
    outcome.expect(order.is_sorted(), format_args!("arguments are in the order of the call: {order:?}"));

    let outcome = scenario.run(&["check", "plan.toml", "--signature", "--json"]).expect_exit(0);
    let document = outcome.json();
    outcome.expect_equal(
        document[0]["parameters"].clone(),
        Value::from(vec!["input", "dim", "_stacklevel", "dtype"]),
        "parameters",
    );
    outcome.expect(document[0]["digest"].as_str().is_some_and(|digest| 32 <= digest.len()), "a digest");
}

#[test]
fn check_counts_candidates_in_the_singular_and_the_plural() {
    for (candidates, count) in [(&["fast"][..], "; 2 candidates"), (&[][..], "; 1 candidate")] {
        let scenario = Scenario::with_plan(&Plan::softmax(candidates).text());
        let outcome = scenario.run(&["check", "plan.toml"]).expect_exit(0);
        let first = outcome.stdout.lines().next().unwrap_or_default();
        let right = first.starts_with("job softmax: 2 entries in ") && first.ends_with(count);
        outcome.expect(right, format_args!("the counts in {first:?}"));
    }
}

#[test]
fn check_reports_what_a_run_needs_and_runs_nothing() {
    let scenario = Scenario::with_plan(&Plan::softmax(&["fast"]).text());
    let outcome = scenario.run(&["check", "plan.toml"]).expect_exit(0);
    outcome.expect_stdout(&["job softmax", "2 entries", "build", "verify", "profile", "smallest ceiling"]);
    outcome.expect(!scenario.path().join("runs").exists(), "no run folder was made");

    // The printed plan is a valid plan with the same meaning.
    let (_, resolved) = outcome.stdout.split_once("# The plan with all settings:\n").unwrap_or_default();
    scenario.write("resolved.toml", resolved);
    let outcome = scenario.run(&["check", "plan.toml", "--json"]).expect_exit(0);
    let document = outcome.json();
    let again = scenario.run(&["check", "resolved.toml", "--json"]).expect_exit(0);
    again.expect_equal(&again.json()["jobs"], &document["jobs"], "jobs of the resolved plan");

    let job = &document["jobs"][0];
    outcome.expect_equal(job["entries"].as_u64(), Some(2), "entries");
    outcome.expect_equal(job["candidates"].clone(), Value::from(vec!["fast", "naive"]), "candidates");
    let stages: Vec<&str> = list(&job["memory"]).iter().filter_map(|row| row["stage"].as_str()).collect();
    outcome.expect_equal(stages, vec!["build", "verify", "profile"], "stages");
    let bytes = |row: &Value, name: &str| row[name].as_u64().unwrap_or_default();
    for row in list(&job["memory"]) {
        let (predicted, reserved) = (bytes(row, "predicted_bytes"), bytes(row, "reserved_bytes"));
        outcome.expect(
            0 < predicted && predicted <= reserved,
            format_args!("the prediction is positive and within the reservation: {row}"),
        );
    }

    // The plan must run under the smallest ceiling that `check` names.
    let smallest = bytes(&document, "smallest_ceiling_bytes");
    let ceiling = format!("memory.host_ceiling={smallest}B");
    scenario.run_plan(0, &["--set", &ceiling, "--set", "run.stages=[\"build\", \"verify\"]"]);
}

#[test]
fn inspect_groups_a_folder_by_signature_class() {
    let scenario = Scenario::create();
    let folder = data("captures/torch_nn_functional_embedding");
    let outcome = scenario.run(&["inspect".as_ref(), folder.as_os_str()]).expect_exit(0);
    outcome.expect_stdout(&["6 entries", "entry_000000", "class"]);
    let outcome = scenario.run(&["inspect".as_ref(), folder.as_os_str(), "--json".as_ref()]).expect_exit(0);
    let document = outcome.json();
    let entries: u64 = list(&document["classes"]).iter().filter_map(|class| class["entries"].as_u64()).sum();
    outcome.expect_equal(entries, 6, "entries of all classes");
    outcome.expect(list(&document["unreadable"]).is_empty(), "all can be read");
}

#[test]
fn failing_call_is_reproduced_alone() {
    let candidates = ["wrong_by_nine_percent", "segfaults", "writes_into_an_input", "stale_after_first_call"];
    let files: Vec<String> = candidates.iter().map(|name| format!("bad/{name}")).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let scenario = Scenario::with_plan(&Plan::softmax(&files).text());
    let (outcome, summary) = scenario
        .run_plan(1, &["--set", "run.stages=[\"build\", \"verify\"]", "--set", "verify.stop_after=1"]);
    for name in candidates {
        let candidate = summary.candidate(SOFTMAX, name);
        let status = candidate["status"].as_str().unwrap_or_default();
        outcome.expect(!["", "PASSED"].contains(&status), format_args!("{name} fails: {status}"));
        let entry = candidate["failures"][0]["entry"]
            .as_str()
            .unwrap_or_else(|| outcome.fail(format_args!("{name} has no failing entry")));
        let again = scenario
            .run(&["repro", "runs/plan", &format!("{SOFTMAX}/{name}"), "--entry", entry])
            .expect_exit(1);
        again.expect_stdout(&[name, status, entry]);
    }
    let unknown = scenario.run(&["repro", "runs/plan", "softmax/nobody", "--entry", "entry_000000"]);
    unknown.expect_exit(2).expect_stderr(&["softmax/nobody"]);
}

#[test]
fn reproduction_says_that_captures_have_changed_since_the_run() {
    const CHANGED: &str = "have changed since the run";
    let scenario = Scenario::create();
    let captures = scenario.copy_captures(&data("demo/torch_nn_functional_softmax"), "captures");
    let plan = Plan { captures: captures.clone(), ..Plan::softmax(&["fast"]) };
    scenario.write("plan.toml", plan.text());
    scenario.run_plan(0, &["--set", "run.stages=[\"build\", \"verify\"]"]);
    let repeat = || {
        let arguments = ["repro", "runs/plan", &format!("{SOFTMAX}/fast"), "--entry", "entry_000000"];
        scenario.run(&arguments).expect_exit(0)
    };
    let outcome = repeat();
    outcome.expect(!outcome.stderr.contains(CHANGED), "the captures are those of the run");
    std::fs::remove_file(captures.join("entry_000001.pt")).expect("removed");
    repeat().expect_stderr(&[CHANGED]);
}

/// The name of a capture is untrusted text.
#[test]
fn check_prints_names_without_control_characters() {
    let scenario = Scenario::create();
    let recorded = data("demo/torch_nn_functional_softmax");
    let captures = scenario.path().join("captures");
    std::fs::create_dir(&captures).expect("the folder is created");
    let hostile = captures.join("a\u{1b}[31mb\nforged: PASSED.pt");
    std::fs::copy(recorded.join("entry_000000.pt"), hostile).expect("copied");
    scenario.write("plan.toml", Plan { captures, ..Plan::softmax(&["fast"]) }.text());
    let outcome = scenario.run(&["check", "plan.toml"]).expect_exit(0);
    outcome.expect_stdout(&["a\u{fffd}[31mb forged: PASSED"]);
    outcome.expect(!outcome.stdout.contains('\u{1b}'), "no escape sequences");
    outcome.expect(!outcome.stdout.contains("\nforged"), "no forged lines");
}
