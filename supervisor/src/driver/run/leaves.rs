//! The leaves of a run: the control group of each runner, and the kernel's counts that explain how the runner ended.
//!
//! Without control groups, runners have no leaf, and the other protections still apply.

use std::collections::BTreeMap;
use std::path::Path;

use opt_shared::causes::chain;
use opt_shared::ids::WorkerId;
use opt_shared::message::GroupLimits;
use opt_shared::units::Bytes;

use crate::cgroup::{Events, Group, Leaf, LeafLimits, StartGroup, Subtree};
use crate::memory::cgroup::own_groups;

/// Memory that the kernel charges to a leaf, and that does not count for the runner's own limit: stacks and other memory
/// of the kernel, and what the runner has printed.
const UNCOUNTED: Bytes = Bytes::mib(4);

/// The leaves of all runners, which are identified by worker and pid.
pub struct Leaves {
    /// The error says why there are no control groups.
    subtree: Result<Subtree, String>,
    /// Why runners get no leaf from now on, although there are control groups.
    given_up: Option<String>,
    limits: BTreeMap<(WorkerId, u32), LeafLimits>,
    leaves: BTreeMap<(WorkerId, u32), Leaf>,
}

impl Leaves {
    /// Takes over a subtree for the run that `key` names.
    pub fn open(key: &str) -> Self {
        Self { subtree: take(key), given_up: None, limits: BTreeMap::new(), leaves: BTreeMap::new() }
    }

    /// Returns an instance without control groups.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        let subtree = Err("not asked for".to_owned());
        Self { subtree, given_up: None, limits: BTreeMap::new(), leaves: BTreeMap::new() }
    }

    /// Returns a name that no other live run has.
    pub fn key(folder: &Path) -> String {
        let digest = blake3::hash(folder.as_os_str().as_encoded_bytes()).to_hex();
        digest.chars().take(12).collect()
    }

    /// Returns the name of the files that limit the memory of leaves. Empty without control groups.
    pub fn limit_file(&self) -> &'static str {
        self.subtree.as_ref().map_or("", Subtree::limit_file)
    }

    /// Returns why there are no control groups, or `None` if there are.
    pub fn absent(&self) -> Option<&str> {
        self.given_up.as_deref().or(self.subtree.as_ref().err().map(String::as_str))
    }

    /// Returns the group below which leaves are created.
    pub fn folder(&self) -> Option<&Path> {
        self.subtree.as_ref().ok().map(Subtree::folder)
    }

    /// Gives up control groups for the rest of the run, because a limit could not be enforced. Live runners keep their
    /// leaves.
    pub fn give_up(&mut self, why: String) {
        self.given_up = Some(why);
    }

    /// Stores the limits of a watched runner, for `enclose`.
    pub fn announce(&mut self, worker: WorkerId, pid: u32, limit: Bytes, group_limits: GroupLimits) {
        if self.absent().is_none() {
            let memory = limit + group_limits.files + UNCOUNTED;
            let limits = LeafLimits { memory, tasks: group_limits.tasks };
            self.limits.insert((worker, pid), limits);
        }
    }

    /// Moves a runner into its leaf. This must happen before the runner executes any code of its candidate.
    pub fn enclose(&mut self, worker: WorkerId, pid: u32) -> Result<(), String> {
        let (None, Ok(subtree)) = (&self.given_up, &mut self.subtree) else { return Ok(()) };
        let Some(limits) = self.limits.remove(&(worker, pid)) else { return Ok(()) };
        let leaf = subtree.leaf(&format!("{worker}-{pid}"), limits).map_err(|error| chain(&error))?;
        match leaf.enter(pid) {
            Ok(()) => {
                self.leaves.insert((worker, pid), leaf);
                Ok(())
            }
            // The runner is dead, because its worker has ended.
            Err(error) if error.is_of_a_dead_process() => {
                subtree.put_aside(leaf);
                Ok(())
            }
            Err(error) => {
                subtree.put_aside(leaf);
                Err(chain(&error))
            }
        }
    }

    /// Kills a runner and everything that it started. The caller also signals it through its pidfd.
    pub fn kill(&self, worker: WorkerId, pid: u32) {
        if let Some(leaf) = self.leaves.get(&(worker, pid)) {
            // Version 2 has no `cgroup.kill` before Linux 5.14. There, only the caller's signal ends the runner.
            let _ = leaf.kill();
        }
    }

    /// Returns the limit and events of a dead runner's leaf, if the kernel killed a process in it at the leaf's limit.
    /// The kernel also counts processes of the leaf that it killed because the whole machine had no memory left.
    pub fn evidence(&self, worker: WorkerId, pid: u32) -> Option<(Bytes, Events)> {
        let leaf = self.leaves.get(&(worker, pid))?;
        let events = leaf.events().ok()?;
        (0 < events.oom_kill && 0 < events.at_limit).then_some((leaf.limits().memory, events))
    }

    pub fn forget(&mut self, worker: WorkerId, pid: u32) {
        self.limits.remove(&(worker, pid));
        if let (Some(leaf), Ok(subtree)) = (self.leaves.remove(&(worker, pid)), &mut self.subtree) {
            subtree.give_back(leaf);
        }
    }

    /// Kills what is left in the leaves of a worker, and removes them. The worker has ended, or it has reaped its
    /// runners without reporting each one.
    pub fn forget_worker(&mut self, worker: WorkerId) {
        let pids: Vec<u32> = self
            .limits
            .keys()
            .chain(self.leaves.keys())
            .filter(|(owner, _)| *owner == worker)
            .map(|&(_, pid)| pid)
            .collect();
        for pid in pids {
            self.kill(worker, pid);
            self.forget(worker, pid);
        }
    }

    /// Returns a leaf for a canary, with this memory limit.
    pub fn for_canary(&mut self, memory: Bytes) -> Result<Leaf, String> {
        /// The most processes and threads in the leaf.
        const TASKS: u32 = 4;
        if let Some(why) = self.absent() {
            return Err(why.to_owned());
        }
        let subtree = self.subtree.as_mut().map_err(|why| why.clone())?;
        subtree.leaf("canary", LeafLimits { memory, tasks: TASKS }).map_err(|error| chain(&error))
    }

    /// Removes the leaf of a canary that has ended.
    pub fn take_back(&mut self, leaf: Leaf) {
        if let Ok(subtree) = &mut self.subtree {
            subtree.give_back(leaf);
        }
    }
}

/// Takes over this process's group, in version 2 if it has the controllers there, and otherwise in version 1.
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
