//! Runs in a folder whose disk has no room.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use opt_tests::waiting::until;
use opt_tests::{Scenario, Summary};

use super::{scenario, verdicts_are_right};
use crate::control::client::LiveRun;

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
            println!("SKIPPED a full disk: this process may not mount a file system");
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

fn waits_for_the_database(run: &LiveRun<'_>) -> bool {
    let status = run.ctl(&["status", "--json"]).expect_exit(0).json();
    status["waiting"]["for"].as_str().is_some_and(|what| what.contains("database"))
}

#[test]
fn run_on_a_full_disk_waits_for_room_and_blames_nobody() {
    let scenario = scenario();
    let Some(disk) = SmallDisk::on_runs_of(&scenario, "size=8m") else { return };
    let run = LiveRun::start(&scenario, &["--quiet"]);
    let filler = disk.fill();
    until("the run reports that the database accepts no rows", || waits_for_the_database(&run));
    fs::remove_file(filler).expect("removed");
    let folder = run.folder().to_owned();
    let outcome = run.finish_any().expect_exit(0);
    outcome.expect_stderr(&["the run's database accepts no rows", "accepts rows again"]);
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
