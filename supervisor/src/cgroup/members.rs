//! Kills the members of a group of version 1, which has no file for that.

use std::collections::HashSet;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{CgroupError, read};

/// A member may start others until the group's limit on processes is 0, and these may be missing in the first list.
const ROUNDS: usize = 3;

/// Sends SIGKILL to all members of a group. It has to be certain that the group gets no further members.
pub(super) fn kill(folder: &Path) -> Result<(), CgroupError> {
    for _ in 0..ROUNDS {
        let handles: Vec<_> = members(folder)?
            .into_iter()
            .filter_map(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)))
            .collect();
        if handles.is_empty() {
            break;
        }
        // A pid may have passed to another process before it was opened. That process is not in the group.
        let still = members(folder)?;
        for (pid, handle) in &handles {
            if still.contains(pid) {
                // An error means that the process has ended.
                let _ = pidfd_send_signal(handle, Signal::KILL);
            }
        }
    }
    Ok(())
}

fn members(folder: &Path) -> Result<HashSet<Pid>, CgroupError> {
    let text = read(&folder.join("cgroup.procs"))?;
    // Members that this process cannot see have the pid 0.
    Ok(text.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn all_listed_processes_are_killed() {
        let folder = tempfile::tempdir().expect("folder");
        let sleep = || Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().expect("starts");
        let (mut one, mut other, mut outside) = (sleep(), sleep(), sleep());
        // The first is listed as a process that cannot be seen, and the last has ended long ago.
        let list = format!("0\n{}\n{}\n{}\n", one.id(), other.id(), i32::MAX);
        std::fs::write(folder.path().join("cgroup.procs"), list).expect("writes");
        kill(folder.path()).expect("kills");
        for child in [&mut one, &mut other] {
            assert_eq!(child.wait().expect("ends").signal(), Some(9));
        }
        assert_eq!(outside.try_wait().expect("asks"), None);
        outside.kill().expect("is killed");
        outside.wait().expect("ends");
    }
}
