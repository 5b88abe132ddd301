//! Runs the tutorial and two how-to pages as printed: files and commands are read from the pages.
//!
//! A comment before a code block marks its kind:
//!
//! - `<!-- file: NAME -->`: a file to write;
//! - `<!-- run -->` or `<!-- run: EXIT_CODE -->`: commands to run;
//! - `<!-- record -->`: commands that need torch; without torch, the test copies captures made by the same script;
//! - `<!-- output -->`: the output of the previous command.

use std::path::Path;

use opt_tests::python::python_with;
use opt_tests::{Outcome, Scenario, Summary, binary, data, repository, summary::list};

use crate::report::browser::skipped;

/// A line in a printed output that replaces omitted lines.
const LEFT_OUT: &str = "[…]";

enum Step {
    File { name: String, text: String },
    Run { commands: String, code: i32 },
    Record { commands: String },
    Output { text: String },
}

/// All marked code blocks of a page, in order.
fn steps(page: &str) -> Vec<Step> {
    let text = std::fs::read_to_string(repository().join(page)).expect("a page of the repository");
    let mut lines = text.lines();
    let mut steps = Vec::new();
    while let Some(line) = lines.next() {
        let Some(mark) = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        let fence = lines.next().unwrap_or_default();
        assert!(fence.starts_with("```"), "{page}: no fence after `{line}`");
        let block: String =
            lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect();
        let (kind, value) = mark.split_once(": ").unwrap_or((mark, ""));
        steps.push(match kind {
            "file" => Step::File { name: value.to_owned(), text: block },
            "run" if value.is_empty() => Step::Run { commands: block, code: 0 },
            "run" => Step::Run { commands: block, code: value.parse().expect("an exit code") },
            "record" => Step::Record { commands: block },
            "output" => Step::Output { text: block },
            _ => panic!("{page}: unknown mark `{line}`"),
        });
    }
    steps
}

/// Runs commands of a page in the scenario's folder, with the program on the `PATH`.
fn shell(scenario: &Scenario, commands: &str) -> Outcome {
    let program = binary();
    let mut folders = vec![program.parent().expect("a program lies in a folder").to_owned()];
    // If there is an interpreter with torch, it comes first on the `PATH` as `python3`.
    let python = python_with("torch", "torch").and_then(|python| python.parent().map(Path::to_owned));
    folders.extend(python.filter(|folder| folder.is_absolute()));
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let path = std::env::join_paths(folders).expect("folders without a colon");
    let arguments = ["-e", "-c", commands];
    let mut command = scenario.command_of(Path::new("sh"), &arguments);
    let child = command
        .env("PATH", path)
        .env("PYTHONPATH", repository().join("python"))
        .spawn()
        .expect("`sh` starts");
    scenario.finish(child, &arguments)
}

fn has_torch(scenario: &Scenario) -> bool {
    shell(scenario, "python3 -c 'import torch; torch.compiler.set_stance'").code == Some(0)
}

#[test]
fn tutorial_runs_as_printed() {
    let scenario = Scenario::create();
    let can_record = has_torch(&scenario);
    let mut last = None;
    for step in steps("docs/tutorial.md") {
        match step {
            Step::File { name, text } => {
                scenario.write(&name, text);
            }
            Step::Record { commands } if can_record => {
                shell(&scenario, &commands).expect_exit(0);
            }
            Step::Record { .. } => {
                skipped("the tutorial's recorder was not tried: python3 has no torch here");
                scenario.copy_captures(&data("tutorial/layer_norm"), "captures/layer_norm");
            }
            Step::Run { commands, code } => last = Some(shell(&scenario, &commands).expect_exit(code)),
            // File sizes depend on the version of torch.
            Step::Output { .. } if can_record => {}
            Step::Output { text } => {
                let outcome = last.as_ref().expect("a command before its output");
                let printed: Vec<&str> = outcome.stdout.lines().map(str::trim).collect();
                for line in text.lines().map(str::trim).filter(|line| *line != LEFT_OUT) {
                    outcome.expect(printed.contains(&line), format_args!("it prints `{line}`"));
                }
            }
        }
    }
    let outcome = last.expect("the page has commands");
    outcome.expect(scenario.path().join("report.html").is_file(), "the report was written");
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    let [job] = summary.jobs() else { outcome.fail("the plan has one job") };
    let statuses: Vec<(&str, &str)> = list(&job["candidates"])
        .iter()
        .map(|it| (it["name"].as_str().unwrap_or_default(), it["status"].as_str().unwrap_or_default()))
        .collect();
    for expected in [("layer_norm", "PASSED"), ("fast", "PASSED"), ("unbiased", "INCORRECT_NUMERICAL")] {
        outcome.expect(statuses.contains(&expected), format_args!("{expected:?} is among {statuses:?}"));
    }
}

#[test]
fn kernel_of_the_how_to_page_passes() {
    let scenario = Scenario::with_plan(
        "[run]\nstages = [\"build\", \"verify\"]\n[[job]]\ncaptures = \"captures\"\nentries = [\"entry_000000.pt\"]\n\
         candidates = [\"relu.c\"]\n",
    );
    scenario.copy_captures(&data("captures/torch_nn_functional_relu"), "captures");
    for step in steps("docs/how-to/write-a-kernel.md") {
        if let Step::File { name, text } = step {
            scenario.write(&name, text);
        }
    }
    let (outcome, summary) = scenario.run_plan(0, &[]);
    let [job] = summary.jobs() else { outcome.fail("the plan has one job") };
    let [candidate] = list(&job["candidates"]) else { outcome.fail("the page has one kernel") };
    outcome.expect_equal(&candidate["verify"]["entries_passed"], &1.into(), "entries that pass");
}

#[test]
fn capture_made_by_hand_is_read() {
    let scenario = Scenario::create();
    if !has_torch(&scenario) {
        skipped("the capture made by hand was not tried: python3 has no torch here");
        return;
    }
    for step in steps("docs/how-to/record-captures.md") {
        if let Step::File { name, text } = step {
            scenario.write(&name, text);
            shell(&scenario, &format!("python3 {name}")).expect_exit(0);
        }
    }
    let inspected = scenario.run(&["inspect", "captures/relu"]).expect_exit(0);
    inspected.expect_stdout(&["f32[8,16] inplace=False -> f32[8,16]"]);
    scenario.run(&["init", "captures/relu"]).expect_exit(0);
    scenario.run(&["check", "plan.toml"]).expect_exit(0).expect_stdout(&["arguments: input, inplace"]);
}
