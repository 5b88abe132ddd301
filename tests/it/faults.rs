//! Tests machine faults during a run: a full disk, a removed folder, lost and damaged files, low resource limits. No
//! candidate is blamed, no finished work is lost, and the message says what happened.

mod baseline;
mod captures;
mod compilers;
mod disk;
mod exhausted;
mod inherited;
mod replaced;
mod shortages;

use std::fs;
use std::path::Path;

use opt_tests::processes;
use opt_tests::summary::list;
use opt_tests::waiting::until;
use opt_tests::{Outcome, Scenario, Summary, binary};
use serde_json::Value;

use crate::control::client::LiveRun;
use crate::results::plans::{Plan, SOFTMAX};

/// A scenario with a plan whose last candidate takes a second, so that a test can inject faults while this candidate
/// runs.
pub fn scenario() -> Scenario {
    let plan = Plan {
        extra: "verify = { call_timeout = \"1s\" }\n".to_owned(),
        ..Plan::softmax(&["fast", "bad/segfaults", "bad/loops_forever"])
    };
    Scenario::with_plan(&plan.text())
}

/// Starts a run of [`scenario`] and waits until the first candidate, the baseline, has passed.
fn started(scenario: &Scenario) -> LiveRun<'_> {
    let run = LiveRun::start(scenario, &["--quiet"]);
    until("a candidate has passed", || {
        let status = run.ctl(&["status", "--json"]).expect_exit(0).json();
        status["jobs"][0]["passed"].as_u64().is_some_and(|passed| 0 < passed)
    });
    run
}

/// Checks that all candidates have the verdicts of a run without faults.
pub fn verdicts_are_right(outcome: &Outcome, summary: &Summary) {
    for (candidate, status) in
        [("naive", "PASSED"), ("fast", "PASSED"), ("segfaults", "CRASHED"), ("loops_forever", "TIMEOUT")]
    {
        outcome.expect_equal(summary.verdict(SOFTMAX, candidate).0, Some(status), candidate);
    }
}

/// Kills the supervisor in the middle of a run, changes the run's folder, and resumes the run. If the resumed run ends
/// with exit code 0, checks that its verdicts are right.
fn resumed_after(change: impl FnOnce(&Path)) -> Outcome {
    let scenario = scenario();
    let run = started(&scenario);
    let folder = run.folder().to_owned();
    run.kill();
    change(&folder);
    let outcome = scenario.run(&["run", "plan.toml", "--resume", "--quiet"]);
    if outcome.code == Some(0) {
        verdicts_are_right(&outcome, &Summary::read(&folder, &outcome));
    }
    outcome.expect(processes::left(outcome.pid, &folder).is_empty(), "no process is left");
    outcome
}

#[test]
fn run_continues_without_the_last_rows_of_its_database() {
    let outcome = resumed_after(|folder| {
        for file in ["run.sqlite-wal", "run.sqlite-shm"] {
            let _ = fs::remove_file(folder.join(file));
        }
    });
    outcome.expect_exit(0);
}

#[test]
fn run_rebuilds_libraries_that_were_removed() {
    let outcome = resumed_after(|folder| {
        for library in fs::read_dir(folder.join("artifacts")).expect("readable").flatten() {
            fs::remove_file(library.path()).expect("removed");
        }
    });
    outcome.expect_exit(0);
}

/// Returns the candidate of each build of a run, in the order of the builds.
fn built(summary: &Summary) -> Vec<&str> {
    list(&summary.document["memory"]["phases"])
        .iter()
        .filter(|phase| phase["stage"] == "build")
        .map(|phase| phase["candidate"].as_str().unwrap_or_default())
        .collect()
}

#[test]
fn resumed_run_repeats_only_builds_whose_library_is_altered() {
    for is_altered in [false, true] {
        let scenario = scenario();
        let run = started(&scenario);
        let folder = run.folder().to_owned();
        run.kill();
        if is_altered {
            let mut libraries = fs::read_dir(folder.join("artifacts")).expect("readable").flatten();
            let library = libraries.next().expect("a library").path();
            // Replace the file instead of writing to it. It is not writable, because candidates with equal libraries
            // share it.
            let mut bytes = fs::read(&library).expect("readable");
            bytes.push(0);
            fs::remove_file(&library).expect("removed");
            fs::write(&library, bytes).expect("written");
        }
        let outcome = scenario.run(&["run", "plan.toml", "--resume", "--quiet"]).expect_exit(0);
        let summary = Summary::read(&folder, &outcome);
        verdicts_are_right(&outcome, &summary);
        let mut built = built(&summary);
        outcome.expect_equal(built.len(), 4 + usize::from(is_altered), format_args!("{built:?}"));
        built.sort_unstable();
        built.dedup();
        outcome.expect_equal(built.len(), 4, "each candidate has been built");
        for candidate in ["naive", "fast", "segfaults", "loops_forever"] {
            let build = &summary.candidate(SOFTMAX, candidate)["build"];
            outcome.expect(build["compiler"].is_string(), format_args!("the build of {candidate}: {build}"));
        }
    }
}

#[test]
fn damaged_database_is_not_continued() {
    let outcome = resumed_after(|folder| {
        fs::write(folder.join("run.sqlite"), [0xa5; 8192]).expect("written");
        let _ = fs::remove_file(folder.join("run.sqlite-wal"));
    });
    outcome.expect_exit(3).expect_stderr(&["run.sqlite: damaged", "--dir"]);
}

