//! Starts short-lived child processes, which are killed if the thread that started them ends, and waits for them with a
//! time limit.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};

use crate::wait::readable;

/// Starts a program that is killed if the calling thread ends.
pub fn start(command: &mut Command) -> io::Result<Child> {
    // SAFETY: between fork and exec, the closure makes one system call. It allocates nothing and takes no lock.
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) }.spawn()
}

/// Waits for a child and returns true if it ended in time. A child that did not end in time is killed. In both cases,
/// it is reaped.
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
    fn child_is_reaped_whether_or_not_it_ends_in_time() {
        for (script, timeout, in_time) in
            [("exit 3", Duration::from_secs(60), true), ("exec sleep 1000", Duration::from_millis(20), false)]
        {
            let mut child = start(Command::new("sh").args(["-c", script])).expect("sh starts");
            assert_eq!(ends_within(&mut child, timeout).expect("waited for"), in_time, "{script}");
            assert!(child.try_wait().expect("asked").is_some(), "{script}: the child is reaped");
        }
    }
}
