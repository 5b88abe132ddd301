//! Runs in a folder whose disk has no room.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use opt_tests::summary::list;
use opt_tests::waiting::until;
use opt_tests::{Scenario, Summary};

use super::{scenario, verdicts_are_right};
use crate::control::client::LiveRun;
use crate::report::browser::skipped;
use crate::results::plans::SOFTMAX;

/// A small file system in memory. It is removed when this is dropped.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// Mounts a file system on the folder of runs. Returns `None`, and says so, if this process may not.
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

    /// Fills all room that is left.
    fn fill(&self) -> PathBuf {
        let filler = self.path.join("filler");
        let mut file = File::create(&filler).expect("created");
        while file.write_all(&[0; 4096]).is_ok() {}
        while file.write_all(&[0]).is_ok() {}
        filler
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The folder stays in use until the last process of the test has ended.
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

/// Returns whether the run waits for the database to accept rows, or cannot do any more.
fn needs_room(run: &LiveRun<'_>) -> bool {
    let status = run.ctl(&["status", "--json"]).expect_exit(0).json();
    status["waiting"]["for"].as_str().is_some_and(|what| what.contains("database"))
        || status["run"]["ending"] != "no"
}

#[test]
fn run_on_a_full_disk_waits_for_room_and_blames_no_candidate() {
    let scenario = scenario();
    let Some(disk) = SmallDisk::on_runs_of(&scenario, "size=8m") else { return };
    let run = LiveRun::start(&scenario, &["--quiet"]);
    let filler = disk.fill();
    until("the run needs room", || needs_room(&run));
    fs::remove_file(filler).expect("removed");
    let folder = run.folder().to_owned();
    let outcome = run.finish_any();
    // What was built in time may have passed. All other candidates have no verdict, because of the host.
    let first = Summary::read(&folder, &outcome);
    for candidate in list(&first.job(SOFTMAX)["candidates"]) {
        let status = candidate["status"].as_str();
        outcome.expect(status != Some("COMPILE_ERROR"), format_args!("{candidate} was blamed"));
    }
    outcome.expect_stderr(&["No space left on device"]);
    let outcome = scenario.run(&["run", "plan.toml", "--resume", "--quiet"]).expect_exit(0);
    verdicts_are_right(&outcome, &Summary::read(&folder, &outcome));
}

#[test]
fn run_without_free_inodes_ends_with_the_reason() {
    let scenario = scenario();
    // The folders, database and log of a run need more files than that.
    let Some(_disk) = SmallDisk::on_runs_of(&scenario, "size=8m,nr_inodes=8") else { return };
    let outcome = scenario.run(&["run", "plan.toml", "--quiet"]).expect_exit(3);
    outcome.expect_stderr(&["No space left on device"]);
}
