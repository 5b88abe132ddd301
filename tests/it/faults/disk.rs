//! Runs in a folder whose disk has no room.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use opt_tests::waiting::until;
use opt_tests::{Scenario, repository};

use super::{scenario, verdicts_are_right};
use crate::control::client::LiveRun;
use crate::report::browser::skipped;
use crate::results::plans::Plan;

/// A small file system in memory. Dropping the value unmounts it.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// Mounts a file system on the folder of runs. If this process may not mount one, prints that the test is skipped
    /// and returns `None`.
    fn on_runs_of(scenario: &Scenario, options: &str) -> Option<Self> {
        let path = scenario.path().join("runs");
        fs::create_dir(&path).expect("an empty folder");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&path).output();
        let mounted = mount.is_ok_and(|mount| mount.status.success());
        if !mounted {
            skipped("a full disk: this process may not mount a file system");
        }
        mounted.then_some(Self { path })
    }

    /// Fills the room that is left, except for `rest` bytes.
    fn fill_except(&self, rest: u64) -> PathBuf {
        let filler = self.path.join("filler");
        let mut file = File::create(&filler).expect("created");
        while file.write_all(&[0; 4096]).is_ok() {}
        while file.write_all(&[0]).is_ok() {}
        let length = file.metadata().expect("its size").len();
        file.set_len(length.saturating_sub(rest)).expect("shortened");
        filler
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The folder stays in use until the last process of the test has ended.
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

/// What the run waits for; empty if it does not wait.
fn waits_for(run: &LiveRun<'_>) -> String {
    let status = run.ctl(&["status", "--json"]).expect_exit(0).json();
    status["waiting"]["for"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn builds_wait_for_room_on_the_disk() {
    let scenario = Scenario::with_plan(&Plan::softmax(&[]).text());
    let Some(disk) = SmallDisk::on_runs_of(&scenario, "size=96m") else { return };
    let run = LiveRun::start(&scenario, &["--quiet", "--keep-open"]);
    let status = || run.ctl(&["status", "--json"]).expect_exit(0).json();
    until("the baseline has passed", || status()["jobs"][0]["passed"] == 1);
    // This room is enough for the database, but builds need twice as much.
    let filler = disk.fill_except(16 << 20);
    until("the run has read that the disk is almost full", || {
        status()["room"]["disk_bytes"].as_u64().is_some_and(|free| free <= 16 << 20)
    });
    let fast = repository().join("configs/demo/softmax/fast.c");
    run.ctl(&["submit", fast.to_str().expect("UTF-8")]).expect_exit(0);
    until("the build waits for room", || waits_for(&run).contains("room for builds"));
    run.ctl(&["why", "softmax/fast"]).expect_exit(0).expect_stdout(&["no room for builds"]);
    run.ctl(&["status"])
        .expect_exit(0)
        .expect_stdout(&["waiting for room for builds: ", "(free disk space)"]);
    fs::remove_file(filler).expect("removed");
    until("the candidate has passed", || status()["jobs"][0]["passed"] == 2);
    run.ctl(&["shutdown"]).expect_exit(0);
    let (outcome, summary) = run.finish(0);
    outcome.expect_stderr(&["no build starts until", "(free disk space)", "there is room for builds again"]);
    let rows = ["room_short", "room_back", "retry", "put_off"].map(|decision| summary.policy(decision).len());
    assert_eq!(rows, [1, 1, 0, 0], "one shortage, and no attempt was lost");
}

#[test]
fn run_on_a_full_disk_continues_when_there_is_room() {
    let scenario = scenario();
    let Some(disk) = SmallDisk::on_runs_of(&scenario, "size=96m") else { return };
    let run = LiveRun::start(&scenario, &["--quiet"]);
    let filler = disk.fill_except(0);
    until("the run waits for room, or has ended", || {
        let status = run.ctl(&["status", "--json"]);
        status.code != Some(0) || status.json()["waiting"]["for"].is_string()
    });
    fs::remove_file(filler).expect("removed");
    let (outcome, summary) = run.finish(0);
    verdicts_are_right(&outcome, &summary);
}

#[test]
fn run_on_a_disk_without_room_is_refused_before_anything_starts() {
    for (options, says) in [
        ("size=16m", "are free on its disk"),
        ("size=96m,nr_inodes=8", "more files can be created on its disk"),
    ] {
        let scenario = scenario();
        let Some(disk) = SmallDisk::on_runs_of(&scenario, options) else { return };
        let outcome = scenario.run(&["run", "plan.toml", "--quiet"]).expect_exit(3);
        outcome.expect_stderr(&["there is no room for a run in", says]);
        let left = fs::read_dir(&disk.path).expect("readable").count();
        outcome.expect_equal(left, 0, "files on the disk");
    }
}
