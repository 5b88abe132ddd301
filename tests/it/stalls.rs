//! Tests runs whose terminal or database blocks, so that it accepts no lines or rows. The run continues, at once or
//! when the database is free again, and can be controlled in the meantime.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use opt_tests::waiting::until;
use opt_tests::{Scenario, Summary, summary::list};
use rusqlite::Connection;
use serde_json::Value;

use crate::control::client::LiveRun;
use crate::results::plans::{Plan, SOFTMAX};

/// How long the database is locked. This is longer than a write waits for the lock.
const LOCKED: Duration = Duration::from_secs(12);

/// Returns a full pipe. Like a terminal after Ctrl-S, it blocks each write.
fn full_pipe() -> (File, OwnedFd) {
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    let flags = rustix::fs::fcntl_getfl(&write).expect("the flags of the pipe");
    rustix::fs::fcntl_setfl(&write, flags | rustix::fs::OFlags::NONBLOCK).expect("the setting is accepted");
    let mut file = File::from(write.as_fd().try_clone_to_owned().expect("a descriptor"));
    while file.write(&[b'.'; 4096]).is_ok() {}
    while file.write(b".").is_ok() {}
    rustix::fs::fcntl_setfl(&write, flags).expect("the setting is accepted");
    (read.into(), write)
}

fn read_all(mut pipe: File) -> String {
    let mut text = String::new();
    pipe.read_to_string(&mut text).expect("readable");
    text.trim_start_matches('.').to_owned()
}

fn status(folder: &Path) -> String {
    let text = std::fs::read_to_string(folder.join("summary.json")).unwrap_or_default();
    let document: Value = serde_json::from_str(&text).unwrap_or_default();
    document["run"]["status"].as_str().unwrap_or_default().to_owned()
}

fn terminate(run: &LiveRun<'_>) {
    let pid = i32::try_from(run.pid()).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("the supervisor lives");
}

#[test]
fn run_with_unread_output_ends() {
    let scenario = Scenario::with_plan(&Plan::softmax(&["fast", "bad/segfaults"]).text());
    let ((stdout, out), (stderr, err)) = (full_pipe(), full_pipe());
    let run = LiveRun::start_as(&scenario, &["--jsonl"], |command| {
        command.env("RUST_LOG", "debug").stdout(out).stderr(err);
    });
    run.ctl(&["status"]).expect_exit(0);
    until("the run has ended", || status(run.folder()) == "FINISHED");
    let readers = [stdout, stderr].map(|pipe| std::thread::spawn(|| read_all(pipe)));
    let (_, summary) = run.finish(0);
    assert_eq!(summary.verdict(SOFTMAX, "fast").0, Some("PASSED"));
    let [stdout, stderr] = readers.map(|reader| reader.join().expect("a reader"));
    assert_eq!(stdout.lines().count(), 3, "a line for each candidate: {stdout}");
    assert!(stderr.contains("DEBUG attempt"), "{stderr}");
}

#[test]
fn run_with_unread_output_ends_after_two_signals() {
    let scenario = Scenario::with_plan(&Plan::softmax(&["fast"]).text());
    let ((stdout, out), (stderr, err)) = (full_pipe(), full_pipe());
    let run = LiveRun::start_as(&scenario, &["--jsonl", "--keep-open"], |command| {
        command.env("RUST_LOG", "debug").stdout(out).stderr(err);
    });
    until("both candidates have passed", || {
        let answer = run.ctl(&["status", "--json"]).expect_exit(0).json();
        answer["jobs"][0]["passed"] == 2
    });
    terminate(&run);
    until("the run has ended", || status(run.folder()) == "FINISHED");
    terminate(&run);
    run.finish_any().expect_exit(0);
    drop((stdout, stderr));
}

#[test]
fn interrupted_run_with_unread_results_ends_after_one_signal() {
    let scenario = endless();
    let (stdout, out) = full_pipe();
    let run = LiveRun::start_as(&scenario, &["--jsonl", "--quiet"], |command| {
        command.stdout(out);
    });
    until("the baseline has passed", || {
        let answer = run.ctl(&["status", "--json"]).expect_exit(0).json();
        answer["jobs"][0]["passed"].as_u64().is_some_and(|passed| 0 < passed)
    });
    terminate(&run);
    // Nobody has read the run's first line yet, so the output is still blocked.
    run.finish_any().expect_exit(4);
    drop(stdout);
}

fn lock(folder: &Path) -> Connection {
    let database = Connection::open(folder.join("run.sqlite")).expect("opens");
    database.busy_timeout(Duration::from_secs(60)).expect("the setting is accepted");
    database.execute_batch("BEGIN EXCLUSIVE").expect("locked");
    database
}

/// A plan with a candidate that never ends. Its runner is killed only after the reason is in the database.
fn endless() -> Scenario {
    let plan = Plan {
        extra: "verify = { call_timeout = \"1s\" }\n".to_owned(),
        ..Plan::softmax(&["bad/loops_forever", "fast"])
    };
    Scenario::with_plan(&plan.text())
}

