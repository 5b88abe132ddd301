//! Tests a machine that runs out of processes or memory during a run, and processes that are stopped for longer than
//! other processes wait for them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use opt_tests::processes::{Process, pids, read_process, signal_if};
use opt_tests::summary::list;
use opt_tests::waiting::{holds_within, until};
use opt_tests::{Scenario, Summary, binary, repository};
use rustix::process::Signal;
use serde_json::json;

use super::captures::no_candidate_is_blamed;
use super::{limited, scenario, started, verdicts_are_right};
use crate::control::client::LiveRun;
use crate::report::browser::skipped;
use crate::results::plans::{Plan, SOFTMAX};

const MIB: u64 = 1 << 20;
/// How long a runner is stopped. This is longer than a call may take, which is one second. The test sleeps for this
/// time, because there is no event to wait for.
const RUNNER_STOP: Duration = Duration::from_secs(3);
/// How long a supervisor is stopped. This is longer than the 30 s for which its workers wait for its answer before they
/// end.
const SUPERVISOR_STOP: Duration = Duration::from_secs(33);

/// A version 1 control group with one controller, below the root group. Dropping the value removes it.
struct Group(PathBuf);

impl Group {
    /// Creates a group. If that is impossible, prints that the test is skipped and returns `None`.
    fn create(controller: &str, test: &str) -> Option<Self> {
        let name = format!("opt-test-{}-{test}", std::process::id());
        let folder = Path::new("/sys/fs/cgroup").join(controller).join(name);
        match fs::create_dir(&folder) {
            Ok(()) => Some(Self(folder)),
            Err(error) => {
                skipped(&format!(
                    "{test}: there is no control group with the controller {controller} ({error})"
                ));
                None
            }
        }
    }

