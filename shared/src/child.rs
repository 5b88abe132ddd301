//! Short-lived child processes: they are killed with the thread that started them, and the wait for them has a limit.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};

use crate::wait::readable;

/// Starts a program that is killed if the calling thread ends.
pub fn start(command: &mut Command) -> io::Result<Child> {
    // SAFETY: between fork and exec the closure makes one system call; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) }.spawn()
}

/// Waits for a child and returns whether it ended in time. If it did not, it is killed. It is reaped in both cases.
pub fn ends_within(child: &mut Child, timeout: Duration) -> io::Result<bool> {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let ended = readable(&pidfd, timeout)?;
    if !ended {
        child.kill()?;
    }
    child.wait()?;
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_that_does_not_end_in_time_is_killed_and_reaped() {
        for (script, timeout, in_time) in
            [("exit 3", Duration::from_secs(60), true), ("exec sleep 1000", Duration::from_millis(20), false)]
        {
            let mut child = start(Command::new("sh").args(["-c", script])).expect("sh starts");
            assert_eq!(ends_within(&mut child, timeout).expect("waited for"), in_time, "{script}");
            assert!(child.try_wait().expect("asked").is_some(), "{script}: it is reaped");
        }
    }
}
