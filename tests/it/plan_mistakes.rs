//! Tests plans with mistakes: each mistake is reported once with its position, the exit code is 2, and nothing is
//! started. Mistakes on the command line are also reported before anything is started.

use opt_tests::{Outcome, Scenario, data, repository};

/// Returns the first three lines of a plan, with a valid job. The tests add their mistakes from line 4 on.
fn job() -> String {
    format!(
        "[[job]]\ncaptures = '{}'\nbaseline = '{}'\n",
        data("demo/torch_nn_functional_softmax").display(),
        repository().join("configs/demo/softmax/naive.c").display()
    )
}

/// The text that follows the job, the line and the column of its mistake, and parts of the message.
const MISTAKES: &[(&str, &str, &[&str])] = &[
    ("[verify]\nrepeat = 3\n", "5:1", &["unknown key", "repeat = 3", "did you mean `repeats`?"]),
    ("[verifi]\nrepeats = 3\n", "4:2", &["verifi", "did you mean `verify`?"]),
    ("[profile]\nstop_after = 3\n", "5:1", &["stop_after", "belongs in `[verify]`"]),
    ("[verify]\nrepeats = \"two\"\n", "5:11", &["verify.repeats", "\"two\"", "whole number"]),
    ("[verify]\nrepeats = 1\n", "5:11", &["verify.repeats", "from 2 to 1000"]),
    ("[verify]\ntolerance = \"standart\"\n", "5:13", &["verify.tolerance", "did you mean `standard`?"]),
    ("[verify]\ncall_timeout = \"60\"\n", "5:16", &["verify.call_timeout", "is not a duration"]),
    ("[build]\nmemory = \"4 gigs\"\n", "5:10", &["build.memory", "is not a size"]),
    ("[build]\nflags = \"-O3\"\n", "5:9", &["build.flags", "write [\"-O3\"]"]),
    ("[memory]\nhost_ceiling = \"120%\"\n", "5:16", &["memory.host_ceiling"]),
    (
        "[run]\nstages = [\"build\", \"profile\"]\n",
        "5:10",
        &["run.stages", "`profile` needs the stage `verify`"],
    ),
    ("[run]\ndevice = \"cuda\"\n", "5:10", &["run.device", "did you mean `cuda:0`?"]),
    ("candidates = [\"k/*.c\"]\n", "4:15", &["job.candidates", "cannot find the folder"]),
    ("[[job.candidate]]\nname = \"x\"\n", "4:1", &["job.candidate", "the key `sources` is missing"]),
    ("[[job]]\ncaptures = \"nowhere\"\n", "5:12", &["job.captures", "cannot find the folder"]),
    ("[job.search]\nwidth = 4\n", "4:6", &["job.search", "reserved for a later version"]),
    ("name = \"abc\n", "4:12", &["not TOML"]),
];

/// Checks that a plan is refused and that nothing was done.
fn expect_refused(scenario: &Scenario, arguments: &[&str]) -> Outcome {
    let outcome = scenario.run(arguments).expect_exit(2);
    outcome.expect(outcome.stdout.is_empty(), "standard output is empty");
    outcome.expect(!scenario.path().join("runs").exists(), "no run folder was made");
    outcome
}

fn error_count(outcome: &Outcome) -> usize {
    outcome.stderr.lines().filter(|line| line.starts_with("error")).count()
}

#[test]
fn every_mistake_is_reported_once_with_its_position() {
    for (mistake, position, expected) in MISTAKES {
        let scenario = Scenario::with_plan(&(job() + mistake));
        for command in ["run", "check"] {
            let outcome = expect_refused(&scenario, &[command, "plan.toml"]);
            outcome.expect_stderr(&[&format!("plan.toml:{position}")]);
            outcome.expect_stderr(expected);
            outcome.expect_equal(error_count(&outcome), 1, "number of errors");
        }
    }
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let text = job()
        + "[verify]\nrepeat = 3\nseed = -1\n[build]\nmemory = \"much\"\n[[job]]\ncaptures = \"nowhere\"\nbaseline = 3\n";
    let scenario = Scenario::with_plan(&text);
    let outcome = expect_refused(&scenario, &["run", "plan.toml", "--set", "verify.tolerance=loose"]);
    outcome.expect_stderr(&[
        "plan.toml:5:1",
        "did you mean `repeats`?",
        "plan.toml:6:8",
        "plan.toml:8:10",
        "plan.toml:10:12",
        "plan.toml:11:12",
        "--set verify.tolerance=loose",
    ]);
    outcome.expect_equal(error_count(&outcome), 6, "number of errors");
}

#[test]
fn mistakes_on_the_command_line_are_reported() {
    let scenario = Scenario::with_plan(&job());
    for (arguments, expected) in [
        (&["run", "no-such-plan.toml"][..], "no-such-plan.toml"),
        (&["run", "plan.toml", "--only", "softmax/none"], "softmax/none"),
        (&["run", "plan.toml", "--min-speedup", "0"], "--min-speedup"),
        (&["run", "plan.toml", "--set", "verify.repeat=3"], "did you mean `repeats`?"),
        (&["run", "plan.toml", "--set", "verify.repeats"], "KEY=VALUE"),
        (&["run", "plan.toml", "--resume"], "resume"),
        (&["run", "plan.toml", "--frobnicate"], "--frobnicate"),
        (&["inspect", "no-such-folder/x.pt"], "no-such-folder"),
        (&["init", "no-such-folder"], "no-such-folder"),
        (&["report", "no-such-run"], "no-such-run"),
        (&["repro", "no-such-run", "x", "--entry", "y"], "no-such-run"),
    ] {
        let outcome = scenario.run(arguments);
        outcome.expect_stderr(&[expected]);
        outcome.expect(matches!(outcome.code, Some(1..=3)), "the exit code means an error");
        outcome.expect(!scenario.path().join("runs").exists(), "no run folder was made");
    }
}

/// Without `--resume`, a run refuses to write into a folder that already contains files.
#[test]
fn run_refuses_non_empty_folder() {
    let scenario = Scenario::with_plan(&job());
    scenario.write("mine/notes.txt", "precious");
    let outcome = scenario.run(&["run", "plan.toml", "--dir", "mine"]).expect_exit(2);
    outcome.expect_stderr(&["mine", "exists"]);
    let notes = std::fs::read_to_string(scenario.path().join("mine/notes.txt")).expect("still there");
    assert_eq!(notes, "precious");
    assert_eq!(std::fs::read_dir(scenario.path().join("mine")).expect("a folder").count(), 1);
}