#[test]
fn run_reports_that_its_folder_was_removed() {
    let scenario = scenario();
    let run = started(&scenario);
    let folder = run.folder().to_owned();
    until("the folder is removed", || fs::remove_dir_all(&folder).is_ok() || !folder.exists());
    let outcome = run.finish_any();
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    outcome.expect_stderr(&["runs/plan was removed during the run"]);
    assert!(processes::left(outcome.pid, &folder).is_empty(), "no process is left");
}

#[test]
fn run_reports_where_its_folder_was_moved_and_creates_nothing_at_the_old_path() {
    let scenario = scenario();
    let run = started(&scenario);
    let folder = run.folder().to_owned();
    let elsewhere = scenario.path().join("elsewhere");
    fs::rename(&folder, &elsewhere).expect("moved");
    let outcome = run.finish_any();
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    outcome.expect_stderr(&["runs/plan was moved to", "elsewhere during the run"]);
    assert!(!folder.exists(), "no other folder appears");
    assert!(processes::left(outcome.pid, &elsewhere).is_empty(), "no process is left");
}

#[test]
fn results_that_cannot_be_printed_are_an_error() {
    let scenario = scenario();
    for arguments in ["run plan.toml --jsonl", "--help"] {
        let script = format!("exec \"$0\" {arguments} > /dev/full");
        let arguments = ["-c".as_ref(), script.as_ref(), binary().as_os_str()].map(std::ffi::OsStr::to_owned);
        let child = scenario.command_of(Path::new("sh"), &arguments).spawn().expect("the shell starts");
        let outcome = scenario.finish(child, &arguments).expect_exit(3);
        outcome.expect_stderr(&["error: ", "writing to standard output: No space left on device"]);
    }
    let (_, _) = scenario.run_plan(0, &[]);
    for format in ["json", "csv", "html"] {
        let report = ["report", "runs/plan", "--format", format, "-o", "/dev/full"];
        scenario.run(&report).expect_exit(3).expect_stderr(&["writing /dev/full: No space left on device"]);
    }
}

#[test]
fn ctl_reports_that_the_supervisor_is_stopped() {
    use rustix::process::{Pid, Signal, kill_process};
    let scenario = scenario();
    let run = started(&scenario);
    let pid = Pid::from_raw(i32::try_from(run.pid()).expect("a pid")).expect("a pid");
    kill_process(pid, Signal::STOP).expect("stopped");
    let outcome = run.ctl(&["status"]);
    kill_process(pid, Signal::CONT).expect("continued");
    outcome.expect_exit(3).expect_stderr(&["its supervisor is stopped", "kill -CONT"]);
    let (outcome, summary) = run.finish(0);
    verdicts_are_right(&outcome, &summary);
}

/// Runs the plan from a shell that has called `ulimit` with these arguments.
fn limited(limit: &str) -> (Scenario, Outcome) {
    let scenario = scenario();
    let script = format!("ulimit {limit} && exec \"$0\" run plan.toml --quiet");
    let arguments = ["-c".as_ref(), script.as_ref(), binary().as_os_str()].map(std::ffi::OsStr::to_owned);
    let child = scenario.command_of(Path::new("sh"), &arguments).spawn().expect("the shell starts");
    let outcome = scenario.finish(child, &arguments);
    (scenario, outcome)
}

#[test]
fn run_names_a_resource_limit_that_is_too_low() {
    for (limit, option) in [
        ("-n 40", "ulimit -Hn 64"),
        ("-f 200", "ulimit -Hf 2097152"),
        ("-s 768", "ulimit -Hs 1024"),
        ("-t 100", "ulimit -Ht 3600"),
        ("-d 50000", "ulimit -Hd 65536"),
    ] {
        let (scenario, outcome) = limited(limit);
        let outcome = outcome.expect_exit(3);
        outcome.expect_stderr(&["the hard limit on", option]);
        outcome.expect(!scenario.run_folder().exists(), "nothing was started");
    }
    // 256 KiB of stack are too few for any command. If only the soft limit is too low, it is raised.
    limited("-s 256").1.expect_exit(3).expect_stderr(&["the hard limit on the stack", "ulimit -Hs"]);
    limited("-Ss 64").1.expect_exit(0);
    let (scenario, outcome) = limited("-n 64");
    let outcome = outcome.expect_exit(0);
    verdicts_are_right(&outcome, &Summary::read(&scenario.run_folder(), &outcome));
}

/// If memory runs out, Linux first kills the process with the highest score: runners and compilers (1000), then
/// workers.
#[test]
fn workers_have_a_name_and_a_raised_oom_score_unlike_their_supervisor() {
    let score = |pid: &Value| -> i32 {
        let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("the process lives");
        text.trim().parse().expect("a number")
    };
    let scenario = Scenario::with_plan(&Plan::softmax(&[]).text());
    let run = LiveRun::start(&scenario, &["--quiet", "--keep-open"]);
    let workers = || run.ctl(&["workers", "--json"]).expect_exit(0).json()["workers"].clone();
    until("the baseline has passed", || {
        run.ctl(&["status", "--json"]).expect_exit(0).json()["jobs"][0]["passed"] == 1
    });
    let (supervisor, own) = (score(&run.pid().into()), score(&std::process::id().into()));
    assert_eq!(supervisor, own, "the supervisor's score is the inherited one");
    let workers = workers();
    assert!(!list(&workers).is_empty(), "workers are kept for the next candidate");
    for worker in list(&workers) {
        assert_eq!(score(&worker["pid"]), 500.max(own), "{worker}");
        let name = fs::read_to_string(format!("/proc/{}/comm", worker["pid"])).expect("the process lives");
        let role = worker["role"].as_str().unwrap_or_default();
        assert_eq!(name, format!("opt-{role}\n"), "its name in process lists");
    }
    run.ctl(&["shutdown"]).expect_exit(0);
    run.finish(0);
}
