//! Tests a supervisor that runs out of file descriptors or has too little memory, and a machine whose clock is set
//! back.

use std::path::Path;
use std::process::Command;

use opt_tests::Summary;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::captures::no_candidate_is_blamed;
use super::{scenario, started, verdicts_are_right};
use crate::control::client::LiveRun;

/// How long the supervisor cannot open files. The test sleeps for this time, because there is no event to wait for.
const SHORTAGE: std::time::Duration = std::time::Duration::from_millis(500);

#[test]
fn supervisor_that_cannot_open_files_for_a_moment_continues() {
    let scenario = scenario();
    let run = started(&scenario);
    let pid = Pid::from_raw(i32::try_from(run.pid()).expect("a pid")).expect("a pid");
    let is_open = |number: &u64| Path::new(&format!("/proc/{}/fd/{number}", run.pid())).is_symlink();
    let lowest_free = (0..).find(|number| !is_open(number));
    // The hard limit of the supervisor is that of this process, which it has inherited.
    let lowered = Rlimit { current: lowest_free, maximum: getrlimit(Resource::Nofile).maximum };
    let before = prlimit(Some(pid), Resource::Nofile, lowered).expect("lowered");
    std::thread::sleep(SHORTAGE);
    prlimit(Some(pid), Resource::Nofile, before).expect("restored");
    let (outcome, summary) = run.finish(0);
    verdicts_are_right(&outcome, &summary);
}

/// The environment variable that gives the path of a file. While the file exists, the clock is set back.
const SET_BACK: &str = "OPT_TEST_CLOCK_SET_BACK";

/// A library that sets the wall clock of its process back by an hour while a file exists.
const STEPPING_CLOCK: &str = "
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time)
{
    int result = syscall(SYS_clock_gettime, clock, time);
    int error = errno;
    const char *file = getenv(\"OPT_TEST_CLOCK_SET_BACK\");
    if (clock == CLOCK_REALTIME && file && syscall(SYS_faccessat, -100, file, F_OK, 0) == 0)
        time->tv_sec -= 3600;
    errno = error;
    return result;
}
";

#[test]
fn clock_that_is_set_back_during_a_run_changes_no_verdict() {
    let scenario = scenario();
    let source = scenario.write("clock.c", STEPPING_CLOCK);
    let library = source.with_extension("so");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(built.is_ok_and(|status| status.success()), "the library is built");
    let set_back = scenario.path().join("set-back");
    let run = LiveRun::start_as(&scenario, &["--quiet"], |command| {
        command.env("LD_PRELOAD", &library).env(SET_BACK, &set_back);
    });
    std::fs::write(&set_back, "").expect("written");
    let (outcome, summary) = run.finish(0);
    verdicts_are_right(&outcome, &summary);
    let time = |field: &str| summary.document["run"][field].as_str().expect("a time").to_owned();
    outcome.expect(time("finished") < time("started"), "the clock was set back");
    for format in ["text", "html", "md"] {
        scenario.run(&["report", "runs/latest", "--format", format]).expect_exit(0);
    }
}

#[test]
fn low_limit_on_private_memory_blames_no_candidate() {
    let (scenario, outcome) = super::limited("-d 100000");
    let outcome = outcome.expect_exit(3);
    outcome.expect_stderr(&["it inherits a limit of 97.7 MiB on private memory (`ulimit -Hd`)"]);
    no_candidate_is_blamed(&outcome, &Summary::read(&scenario.run_folder(), &outcome));
    let (outcome, summary) = scenario.run_plan(0, &["--resume", "--quiet"]);
    verdicts_are_right(&outcome, &summary);
}
