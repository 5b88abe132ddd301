//! Tests runs in a folder whose disk has no free space.

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
    /// Mounts a file system on the folder of runs. If this process is not allowed to mount one, prints that the test is
    /// skipped and returns `None`.
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

    /// The folder with the files that use up the disk.
    fn fillers(&self) -> PathBuf {
        let folder = self.path.join("fillers");
        fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    /// Creates files until only `rest` more can be created.
    fn create_files_except(&self, rest: u64) {
        let folder = self.fillers();
        let is_created = |number: &usize| File::create(folder.join(number.to_string())).is_ok();
        let created = (0..).take_while(is_created).count();
        for number in created.saturating_sub(usize::try_from(rest).expect("a small number"))..created {
            fs::remove_file(folder.join(number.to_string())).expect("removed");
        }
    }

    /// Removes the files that use up the disk.
    fn remove_fillers(&self) {
        fs::remove_dir_all(self.fillers()).expect("removed");
    }

    /// Fills the remaining space, except for `rest` bytes.
    fn fill_except(&self, rest: u64) {
        let filler = self.fillers().join("filler");
        let mut file = File::create(&filler).expect("created");
        while file.write_all(&[0; 4096]).is_ok() {}
        while file.write_all(&[0]).is_ok() {}
        let length = file.metadata().expect("the size of the filler").len();
        file.set_len(length.saturating_sub(rest)).expect("shortened");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The folder stays in use until the last process of the test has ended.
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).output();
    }
}

/// Returns the resource that the run waits for, or an empty text if it does not wait.
fn waits_for(run: &LiveRun<'_>) -> String {
    let status = run.ctl(&["status", "--json"]).expect_exit(0).json();
    status["waiting"]["for"].as_str().unwrap_or_default().to_owned()
}

/// A resource of a disk that can run out.
struct Room {
    /// The options of a small disk.
    options: &'static str,
    /// The field of `status` that gives the remaining amount.
    field: &'static str,
    /// The name of the resource in messages.
    name: &'static str,
    /// The amount that the test leaves free: enough for the database, too little for builds.
    left: u64,
    /// The amount that builds need.
    needed: u64,
    use_up: fn(&SmallDisk, u64),
}

#[test]
fn builds_wait_for_space_on_the_disk() {
    builds_wait_for(&Room {
        options: "size=96m",
        field: "disk_bytes",
        name: "delete files to make space",
        left: 16 << 20,
        needed: 32 << 20,
        use_up: SmallDisk::fill_except,
    });
}

#[test]
fn builds_wait_for_inodes_on_the_disk() {
    builds_wait_for(&Room {
        options: "size=96m,nr_inodes=2000",
        field: "inodes",
        name: "more files",
        left: 100,
        needed: 128,
        use_up: SmallDisk::create_files_except,
    });
}

fn builds_wait_for(room: &Room) {
    let scenario = Scenario::with_plan(&Plan::softmax(&[]).text());
    let Some(disk) = SmallDisk::on_runs_of(&scenario, room.options) else { return };
    let run = LiveRun::start(&scenario, &["--quiet", "--keep-open"]);
    let status = || run.ctl(&["status", "--json"]).expect_exit(0).json();
    until("the baseline has passed", || status()["jobs"][0]["passed"] == 1);
    (room.use_up)(&disk, room.left);
    until("the run has read that the disk is almost full", || {
        status()["room"][room.field].as_u64().is_some_and(|free| free < room.needed)
    });
    let fast = repository().join("configs/demo/softmax/fast.c");
    run.ctl(&["submit", fast.to_str().expect("UTF-8")]).expect_exit(0);
    until("the build waits for room", || waits_for(&run).contains("room for builds"));
    run.ctl(&["why", "softmax/fast"]).expect_exit(0).expect_stdout(&["no room for builds"]);
    run.ctl(&["status"]).expect_exit(0).expect_stdout(&["waiting for room for builds: ", room.name]);
    disk.remove_fillers();
    until("the candidate has passed", || status()["jobs"][0]["passed"] == 2);
    run.ctl(&["shutdown"]).expect_exit(0);
    let (outcome, summary) = run.finish(0);
    outcome.expect_stderr(&["no build starts until", room.name, "there is room for builds again"]);
    let rows = ["room_short", "room_back", "retry", "put_off"].map(|decision| summary.policy(decision).len());
    assert_eq!(rows, [1, 1, 0, 0], "one shortage, and no attempt was lost");
}

#[test]
fn run_on_a_full_disk_continues_when_there_is_room() {
    let scenario = scenario();
    let Some(disk) = SmallDisk::on_runs_of(&scenario, "size=96m") else { return };
    let run = LiveRun::start(&scenario, &["--quiet"]);
    disk.fill_except(0);
    until("the run waits for room, or has ended", || {
        let status = run.ctl(&["status", "--json"]);
        status.code != Some(0) || status.json()["waiting"]["for"].is_string()
    });
    disk.remove_fillers();
    let (outcome, summary) = run.finish(0);
    verdicts_are_right(&outcome, &summary);
}

#[test]
fn run_on_a_disk_without_room_is_refused_before_anything_starts() {
    for (options, says) in [
        ("size=16m", "are free on the disk of the run's folder"),
        ("size=96m,nr_inodes=8", "more files can be created on the disk of the run's folder"),
    ] {
        let scenario = scenario();
        let Some(disk) = SmallDisk::on_runs_of(&scenario, options) else { return };
        let outcome = scenario.run(&["run", "plan.toml", "--quiet"]).expect_exit(3);
        outcome.expect_stderr(&["there is no room for a run in", says]);
        let left = fs::read_dir(&disk.path).expect("readable").count();
        outcome.expect_equal(left, 0, "files on the disk");
    }
}

#[test]
fn run_in_a_folder_without_the_right_to_execute_is_refused() {
    let scenario = scenario();
    let Some(disk) = SmallDisk::on_runs_of(&scenario, "size=64m,noexec") else { return };
    let outcome = scenario.run(&["run", "plan.toml", "--quiet"]).expect_exit(3);
    outcome.expect_stderr(&["mounted with `noexec`", "choose another folder with --dir"]);
    outcome.expect_equal(fs::read_dir(&disk.path).expect("readable").count(), 0, "files are left");
}
