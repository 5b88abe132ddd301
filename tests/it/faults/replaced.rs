//! Captures and libraries that are replaced or removed during a run.

use std::fs;
use std::path::{Path, PathBuf};

use opt_tests::{Outcome, Scenario, Summary, data};

use super::captures::{all_pass, no_candidate_is_blamed};
use crate::control::client::LiveRun;
use crate::results::plans::Plan;

/// A scenario with its own copy of the captures, and the path of the first of them.
fn with_copied_captures() -> (Scenario, PathBuf) {
    let scenario = Scenario::create();
    let captures = scenario.copy_captures(&data("demo/torch_nn_functional_softmax"), "set");
    let first = captures.join("entry_000000.pt");
    let plan = Plan { captures, ..Plan::softmax(&["fast"]) };
    scenario.write("plan.toml", format!("[run]\nstages = [\"build\", \"verify\"]\n{}", plan.text()));
    (scenario, first)
}

/// Puts another file in the place of `path`, as programs do that save atomically.
fn replace(path: &Path, contents: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, contents).expect("written");
    fs::rename(&new, path).expect("renamed");
}

#[test]
fn capture_that_is_replaced_after_the_survey_blames_no_candidate() {
    let (scenario, first) = with_copied_captures();
    let run = LiveRun::start(&scenario, &["--quiet"]);
    run.ctl(&["pause"]).expect_exit(0);
    let before = fs::read(&first).expect("readable");
    replace(&first, &before);
    run.ctl(&["resume"]).expect_exit(0);
    let outcome = run.finish_any();
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    no_candidate_is_blamed(&outcome, &summary);
    // The same bytes are back, so the run continues.
    let (outcome, summary) = scenario.run_plan(0, &["--resume", "--quiet"]);
    all_pass(&outcome, &summary);
}

#[test]
fn resumed_run_is_refused_if_a_capture_was_replaced_by_another() {
    let (scenario, first) = with_copied_captures();
    let run = LiveRun::start(&scenario, &["--quiet"]);
    run.kill();
    replace(&first, &fs::read(first.with_file_name("entry_000001.pt")).expect("readable"));
    let outcome = scenario.run(&["run", "plan.toml", "--resume", "--quiet"]).expect_exit(2);
    outcome.expect_stderr(&["the captures of job `softmax` have changed"]);
}

/// Removes every file of a folder until the run has ended.
fn finish_while_removing(run: LiveRun<'_>, folder: &Path) -> Outcome {
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                for file in fs::read_dir(folder).into_iter().flatten().flatten() {
                    let _ = fs::remove_file(file.path());
                }
                std::thread::yield_now();
            }
        });
        let outcome = run.finish_any();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        outcome
    })
}

#[test]
fn libraries_that_are_removed_during_a_run_blame_no_candidate() {
    let (scenario, _) = with_copied_captures();
    let run = LiveRun::start(&scenario, &["--quiet"]);
    let libraries = run.folder().join("artifacts");
    let outcome = finish_while_removing(run, &libraries).expect_exit(3);
    no_candidate_is_blamed(&outcome, &Summary::read(&scenario.run_folder(), &outcome));
    let (outcome, summary) = scenario.run_plan(0, &["--resume", "--quiet"]);
    all_pass(&outcome, &summary);
}
