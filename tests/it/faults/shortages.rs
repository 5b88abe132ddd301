//! A supervisor that runs out of file descriptors, and a machine whose clock is set back.

use std::process::Command;

use opt_tests::Summary;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::{scenario, started, verdicts_are_right};

/// How long the supervisor cannot open files. This is the fault itself.
const SHORTAGE: std::time::Duration = std::time::Duration::from_millis(500);

#[test]
fn run_without_file_descriptors_continues_when_there_are_some() {
    let scenario = scenario();
    let run = started(&scenario);
    let pid = Pid::from_raw(i32::try_from(run.pid()).expect("a pid")).expect("a pid");
    let open = std::fs::read_dir(format!("/proc/{}/fd", run.pid())).expect("it lives").count() as u64;
    // The supervisor has inherited the hard limit of this process.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let lowered = Rlimit { current: Some(open), maximum };
    let before = prlimit(Some(pid), Resource::Nofile, lowered).expect("lowered");
    std::thread::sleep(SHORTAGE);
    prlimit(Some(pid), Resource::Nofile, before).expect("restored");
    let (outcome, summary) = run.finish(0);
    verdicts_are_right(&outcome, &summary);
}

/// A library that sets the wall clock of its process back by an hour, from its 40th reading on.
const STEPPING_CLOCK: &str = "
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time)
{
    static int readings;
    int result = syscall(SYS_clock_gettime, clock, time);
    if (clock == CLOCK_REALTIME && 40 <= __atomic_add_fetch(&readings, 1, __ATOMIC_RELAXED))
        time->tv_sec -= 3600;
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
    let arguments = ["run", "plan.toml", "--quiet"];
    let child = scenario.command(&arguments).env("LD_PRELOAD", &library).spawn().expect("started");
    let outcome = scenario.finish(child, &arguments).expect_exit(0);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    verdicts_are_right(&outcome, &summary);
    let time = |field: &str| summary.document["run"][field].as_str().expect("a time").to_owned();
    outcome.expect(time("finished") < time("started"), "the clock was set back");
    for format in ["text", "html", "md"] {
        scenario.run(&["report", "runs/latest", "--format", format]).expect_exit(0);
    }
}
