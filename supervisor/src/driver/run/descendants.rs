//! Measures the memory that the descendants of a compiler (such as cc1, as and ld) owe.
//!
//! This file also decides how often the process tree is walked. If Linux lists the children of a process, a walk takes
//! microseconds. Otherwise, a walk has to read every process of the machine, so there is a pause before the next one.
//! Between walks, only descendants that are already known are sampled.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use opt_shared::units::Bytes;

use crate::memory::procfs::{ProcessSample, ProcessSampler};
use crate::memory::tree::TreeWalker;

/// After a walk over all processes, the pause is this many times as long as the walk.
const PAUSE_FACTOR: u32 = 20;

/// The known descendants of watched processes.
pub struct Descendants {
    walker: Option<TreeWalker>,
    trees: BTreeMap<u32, Tree>,
}

/// The known descendants of one process, by pid.
struct Tree {
    members: BTreeMap<u32, ProcessSampler>,
    next_walk: Instant,
}

/// The owed and the reclaimable memory of a tree.
type TreeMemory = (Bytes, Bytes);

impl Descendants {
    pub fn open(proc: &Path) -> Self {
        Self { walker: TreeWalker::open(proc).ok(), trees: BTreeMap::new() }
    }

    /// Returns the memory of all known descendants of `pid`, without that of `pid` itself. `owed` computes how much of
    /// a sample is owed.
    pub fn memory_of(&mut self, proc: &Path, pid: u32, owed: impl Fn(&ProcessSample) -> Bytes) -> TreeMemory {
        let Some(walker) = &mut self.walker else { return (Bytes::ZERO, Bytes::ZERO) };
        let now = Instant::now();
        let tree = self.trees.entry(pid).or_insert_with(|| Tree { members: BTreeMap::new(), next_walk: now });
        if tree.next_walk <= now
            && let Ok(found) = walker.descendants(pid)
        {
            tree.members.retain(|member, _| found.binary_search(member).is_ok());
            for &member in found {
                if !tree.members.contains_key(&member)
                    && let Ok(Some(sampler)) = ProcessSampler::open(proc, member)
                {
                    tree.members.insert(member, sampler);
                }
            }
            let rest = if walker.is_cheap() { Duration::ZERO } else { now.elapsed() * PAUSE_FACTOR };
            tree.next_walk = now + rest;
        }
        let mut total = (Bytes::ZERO, Bytes::ZERO);
        // Reading through the open descriptor of a dead process fails, even if its pid has been reused.
        tree.members.retain(|_, member| {
            let Some(seen) = member.sample().ok().and_then(crate::memory::Seen::alive) else { return false };
            total.0 += owed(&seen);
            total.1 += seen.rss_file.unwrap_or_default();
            true
        });
        total
    }

    /// Returns all descendants of `pid`, from a new walk.
    pub fn list(&mut self, pid: u32) -> Vec<u32> {
        let found = self.walker.as_mut().and_then(|walker| walker.descendants(pid).ok());
        found.map_or_else(Vec::new, <[u32]>::to_vec)
    }

    pub fn forget(&mut self, pid: u32) {
        self.trees.remove(&pid);
    }

    /// Drops the trees of processes that are no longer watched.
    pub fn keep(&mut self, is_watched: impl Fn(u32) -> bool) {
        self.trees.retain(|&pid, _| is_watched(pid));
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    /// Starts a shell whose child has a buffer of 24 MiB, and checks that the tree owes the buffer.
    #[test]
    fn descendants_memory_is_owed_by_the_tree() {
        let buffer_bytes = Bytes::mib(24);
        let script =
            format!("dd if=/dev/zero bs={} count=1 2>/dev/null | sleep 600; true", buffer_bytes.get());
        let mut shell =
            Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).spawn().expect("sh starts");
        let proc = Path::new("/proc");
        let mut descendants = Descendants::open(proc);
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut owed = Bytes::ZERO;
        while owed < buffer_bytes && Instant::now() < deadline {
            owed = descendants.memory_of(proc, shell.id(), |seen| seen.rss_anon.unwrap_or_default()).0;
        }
        let members: Vec<u32> = descendants.trees[&shell.id()].members.keys().copied().collect();
        for pid in members.iter().copied().chain([shell.id()]) {
            let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
            // The shell has not been reaped, so its children's pids cannot have been reused by unrelated processes.
            let _ = kill_process(pid, Signal::KILL);
        }
        shell.wait().expect("is reaped");
        assert!(buffer_bytes <= owed, "{owed} of {buffer_bytes} were seen, in {members:?}");
        let until = Instant::now() + Duration::from_secs(60);
        while descendants.memory_of(proc, shell.id(), |_| Bytes::mib(1)).0 != Bytes::ZERO
            && Instant::now() < until
        {}
        assert_eq!(
            descendants.memory_of(proc, shell.id(), |_| Bytes::mib(1)).0,
            Bytes::ZERO,
            "dead processes owe nothing"
        );
        descendants.keep(|_| false);
        assert!(descendants.trees.is_empty());
    }
}
