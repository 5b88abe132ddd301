//! What the descendants of a compiler owe: cc1, as, ld.
//!
//! Owns how often the tree is walked. Where the kernel lists children a walk costs microseconds; where it does not, it
//! costs by the number of processes on the machine, so it may take a small share of the time only, and between two
//! walks those that were found are looked at.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use opt_shared::units::Bytes;

use crate::memory::procfs::{ProcessSample, ProcessSampler};
use crate::memory::tree::TreeWalker;

/// At most one part in so many of the time goes into walks over all processes.
const SHARE: u32 = 20;

pub struct Descendants {
    walker: Option<TreeWalker>,
    trees: BTreeMap<u32, Tree>,
}

struct Tree {
    members: BTreeMap<u32, ProcessSampler>,
    next_walk: Instant,
}

/// Owed, and reclaimable.
type Weight = (Bytes, Bytes);

impl Descendants {
    pub fn open(proc: &Path) -> Self {
        Self { walker: TreeWalker::open(proc).ok(), trees: BTreeMap::new() }
    }

    /// All that live below `pid`, itself excluded. `owed` says what counts of one.
    pub fn weigh(&mut self, proc: &Path, pid: u32, owed: impl Fn(&ProcessSample) -> Bytes) -> Weight {
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
            let rest = if walker.is_cheap() { Duration::ZERO } else { now.elapsed() * SHARE };
            tree.next_walk = now + rest;
        }
        let mut weight = (Bytes::ZERO, Bytes::ZERO);
        // A descriptor of one that has died says so, whoever has its pid now.
        tree.members.retain(|_, member| {
            let Some(seen) = member.sample().ok().and_then(crate::memory::Seen::alive) else { return false };
            weight.0 += owed(&seen);
            weight.1 += seen.rss_file.unwrap_or_default();
            true
        });
        weight
    }

    pub fn forget(&mut self, pid: u32) {
        self.trees.remove(&pid);
    }

    /// Drops the trees of processes that are not watched any more.
    pub fn keep(&mut self, lives: impl Fn(u32) -> bool) {
        self.trees.retain(|&pid, _| lives(pid));
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    /// A shell whose child holds 24 MiB in a buffer that nobody takes off it: the tree owes that.
    #[test]
    fn a_childs_memory_counts_for_its_tree() {
        let held = Bytes::mib(24);
        let script = format!("dd if=/dev/zero bs={} count=1 2>/dev/null | sleep 600; true", held.get());
        let mut shell =
            Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).spawn().expect("sh starts");
        let proc = Path::new("/proc");
        let mut descendants = Descendants::open(proc);
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut owed = Bytes::ZERO;
        while owed < held && Instant::now() < deadline {
            owed = descendants.weigh(proc, shell.id(), |seen| seen.rss_anon.unwrap_or_default()).0;
        }
        let members: Vec<u32> = descendants.trees[&shell.id()].members.keys().copied().collect();
        for pid in members.iter().copied().chain([shell.id()]) {
            let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
            // Children of a shell that is not reaped yet: their pids are still theirs, or they are gone.
            let _ = kill_process(pid, Signal::KILL);
        }
        shell.wait().expect("is reaped");
        assert!(held <= owed, "{owed} of {held} were seen, in {members:?}");
        let until = Instant::now() + Duration::from_secs(60);
        while descendants.weigh(proc, shell.id(), |_| Bytes::mib(1)).0 != Bytes::ZERO
            && Instant::now() < until
        {}
        assert_eq!(
            descendants.weigh(proc, shell.id(), |_| Bytes::mib(1)).0,
            Bytes::ZERO,
            "the dead owe nothing"
        );
        descendants.keep(|_| false);
        assert!(descendants.trees.is_empty());
    }
}
