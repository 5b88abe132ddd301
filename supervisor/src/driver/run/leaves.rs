//! Gives each runner a control group, its leaf, and reads Linux's counts in it to explain how the runner ended.
//!
//! If control groups cannot be used, runners have no leaf, and the other protections still apply.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use opt_shared::causes::chain;
use opt_shared::ids::WorkerId;
use opt_shared::message::GroupLimits;
use opt_shared::units::Bytes;

use super::mover::{Moved, Mover, RunnerKey};
use crate::cgroup::{Events, Group, Leaf, LeafLimits, StartGroup, Subtree};
use crate::memory::cgroup::{own_groups, pids_refusal_files, pids_refusals};

/// Memory that Linux charges to a leaf, but that does not count towards the runner's own limit: stacks and other memory
/// inside Linux, and the runner's printed output.
const UNCOUNTED: Bytes = Bytes::mib(4);

pub struct Leaves {
    groups: Groups,
    /// Why no more runners get a leaf, although there are control groups. `None` if they do.
    given_up: Option<String>,
    announced: BTreeMap<RunnerKey, Wanted>,
    /// The workers that have had runners started ahead of time since their runners were last forgotten.
    ahead: BTreeSet<WorkerId>,
    /// The runners that are being moved into their leaves.
    moving: BTreeSet<RunnerKey>,
    leaves: BTreeMap<RunnerKey, Leaf>,
    /// The files in which the control groups of this process count the processes and threads that they refused.
    refusal_files: Vec<PathBuf>,
    /// For each runner, the sum of these counts at the time when it was announced.
    refusals_before: BTreeMap<RunnerKey, u64>,
    /// The runners that were killed after a group above their own had refused to let them start a process or thread.
    refused: BTreeSet<RunnerKey>,
}

/// The leaf of a runner that was announced.
struct Wanted {
    start_time: u64,
    limits: LeafLimits,
}

enum Groups {
    /// There are no control groups, for this reason.
    Absent(String),
    /// The subtree is used here, by the canaries, which test the protections before the first runner starts.
    Here(Subtree),
    /// The subtree is used by a thread, for the runners.
    InBackground(Mover),
}

/// The time at which a runner may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayBegin {
    /// At once, because the runner gets no leaf.
    Now,
    /// When its move into its leaf is over, and `Leaves::moved` returns the runner.
    Later,
}

impl Leaves {
    /// Takes over a subtree of control groups for the run that `key` names.
    pub fn open(key: &str) -> Self {
        // The files are looked up last, because `take` moves this process to another group in version 2. If they cannot
        // be read, the counts in the leaves themselves are the only evidence.
        let groups = take(key).map_or_else(Groups::Absent, Groups::Here);
        let refusal_files = pids_refusal_files(Path::new("/")).unwrap_or_default();
        Self { refusal_files, ..Self::with(groups) }
    }

    fn with(groups: Groups) -> Self {
        Self {
            groups,
            given_up: None,
            announced: BTreeMap::new(),
            ahead: BTreeSet::new(),
            moving: BTreeSet::new(),
            leaves: BTreeMap::new(),
            refusal_files: Vec::new(),
            refusals_before: BTreeMap::new(),
            refused: BTreeSet::new(),
        }
    }

