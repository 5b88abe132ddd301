//! Runs the tutorial of the book as printed: the test reads files and commands from the page. Tests of two how-to pages
//! take only the files from their page.
//!
//! A comment before a code block marks its kind:
//!
//! - `<!-- file: NAME -->`: a file to write;
//! - `<!-- run -->` or `<!-- run: EXIT_CODE -->`: commands to run;
//! - `<!-- run with torch -->` or `<!-- run with torch: EXIT_CODE -->`: commands that are skipped without torch;
//! - `<!-- record -->`: commands that need torch; without torch, the test copies captures that the same script made;
//! - `<!-- output -->`: lines that the previous command prints, if it was run. Sizes may differ, because the sizes of
//!   files depend on the version of torch.

use std::path::Path;

use opt_tests::python::python_with;
use opt_tests::{Outcome, Scenario, Summary, binary, data, repository, summary::list};

use crate::report::browser::skipped;

/// A line of a printed output that stands for omitted lines.
const LEFT_OUT: &str = "[…]";

enum Step {
    File { name: String, text: String },
    Run { commands: String, code: i32, needs_torch: bool },
    Record { commands: String },
    Output { text: String },
}

/// Returns all marked code blocks of a page, in order.
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
            "run" | "run with torch" => Step::Run {
                commands: block,
                code: if value.is_empty() { 0 } else { value.parse().expect("an exit code") },
                needs_torch: kind != "run",
            },
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

/// Returns the words of a line, except those that give a size.
fn without_sizes(line: &str) -> Vec<&str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_unit = |word: &str| matches!(word.trim_end_matches([',', ';']), "B" | "KiB" | "MiB");
    let is_size =
        |index: usize| is_unit(words[index]) || words.get(index + 1).is_some_and(|next| is_unit(next));
    (0..words.len()).filter(|index| !is_size(*index)).map(|index| words[index]).collect()
}

/// The start of the part of the tutorial's plan that needs Triton. This part continues to the end of the plan.
const TRITON: &str = "\n[[job.candidate]]\nname = \"triton\"";

#[test]
fn tutorial_runs_as_printed() {
    let scenario = Scenario::create();
    let can_record = has_torch(&scenario);
    let has_triton = shell(&scenario, "python3 -c 'import torch, triton'").code == Some(0);
    if !can_record {
        skipped(
            "the tutorial's recorder and its kernels for PyTorch were not tried: python3 has no torch here",
        );
    } else if !has_triton {
        skipped("the tutorial's Triton kernel was not tried: python3 has no triton here");
    }
    let mut last = None;
    for step in steps("docs/tutorial.md") {
        match step {
            Step::File { name, mut text } => {
                if name == "plan.toml" && !has_triton {
                    text.truncate(text.find(TRITON).expect("the plan ends with a candidate in Triton"));
                }
                scenario.write(&name, text);
            }
            Step::Record { commands } if can_record => {
                shell(&scenario, &commands).expect_exit(0);
            }
            Step::Record { .. } => {
                scenario.copy_captures(&data("tutorial/layer_norm"), "captures/layer_norm");
            }
            Step::Run { needs_torch: true, .. } if !can_record => last = None,
            Step::Run { commands, code, .. } => last = Some(shell(&scenario, &commands).expect_exit(code)),
            Step::Output { text } => {
                let Some(outcome) = &last else { continue };
                let printed: Vec<_> = outcome.stdout.lines().map(without_sizes).collect();
                for line in text.lines().filter(|line| line.trim() != LEFT_OUT) {
                    // The number of candidates depends on whether Triton is installed.
                    if has_triton || !line.contains("6 candidates") {
                        let is_printed = printed.contains(&without_sizes(line));
                        outcome.expect(is_printed, format_args!("it prints `{line}`"));
                    }
                }
            }
        }
    }
    let outcome = last.expect("the page has commands");
    let expect = |plan: &str, statuses: &[(&str, &str)]| {
        let summary = Summary::read(&scenario.path().join("runs").join(plan), &outcome);
        for (name, status) in statuses {
            let it = summary.candidate("layer_norm", name);
            outcome.expect_equal(
                it["status"].as_str(),
                Some(*status),
                format_args!("{name}: {}", it["detail"]),
            );
        }
        summary
    };
    expect("c", &[("plain", "PASSED"), ("vectors", "PASSED")]);
    if !can_record {
        return;
    }
    outcome.expect(scenario.path().join("report.html").is_file(), "the report was written");
    let passing = ["torch", "c", "extension", "python"].map(|name| (name, "PASSED"));
    let summary = expect("plan", &passing);
    for (name, _) in passing {
        let it = summary.candidate("layer_norm", name);
        outcome.expect(it["rank"].is_number(), format_args!("{name} is ranked"));
    }
    let wrong = &expect("plan", &[("unbiased", "INCORRECT_NUMERICAL")]);
    let feedback = wrong.candidate("layer_norm", "unbiased")["feedback"].as_str().unwrap_or_default();
    outcome.expect(feedback.contains("elements fail"), format_args!("the feedback: {feedback}"));
    if has_triton {
        let summary = expect("plan", &[("triton", "PASSED")]);
        let it = summary.candidate("layer_norm", "triton");
        outcome.expect(it["not_timed_because"].is_string(), "Triton's interpreter is not timed");
    }
}

#[test]
fn kernel_of_the_page_on_writing_kernels_passes() {
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