    fn set(&self, file: &str, value: impl ToString) {
        let path = self.0.join(file);
        fs::write(&path, value.to_string())
            .unwrap_or_else(|error| panic!("writing {}: {error}", path.display()));
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).expect("readable").trim().to_owned()
    }

    /// Returns the arguments of a shell that runs a command in this group.
    fn shell(&self, command: &str) -> [OsString; 3] {
        let script = format!("echo $$ > '{}/cgroup.procs' && {command}", self.0.display());
        ["-c".into(), script.into(), binary().into()]
    }

    fn start<'s>(&self, scenario: &'s Scenario) -> LiveRun<'s> {
        let shell = self.shell("exec \"$0\" run plan.toml --quiet");
        LiveRun::start_as(scenario, &["--quiet"], |command| {
            *command = scenario.command_of(Path::new("sh"), &shell);
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group cannot be removed until its last process has been reaped.
        let _ = holds_within(Duration::from_secs(20), || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn run_that_is_out_of_processes_for_a_moment_blames_no_candidate() {
    let Some(group) = Group::create("pids", "a run that is out of processes") else { return };
    let scenario = scenario();
    let run = group.start(&scenario);
    until("a worker has started", || {
        let workers = run.ctl(&["workers", "--json"]).expect_exit(0).json();
        !list(&workers["workers"]).is_empty()
    });
    group.set("pids.max", 1);
    let mut client = run.client();
    until("the run has noticed that there are too few processes", || {
        let decisions = client.call("decisions", &json!({ "most": 100 })).expect("an answer");
        list(&decisions["decisions"])
            .iter()
            .any(|it| it["decision"] == "tasks_short" || it["decision"] == "room_short")
    });
    group.set("pids.max", "max");
    let (outcome, summary) = run.finish(0);
    verdicts_are_right(&outcome, &summary);
}

#[test]
fn run_without_enough_processes_is_refused() {
    let Some(group) = Group::create("pids", "a run without enough processes") else { return };
    group.set("pids.max", 20);
    let scenario = scenario();
    let shell = group.shell("exec \"$0\" run plan.toml --quiet");
    let child = scenario.command_of(Path::new("sh"), &shell).spawn().expect("the shell starts");
    let outcome = scenario.finish(child, &shell).expect_exit(3);
    outcome.expect_stderr(&["a run cannot begin", "processes"]);
    outcome.expect(!scenario.run_folder().exists(), "nothing was started");
}

/// The amount of memory that the candidate of the next test fills.
const FILLED: u64 = 400 * MIB;

/// Another process takes so much memory that Linux must kill a process. Linux chooses a runner, which has the highest
/// score.
#[test]
fn candidate_that_linux_kills_for_lack_of_memory_is_not_blamed() {
    let Some(group) = Group::create("memory", "a machine without memory") else { return };
    let scenario = Scenario::create();
    let source = format!(
        "#include <stdlib.h>\n#include \"opt_candidate.h\"\n\
         int run(void *self, const OptAny *args, int32_t n, OptAny *ret)\n{{\n\
         (void)self; (void)args; (void)n; (void)ret;\n\
         volatile char *memory = malloc({FILLED}u);\n\
         if (!memory) return 1;\n\
         for (unsigned at = 0; at < {FILLED}u; at += 4096) memory[at] = 1;\n\
         for (;;) {{ }}\n}}\n"
    );
    let fills = scenario.write("fills.c", source);
    let extra = "limits = { memory = \"1GiB\" }\nverify = { call_timeout = \"5s\" }\n".to_owned();
    let plan = Plan { extra, ..Plan::softmax(&["fast"]) };
    let text = plan.text().replace("candidates = [", &format!("candidates = ['{}', ", fills.display()));
    scenario.write("plan.toml", format!("[run]\nstages = [\"build\", \"verify\"]\n{text}"));
    // Without this, Linux might swap instead of killing a process.
    group.set("memory.swappiness", 0);
    let run = group.start(&scenario);
    let usage = || group.read("memory.usage_in_bytes").parse::<u64>().expect("a number");
    until("the candidate has filled its memory", || FILLED < usage());
    group.set("memory.limit_in_bytes", usage() + 50 * MIB);
    let hog = group.shell(&format!("exec dd if=/dev/zero of=/dev/null bs={FILLED} count=1"));
    let hog = Command::new("sh").args(&hog).output().expect("the shell starts");
    assert!(hog.status.success(), "{}", String::from_utf8_lossy(&hog.stderr));
    group.set("memory.limit_in_bytes", -1);
    let (outcome, summary) = run.finish(0);
    for (candidate, status) in [("naive", "PASSED"), ("fills", "TIMEOUT"), ("fast", "PASSED")] {
        outcome.expect_equal(summary.verdict(SOFTMAX, candidate).0, Some(status), candidate);
    }
    let attempts = &summary.candidate(SOFTMAX, "fills")["attempts"];
    let is_lost = list(attempts).iter().any(|it| it["status"] == "INFRA_ERROR");
    outcome.expect(is_lost, format_args!("Linux killed the runner: {attempts:#}"));
}

#[test]
fn low_limit_on_address_space_blames_no_candidate() {
    let (scenario, outcome) = limited("-v 500000");
    let outcome = outcome.expect_exit(3);
    outcome.expect_stderr(&["it inherits a limit of 488 MiB on address space (`ulimit -Hv`)"]);
    no_candidate_is_blamed(&outcome, &Summary::read(&scenario.run_folder(), &outcome));
    let (outcome, summary) = scenario.run_plan(0, &["--resume", "--quiet"]);
    verdicts_are_right(&outcome, &summary);
}

/// Stops a process, waits, and continues it.
fn stop_for(process: &Process, time: Duration) {
    let send =
        |signal| signal_if(process.pid, signal, || read_process(process.pid).as_ref() == Some(process));
    assert!(send(Signal::STOP), "{process:?} is stopped");
    std::thread::sleep(time);
    assert!(send(Signal::CONT), "{process:?} is alive");
}

/// Finds a runner of this supervisor's workers.
fn runner_of(supervisor: u32) -> Option<Process> {
    let is_runner = |process: &Process| {
        process.arguments.get(1).is_some_and(|it| it == "__runner")
            && read_process(process.parent).is_some_and(|worker| worker.parent == supervisor)
    };
    pids().filter_map(read_process).find(is_runner)
}

/// The kernel sleeps for 0.7 s in each call, and a call may take 1 s.
#[test]
fn runner_that_is_stopped_for_longer_than_its_limit_and_continued_passes() {
    let scenario = Scenario::create();
    let kernel = fs::read_to_string(repository().join("configs/demo/softmax/fast.c")).expect("readable");
    let slow = kernel.replacen("#include <math.h>", "#include <math.h>\n#include <unistd.h>", 1).replacen(
        "(void)self;",
        "(void)self;\n    usleep(700000);",
        1,
    );
    assert_ne!(slow, kernel);
    let slow = scenario.write("slow.c", slow);
    let extra = "verify = { call_timeout = \"1s\" }\nentries = [\"entry_000000.pt\"]\n".to_owned();
    let text = Plan { extra, ..Plan::softmax(&["naive"]) }.text();
    let text = text.replace("candidates = [", &format!("candidates = ['{}', ", slow.display()));
    scenario.write("plan.toml", format!("[run]\nstages = [\"build\", \"verify\"]\n{text}"));
    let run = started(&scenario);
    // A runner may have been started in advance, but it lives this long only if it has been called.
    let mut runner: Option<(Process, Instant)> = None;
    until("a runner is in a call", || {
        let found = runner_of(run.pid());
        if found.as_ref() != runner.as_ref().map(|(it, _)| it) {
            runner = found.map(|it| (it, Instant::now()));
        }
        runner.as_ref().is_some_and(|(_, seen)| Duration::from_millis(400) < seen.elapsed())
    });
    stop_for(&runner.expect("found").0, RUNNER_STOP);
    let (outcome, summary) = run.finish(0);
    outcome.expect_equal(summary.verdict(SOFTMAX, "slow").0, Some("PASSED"), "slow");
    let attempts = list(&summary.candidate(SOFTMAX, "slow")["attempts"]).len();
    outcome.expect_equal(attempts, 2, "one build, one verification");
}

#[test]
fn supervisor_that_is_stopped_for_longer_than_its_workers_wait_continues() {
    let scenario = scenario();
    let run = started(&scenario);
    stop_for(&read_process(run.pid()).expect("it runs"), SUPERVISOR_STOP);
    let (outcome, summary) = run.finish(0);
    verdicts_are_right(&outcome, &summary);
}