    /// Returns an instance without control groups.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self::with(Groups::Absent("not asked for".to_owned()))
    }

    /// Hands the groups over to a thread, which serves runners from now on. Canaries get no more leaves.
    #[must_use]
    pub fn in_background(mut self) -> Self {
        if let Groups::Here(subtree) = self.groups {
            self.groups = match Mover::start(subtree) {
                Ok(mover) => Groups::InBackground(mover),
                Err(error) => Groups::Absent(format!("starting the thread for control groups: {error}")),
            };
        }
        self
    }

    /// Returns the key that is part of the names of a run's groups. The key depends only on the run's folder.
    pub fn key(folder: &Path) -> String {
        let digest = blake3::hash(folder.as_os_str().as_encoded_bytes()).to_hex();
        digest.chars().take(12).collect()
    }

    /// Returns the name of the file that limits the memory of a canary's leaf. The name is empty if canaries get no
    /// leaves.
    pub fn limit_file(&self) -> &'static str {
        match &self.groups {
            Groups::Here(subtree) => subtree.limit_file(),
            Groups::Absent(_) | Groups::InBackground(_) => "",
        }
    }

    /// Returns why runners get no leaves, or `None` if they do.
    pub fn absent_because(&self) -> Option<&str> {
        match &self.groups {
            Groups::Absent(why) => Some(why),
            Groups::Here(_) | Groups::InBackground(_) => self.given_up.as_deref(),
        }
    }

    /// Returns the group below which leaves are created.
    pub fn folder(&self) -> Option<&Path> {
        match &self.groups {
            Groups::Absent(_) => None,
            Groups::Here(subtree) => Some(subtree.folder()),
            Groups::InBackground(mover) => Some(mover.folder()),
        }
    }

    /// Stops using control groups for the rest of the run, because a limit could not be enforced. Runners that are
    /// alive keep their leaves.
    pub fn give_up(&mut self, why: String) {
        self.given_up = Some(why);
    }

    /// Begins to move a process into a leaf without limits, before the process is announced as a runner. Until then,
    /// the process runs only our own code. A move can take milliseconds, and a runner that is started ahead of time
    /// does not have to wait for it.
    pub fn enclose_ahead(&mut self, worker: WorkerId, pid: u32, start_time: u64) {
        if let (Groups::InBackground(mover), None) = (&self.groups, &self.given_up) {
            self.ahead.insert(worker);
            mover.move_ahead((worker, pid), start_time);
        }
    }

    /// Stores two things for `enclose`: the limits of a watched runner, and the number of refusals before the runner
    /// begins.
    pub fn announce(
        &mut self,
        (worker, pid): RunnerKey,
        start_time: u64,
        limit: Bytes,
        group_limits: GroupLimits,
    ) {
        self.refusals_before.insert((worker, pid), pids_refusals(&self.refusal_files));
        if self.absent_because().is_none() {
            let memory = limit + group_limits.files + UNCOUNTED;
            let limits = LeafLimits { memory, tasks: group_limits.tasks };
            self.announced.insert((worker, pid), Wanted { start_time, limits });
        }
    }

    /// Begins to move a runner into its leaf. This must be done before the runner executes any code of its candidate.
    pub fn enclose(&mut self, worker: WorkerId, pid: u32) -> MayBegin {
        let runner = (worker, pid);
        let wanted = self.announced.remove(&runner);
        match (&self.groups, wanted, &self.given_up) {
            (Groups::InBackground(mover), Some(Wanted { start_time, limits }), None)
                if mover.move_runner(runner, start_time, limits) =>
            {
                self.moving.insert(runner);
                MayBegin::Later
            }
            _ => MayBegin::Now,
        }
    }

    /// Returns the runners that may begin, because their moves are done. An error says why a runner has no leaf.
    pub fn moved(&mut self) -> Vec<(RunnerKey, Result<(), String>)> {
        let Groups::InBackground(mover) = &self.groups else { return Vec::new() };
        let mut may_begin = Vec::new();
        for Moved { runner, leaf } in mover.moved() {
            let is_wanted = self.moving.remove(&runner);
            let result = match leaf {
                Ok(Some(leaf)) if is_wanted => {
                    self.leaves.insert(runner, leaf);
                    Ok(())
                }
                Ok(Some(leaf)) => {
                    mover.give_back(leaf);
                    continue;
                }
                Ok(None) => Ok(()),
                Err(why) => Err(why),
            };
            may_begin.push((runner, result));
        }
        may_begin
    }

    /// Returns the descriptor that becomes readable when `moved` has runners to return.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.groups {
            Groups::InBackground(mover) => Some(mover.descriptor()),
            Groups::Absent(_) | Groups::Here(_) => None,
        }
    }

    /// Stops a runner and everything that it started, if it has a leaf that can be stopped as a whole. The caller also
    /// sends signals. If stopping the leaf fails, these must suffice.
    pub fn freeze(&self, worker: WorkerId, pid: u32) {
        if let Some(leaf) = self.leaves.get(&(worker, pid)) {
            let _ = leaf.freeze();
        }
    }

    /// Kills a runner and everything that it started, if it has a leaf. The caller also signals it through its pidfd.
    pub fn kill(&mut self, worker: WorkerId, pid: u32) {
        if let Some(leaf) = self.leaves.get(&(worker, pid)) {
            // In version 1, the kill lowers the group's own limit, so that the group itself then refuses tasks.
            // Refusals by groups above it are therefore recorded first.
            if leaf.limit_above_refused_tasks().unwrap_or_default() {
                self.refused.insert((worker, pid));
            }
            // Version 2 has no `cgroup.kill` before Linux 5.14. There, only the caller's signal ends the runner.
            let _ = leaf.kill();
        }
    }

    /// Returns the limit and the events of a dead runner's leaf, if Linux killed a process in it because of the leaf's
    /// limit. The count `oom_kill` alone does not show this, because it includes kills when the whole machine had no
    /// memory left.
    pub fn evidence(&self, worker: WorkerId, pid: u32) -> Option<(Bytes, Events)> {
        let leaf = self.leaves.get(&(worker, pid))?;
        let events = leaf.events().ok()?;
        (0 < events.oom_kill && 0 < events.at_limit).then_some((leaf.limits()?.memory, events))
    }

    /// Returns whether a group above the runner's own refused a process or thread while the runner was alive. The
    /// refused process may have been outside the runner if the runner has no leaf, or if Linux counts refusals only in
    /// the group that reached its limit.
    pub fn were_tasks_refused(&self, worker: WorkerId, pid: u32) -> bool {
        let runner = (worker, pid);
        let before = self.refusals_before.get(&runner);
        self.refused.contains(&runner)
            || before.is_some_and(|&before| before < pids_refusals(&self.refusal_files))
            || self
                .leaves
                .get(&runner)
                .is_some_and(|leaf| leaf.limit_above_refused_tasks().unwrap_or_default())
    }

    pub fn forget(&mut self, worker: WorkerId, pid: u32) {
        self.refusals_before.remove(&(worker, pid));
        self.refused.remove(&(worker, pid));
        self.announced.remove(&(worker, pid));
        self.moving.remove(&(worker, pid));
        if let (Some(leaf), Groups::InBackground(mover)) = (self.leaves.remove(&(worker, pid)), &self.groups)
        {
            mover.give_back(leaf);
        }
    }

    /// Kills the processes that are left in a worker's leaves, and removes the leaves. Call this when the worker has
    /// ended, or has reaped its runners without reporting each one.
    pub fn forget_worker(&mut self, worker: WorkerId) {
        if let (true, Groups::InBackground(mover)) = (self.ahead.remove(&worker), &self.groups) {
            mover.give_back_ahead(worker);
        }
        let pids: Vec<u32> = self
            .refusals_before
            .keys()
            .chain(self.leaves.keys())
            .chain(&self.moving)
            .filter(|(owner, _)| *owner == worker)
            .map(|&(_, pid)| pid)
            .collect();
        for pid in pids {
            self.kill(worker, pid);
            self.forget(worker, pid);
        }
    }

    /// Returns a leaf with this memory limit for a canary.
    pub fn for_canary(&mut self, memory: Bytes) -> Result<Leaf, String> {
        /// The most processes and threads in the leaf.
        const TASKS: u32 = 4;
        if let Some(why) = self.absent_because() {
            return Err(why.to_owned());
        }
        let Groups::Here(subtree) = &mut self.groups else {
            return Err("the run has begun".to_owned());
        };
        subtree.leaf("canary", LeafLimits { memory, tasks: TASKS }).map_err(|error| chain(&error))
    }

    /// Removes the leaf of a canary that has ended.
    pub fn take_back(&mut self, leaf: Leaf) {
        if let Groups::Here(subtree) = &mut self.groups {
            subtree.give_back(leaf);
        }
    }
}