#[test]
fn run_with_a_locked_database_can_be_controlled_and_continues_afterwards() {
    let scenario = endless();
    let run = LiveRun::start(&scenario, &["--quiet"]);
    run.ctl(&["pause"]).expect_exit(0);
    let database = lock(run.folder());
    run.ctl(&["resume"]).expect_exit(0);
    let locked_at = Instant::now();
    until("the run reports that the database accepts no rows", || {
        run.ctl(&["status", "--json"]).expect_exit(0).json()["waiting"]["for"]
            .as_str()
            .is_some_and(|what| what.contains("database"))
    });
    while locked_at.elapsed() < LOCKED {
        run.ctl(&["status"]).expect_exit(0);
        std::thread::sleep(Duration::from_millis(200));
    }
    run.ctl(&["why", "softmax/fast"]).expect_exit(1).expect_stderr(&["database"]);
    database.execute_batch("COMMIT").expect("the database is unlocked");
    let (outcome, summary) = run.finish(0);
    outcome.expect_stderr(&["the run's database accepts no rows", "accepts rows again"]);
    assert_eq!(summary.verdict(SOFTMAX, "fast").0, Some("PASSED"));
    assert_eq!(summary.policy("store_stalled").len(), 1);
    let back = summary.policy("store_back");
    assert!(back[0]["numbers"]["stalled_ms"].as_u64().is_some_and(|ms| 10_000 <= ms), "{back:?}");
    let infra = list(&summary.job(SOFTMAX)["candidates"]).iter().filter(|it| it["status"] == "INFRA_ERROR");
    assert_eq!(infra.count(), 0, "attempts that ended as INFRA_ERROR");
}

/// A time longer than the one after which the watchdog reports that a loop hangs.
const LONGER_THAN_A_HANG: Duration = Duration::from_secs(4);

#[test]
fn watchdog_ignores_run_that_waits_for_its_last_rows() {
    let scenario = Scenario::with_plan(&Plan::softmax(&["fast"]).text());
    let run = LiveRun::start(&scenario, &["--quiet", "--keep-open"]);
    until("all candidates have passed", || {
        run.ctl(&["status", "--json"]).expect_exit(0).json()["jobs"][0]["passed"] == 2
    });
    let database = lock(run.folder());
    terminate(&run);
    until("the run is at its end", || {
        let workers = run.ctl(&["workers", "--json"]).expect_exit(0).json();
        list(&workers["workers"]).is_empty()
    });
    let locked_at = Instant::now();
    while locked_at.elapsed() < LONGER_THAN_A_HANG {
        run.ctl(&["status"]).expect_exit(0);
        std::thread::sleep(Duration::from_millis(200));
    }
    database.execute_batch("COMMIT").expect("the database is unlocked");
    let (outcome, summary) = run.finish(0);
    outcome.expect_stderr(&["waiting for the run's database to accept the last rows"]);
    outcome.expect(!outcome.stderr.contains("hung"), "waiting is not reported as a hang");
    assert_eq!(summary.policy("loop_hung").len(), 0);
}

#[test]
fn runner_is_killed_only_after_its_row_is_written() {
    let scenario = endless();
    let run = LiveRun::start(&scenario, &["--quiet"]);
    until("the endless candidate is being verified", || {
        let status = run.ctl(&["status", "--json"]).expect_exit(0).json();
        let is_it = |lease: &Value| {
            lease["stage"] == "verify"
                && lease["candidate"].as_str().is_some_and(|it| it.contains("loops_forever"))
        };
        list(&status["leases"]).iter().any(is_it)
    });
    let database = lock(run.folder());
    until("the runner is stopped", || {
        let workers = run.ctl(&["workers", "--json"]).expect_exit(0).json();
        let mut runners = list(&workers["workers"]).iter().flat_map(|worker| list(&worker["runners"]));
        runners.any(|runner| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", runner["pid"])).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        })
    });
    database.execute_batch("COMMIT").expect("the database is unlocked");
    let (outcome, summary) = run.finish(0);
    outcome.expect_equal(summary.verdict(SOFTMAX, "loops_forever").0, Some("TIMEOUT"), "its verdict");
    let rows = summary.policy("kill_runner");
    outcome.expect(rows.iter().any(|row| row["reason"] == "timeout"), "the database has the reason");
}

#[test]
fn run_with_a_locked_database_ends_after_two_signals() {
    let scenario = endless();
    let run = LiveRun::start(&scenario, &["--quiet"]);
    let database = lock(run.folder());
    terminate(&run);
    // Send the second signal only after the first was handled, because two simultaneous signals count as one.
    until("the first signal was handled", || {
        run.ctl(&["status", "--json"]).expect_exit(0).json()["run"]["ending"] != "no"
    });
    terminate(&run);
    let folder = run.folder().to_owned();
    let outcome = run.finish_any();
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    outcome.expect_stderr(&["rows of the run database were not written", "--resume"]);
    assert!(opt_tests::processes::left(outcome.pid, &folder).is_empty());
    drop(database);
    let again = scenario.run(&["run", "plan.toml", "--resume", "--quiet"]).expect_exit(0);
    let summary = Summary::read(&folder, &again);
    assert_eq!(summary.verdict(SOFTMAX, "fast").0, Some("PASSED"));
}
