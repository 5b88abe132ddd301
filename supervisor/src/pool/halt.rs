//! Stops the descendants of a stopped compiler, so that none of them takes more memory before the reason for the kill
//! is recorded. `mod.rs` stops the compiler itself and later kills it. Its descendants end with it.

use std::collections::BTreeSet;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::parent_and_start;

/// The maximum number of walks over the descendants. A walk finds the processes that were started during the previous
/// walk by processes that were still running. The second walk usually finds nothing.
const MAX_WALKS: usize = 8;

/// Stops the descendants of a stopped process. `descendants` returns their current pids.
pub(crate) fn halt_descendants(root: u32, mut descendants: impl FnMut() -> Vec<u32>) {
    let mut halted = BTreeSet::from([root]);
    for _ in 0..MAX_WALKS {
        let before = halted.len();
        for pid in descendants() {
            if !halted.contains(&pid) && halt_child(pid, &halted) {
                halted.insert(pid);
            }
        }
        if halted.len() == before {
            return;
        }
    }
}

/// Stops a process if its parent is one of `parents`, which have been stopped. Returns false if the process has ended,
/// if another process has its pid now, or if its parent has not been stopped yet.
fn halt_child(pid: u32, parents: &BTreeSet<u32>) -> bool {
    let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    let Ok(pidfd) = pidfd_open(raw, PidfdFlags::empty()) else { return false };
    parent_and_start(pid).is_some_and(|(parent, _)| parents.contains(&parent))
        && pidfd_send_signal(&pidfd, Signal::STOP).is_ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::process::kill_process;

    use super::*;

    fn state(pid: u32) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    fn signal(pid: u32, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
        let _ = kill_process(pid, signal);
    }

    /// Returns all descendants of a process, which it finds by reading the parents of all processes.
    fn descendants(root: u32) -> Vec<u32> {
        let all: Vec<(u32, u32)> = std::fs::read_dir("/proc")
            .expect("readable")
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter_map(|pid| Some((pid, parent_and_start(pid)?.0)))
            .collect();
        let mut found = vec![root];
        let mut next = 0;
        while let Some(&parent) = found.get(next) {
            found.extend(all.iter().filter(|&&(_, of)| of == parent).map(|&(pid, _)| pid));
            next += 1;
        }
        found.split_off(1)
    }

    #[test]
    fn whole_tree_of_a_stopped_process_stops() {
        let mut shell = Command::new("sh")
            .args(["-c", "sh -c 'sleep 600; true'; true"])
            .stdin(Stdio::null())
            .spawn()
            .expect("sh starts");
        let tree = || descendants(shell.id());
        let deadline = Instant::now() + Duration::from_secs(60);
        while tree().len() < 2 && Instant::now() < deadline {}
        signal(shell.id(), Signal::STOP);
        halt_descendants(shell.id(), tree);
        let members = tree();
        // A shell that starts a program with `vfork` sleeps (`D`) until the child has executed it. If the child is
        // stopped before that, the shell cannot continue, and its state does not become stopped (`T`).
        let all_stopped = || {
            let [shell, child] = &members[..] else { return false };
            state(*child) == Some('T') && matches!(state(*shell), Some('T' | 'D'))
        };
        while !all_stopped() && Instant::now() < deadline {}
        let stopped = all_stopped();
        for &pid in members.iter().chain([&shell.id()]) {
            // The shell has not been reaped, so its children's pids cannot have been reused by unrelated processes.
            signal(pid, Signal::KILL);
        }
        shell.wait().expect("is reaped");
        assert!(members.len() == 2 && stopped, "{members:?}");
    }

    #[test]
    fn process_outside_the_tree_is_left_alone() {
        let mut other = Command::new("sleep").arg("600").spawn().expect("starts");
        assert!(!halt_child(other.id(), &BTreeSet::from([u32::MAX])), "its parent is not in the tree");
        assert_ne!(state(other.id()), Some('T'));
        other.kill().expect("kills");
        other.wait().expect("is reaped");
        assert!(!halt_child(other.id(), &BTreeSet::from([std::process::id()])), "it has ended");
    }
}