/// Takes over the group of this process in version 2 or, if that fails, in version 1. If both fail, the error is that
/// of the version that was tried last.
fn take(key: &str) -> Result<Subtree, String> {
    let root = Path::new("/");
    let own = own_groups(root).map_err(|error| chain(&error))?;
    let two = own.version_2.map(|own| StartGroup {
        topmost: own.topmost,
        delegation: own.folder.clone(),
        group: Group::Two { folder: own.folder },
    });
    let marked = own.systemd.map(|own| own.folder);
    let one = own.memory.zip(own.pids).map(|(memory, pids)| StartGroup {
        topmost: memory.topmost && pids.topmost,
        delegation: marked.unwrap_or_else(|| memory.folder.clone()),
        group: Group::One { memory: memory.folder, pids: pids.folder },
    });
    let starts: Vec<StartGroup> = two.into_iter().chain(one).collect();
    let mut why = "no control groups are mounted".to_owned();
    for start in starts {
        match Subtree::take(root, &start, key, std::process::id()) {
            Ok(subtree) => return Ok(subtree),
            Err(error) => why = chain(&error),
        }
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::memory::procfs;

    const WORKER: WorkerId = WorkerId(3);
    const LIMITS: GroupLimits = GroupLimits { files: Bytes::mib(2), tasks: 7, tree: false };

    /// Creates leaves in plain folders instead of control groups.
    fn fake() -> (tempfile::TempDir, Leaves) {
        let root = tempfile::tempdir().expect("folder");
        let [memory, pids] = ["memory", "pids"].map(|name| root.path().join(name));
        std::fs::create_dir(&memory).expect("folder");
        std::fs::create_dir(&pids).expect("folder");
        let delegation = memory.clone();
        let start = StartGroup { group: Group::One { memory, pids }, topmost: true, delegation };
        let subtree = Subtree::take(root.path(), &start, "k1", 77).expect("takes");
        (root, Leaves::with(Groups::Here(subtree)).in_background())
    }

    fn wait_until(mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(20), "this takes too long");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until a runner may begin.
    fn next_moved(leaves: &mut Leaves) -> (RunnerKey, Result<(), String>) {
        let mut moved = None;
        wait_until(|| {
            moved = leaves.moved().pop();
            moved.is_some()
        });
        moved.expect("a runner may begin")
    }

    #[test]
    fn runner_begins_when_it_is_in_its_leaf() {
        let (root, mut leaves) = fake();
        leaves.announce((WORKER, 5), 9, Bytes::mib(100), LIMITS);
        assert_eq!(leaves.enclose(WORKER, 5), MayBegin::Later);
        assert_eq!(next_moved(&mut leaves), ((WORKER, 5), Ok(())));
        let file = |path: String| std::fs::read_to_string(root.path().join(path)).unwrap_or_default();
        let name = format!("opt-run-k1-{WORKER}-5");
        assert_eq!(file(format!("memory/{name}/cgroup.procs")), "5");
        let limit = Bytes::mib(100) + Bytes::mib(2) + UNCOUNTED;
        assert_eq!(file(format!("memory/{name}/memory.limit_in_bytes")), limit.get().to_string());
        assert_eq!(leaves.evidence(WORKER, 5), None, "Linux has killed nothing");
        // A second leaf cannot have the same name.
        leaves.announce((WORKER, 5), 9, Bytes::mib(100), LIMITS);
        assert_eq!(leaves.enclose(WORKER, 5), MayBegin::Later);
        let (runner, result) = next_moved(&mut leaves);
        assert!(runner == (WORKER, 5) && result.is_err(), "{result:?}");
    }

    #[test]
    fn runner_that_was_moved_ahead_gets_its_limits_when_it_may_begin() {
        let pid = std::process::id();
        let started = procfs::start_time(Path::new("/proc"), pid).expect("reads").expect("is there");
        // The leaf of a process that has ended is not used for another process that has the same pid.
        for (announced, is_the_same) in [(started, true), (started + 1, false)] {
            let (root, mut leaves) = fake();
            let name = format!("memory/opt-run-k1-{WORKER}-{pid}");
            let (ahead, own) = (root.path().join(format!("{name}-{started}")), root.path().join(&name));
            let is_limited = |leaf: &Path| leaf.join("memory.limit_in_bytes").exists();
            leaves.enclose_ahead(WORKER, pid, started);
            wait_until(|| ahead.join("cgroup.procs").exists());
            assert!(!is_limited(&ahead), "no limit is known yet");
            leaves.announce((WORKER, pid), announced, Bytes::mib(100), LIMITS);
            assert_eq!(leaves.enclose(WORKER, pid), MayBegin::Later);
            assert_eq!(next_moved(&mut leaves), ((WORKER, pid), Ok(())));
            assert_eq!((is_limited(&ahead), is_limited(&own)), (is_the_same, !is_the_same));
        }
    }

    #[test]
    fn process_that_has_ended_is_not_moved_ahead() {
        let (root, mut leaves) = fake();
        let pid = std::process::id();
        leaves.enclose_ahead(WORKER, pid, 1);
        leaves.announce((WORKER, pid), 1, Bytes::mib(100), LIMITS);
        assert_eq!(leaves.enclose(WORKER, pid), MayBegin::Later);
        assert_eq!(next_moved(&mut leaves), ((WORKER, pid), Ok(())));
        let name = format!("memory/opt-run-k1-{WORKER}-{pid}");
        assert!(root.path().join(&name).join("memory.limit_in_bytes").exists());
        assert!(!root.path().join(format!("{name}-1")).exists());
    }

    #[test]
    fn leaf_of_a_process_that_never_became_a_runner_is_emptied_at_the_end() {
        let (root, mut leaves) = fake();
        let pid = std::process::id();
        let started = procfs::start_time(Path::new("/proc"), pid).expect("reads").expect("is there");
        leaves.enclose_ahead(WORKER, pid, started);
        let pids = root.path().join(format!("pids/opt-run-k1-{WORKER}-{pid}-{started}"));
        wait_until(|| pids.join("cgroup.procs").exists());
        drop(leaves);
        assert_eq!(std::fs::read_to_string(pids.join("pids.max")).expect("a busy folder stays"), "0");
    }

    #[test]
    fn tasks_refused_while_a_runner_lived_are_seen() {
        let root = tempfile::tempdir().expect("folder");
        let file = root.path().join("pids.events");
        let count = |count: u32| std::fs::write(&file, format!("max {count}\n")).expect("writes");
        count(4);
        let mut leaves = Leaves { refusal_files: vec![file.clone()], ..Leaves::none() };
        leaves.announce((WORKER, 5), 9, Bytes::mib(100), LIMITS);
        assert!(!leaves.were_tasks_refused(WORKER, 5));
        count(5);
        assert!(leaves.were_tasks_refused(WORKER, 5));
        leaves.announce((WORKER, 6), 9, Bytes::mib(100), LIMITS);
        assert!(!leaves.were_tasks_refused(WORKER, 6), "that was before it");
        leaves.forget_worker(WORKER);
        assert!(leaves.refusals_before.is_empty());
    }

    #[test]
    fn runner_without_limits_or_groups_begins_at_once() {
        let (_root, mut leaves) = fake();
        assert_eq!(leaves.enclose(WORKER, 5), MayBegin::Now, "it was not announced");
        leaves.announce((WORKER, 6), 9, Bytes::mib(100), LIMITS);
        leaves.give_up("a test".to_owned());
        assert_eq!((leaves.enclose(WORKER, 6), leaves.absent_because()), (MayBegin::Now, Some("a test")));
        let mut none = Leaves::none().in_background();
        none.announce((WORKER, 5), 9, Bytes::mib(100), LIMITS);
        assert_eq!(none.enclose(WORKER, 5), MayBegin::Now);
        assert!(none.moved().is_empty() && none.descriptor().is_none());
    }

    #[test]
    fn runner_of_a_worker_that_has_ended_does_not_begin() {
        let (root, mut leaves) = fake();
        leaves.announce((WORKER, 5), 9, Bytes::mib(100), LIMITS);
        assert_eq!(leaves.enclose(WORKER, 5), MayBegin::Later);
        leaves.forget_worker(WORKER);
        let other = WorkerId(4);
        leaves.announce((other, 6), 9, Bytes::mib(100), LIMITS);
        assert_eq!(leaves.enclose(other, 6), MayBegin::Later);
        // Moves are done in order.
        assert_eq!(next_moved(&mut leaves), ((other, 6), Ok(())));
        let forgotten = root.path().join(format!("pids/opt-run-k1-{WORKER}-5/pids.max"));
        drop(leaves);
        assert_eq!(
            std::fs::read_to_string(forgotten).expect("a busy folder stays"),
            "0",
            "the rest was killed"
        );
    }
}
