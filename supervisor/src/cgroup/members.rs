//! Kills the members of a version 1 control group one by one, because such a group cannot be killed as a whole.

use std::collections::HashSet;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{CgroupError, read};

/// The maximum number of members to kill in one round. During the round, each of them needs a file descriptor.
const AT_A_TIME: usize = 64;
/// The maximum number of rounds.
const MAX_ROUNDS: usize = 256;

/// Kills all members, including processes that members start in the meantime. Gives up after `MAX_ROUNDS` rounds,
/// without an error.
pub(super) fn kill(folder: &Path) -> Result<(), CgroupError> {
    let mut signalled = HashSet::new();
    for _ in 0..MAX_ROUNDS {
        let left = members(folder)?.into_iter().filter(|pid| !signalled.contains(pid));
        let next: Vec<Pid> = left.take(AT_A_TIME).collect();
        if next.is_empty() {
            break;
        }
        let open = |pid: &Pid| Some((*pid, pidfd_open(*pid, PidfdFlags::empty()).ok()?));
        let handles: Vec<_> = next.iter().filter_map(open).collect();
        // Between listing a pid and opening it, the pid may have passed to another process. The second list shows
        // whether the process that was opened is in the group.
        let still = members(folder)?;
        for (pid, handle) in &handles {
            if still.contains(pid) {
                // An error means that the process has ended.
                let _ = pidfd_send_signal(handle, Signal::KILL);
            }
        }
        signalled.extend(next);
    }
    Ok(())
}

fn members(folder: &Path) -> Result<HashSet<Pid>, CgroupError> {
    let text = read(&folder.join("cgroup.procs"))?;
    // The end of a long list is not read, so the last line may contain only a part of a number. Ignore it unless it
    // ends in a newline.
    let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    // Members that this process cannot see have the pid 0.
    Ok(lines.filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn listed_processes_are_killed_except_on_an_incomplete_last_line() {
        let folder = tempfile::tempdir().expect("folder");
        let sleep = || Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().expect("starts");
        let (mut one, mut other, mut outside) = (sleep(), sleep(), sleep());
        let list = format!("0\n{}\n{}\n{}\n{}", one.id(), other.id(), i32::MAX, outside.id());
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
