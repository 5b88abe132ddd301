//! Captures and libraries that are replaced or removed during a run.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opt_tests::waiting::until;
use opt_tests::{Outcome, Scenario, Summary, data, repository};

use super::captures::{all_pass, no_candidate_is_blamed};
use crate::control::client::LiveRun;
use crate::results::plans::{Plan, SOFTMAX};

/// The pause between two looks at a folder whose files are removed.
const PAUSE: Duration = Duration::from_millis(1);

/// A scenario with its own copy of the captures, and the path of the first of them.
fn with_copied_captures(candidates: &[&str]) -> (Scenario, PathBuf) {
    let scenario = Scenario::create();
    let captures = scenario.copy_captures(&data("demo/torch_nn_functional_softmax"), "set");
    let first = captures.join("entry_000000.pt");
    let plan = Plan { captures, ..Plan::softmax(candidates) };
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
    let (scenario, first) = with_copied_captures(&[]);
    let run = LiveRun::start(&scenario, &["--quiet", "--keep-open"]);
    let ended = || {
        let status = run.ctl(&["status", "--json"]).expect_exit(0).json();
        ["passed", "not_passed"].iter().filter_map(|field| status["jobs"][0][field].as_u64()).sum::<u64>()
    };
    until("the baseline has ended", || ended() == 1);
    replace(&first, &fs::read(&first).expect("readable"));
    let fast = repository().join("configs/demo/softmax/fast.c");
    run.ctl(&["submit", fast.to_str().expect("UTF-8")]).expect_exit(0);
    until("the candidate has ended", || ended() == 2);
    run.ctl(&["shutdown"]).expect_exit(0);
    let outcome = run.finish_any();
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    no_candidate_is_blamed(&outcome, &summary);
    let fast = summary.verdict(SOFTMAX, "fast");
    outcome.expect_equal(fast, (Some("CAPTURE_ERROR"), Some("capture")), "its verdict");
    let detail = summary.candidate(SOFTMAX, "fast")["detail"].as_str().unwrap_or_default();
    outcome.expect(detail.contains("written or replaced since the plan was checked"), detail);
    // The bytes are the same, so the run continues.
    let (outcome, summary) = scenario.run_plan(0, &["--resume", "--quiet"]);
    all_pass(&outcome, &summary);
}

#[test]
fn resumed_run_is_refused_if_a_capture_was_replaced_by_another() {
    let (scenario, first) = with_copied_captures(&["fast"]);
    let run = LiveRun::start(&scenario, &["--quiet"]);
    run.kill();
    replace(&first, &fs::read(first.with_file_name("entry_000001.pt")).expect("readable"));
    let outcome = scenario.run(&["run", "plan.toml", "--resume", "--quiet"]).expect_exit(2);
    outcome.expect_stderr(&["the captures of job `softmax` have changed"]);
}

/// Removes every file of a folder until the run has ended.
fn finish_while_removing(run: LiveRun<'_>, folder: &Path) -> Outcome {
    /// Sets the flag when it is dropped, also during a panic.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for file in fs::read_dir(folder).into_iter().flatten().flatten() {
                    let _ = fs::remove_file(file.path());
                }
                std::thread::sleep(PAUSE);
            }
        });
        run.finish_any()
    })
}

#[test]
fn libraries_that_are_removed_during_a_run_blame_no_candidate() {
    let (scenario, _) = with_copied_captures(&["fast"]);
    let run = LiveRun::start(&scenario, &["--quiet"]);
    let libraries = run.folder().join("artifacts");
    // A library that is opened before it is removed is used.
    let outcome = finish_while_removing(run, &libraries);
    no_candidate_is_blamed(&outcome, &Summary::read(&scenario.run_folder(), &outcome));
    let (outcome, summary) = scenario.run_plan(0, &["--resume", "--quiet"]);
    all_pass(&outcome, &summary);
}
