//! Finds processes that a run may have left behind, using only `/proc`.
//!
//! A worker has its supervisor's pid in its arguments, but a runner does not. This process is therefore the subreaper
//! of all its descendants: orphans become its children, and a child that no test started was leaked.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use opt_shared::wait::readable;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::waiting::holds_within;

/// The time limit for processes to die after their parent has died.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub arguments: Vec<String>,
}

/// Makes this process the parent of all orphans among its descendants.
pub fn adopt_orphans() {
    rustix::process::set_child_subreaper(Pid::from_raw(1)).expect("Linux has subreapers");
}

/// Waits until no process of a run is alive, and returns those that are still alive after the timeout.
pub fn left(supervisor: u32, folder: &Path) -> Vec<Process> {
    let mut found = Vec::new();
    let _ = holds_within(TIMEOUT, || {
        found = alive(supervisor, folder);
        found.is_empty()
    });
    found
}

/// Kills all processes of a command that did not end in time.
pub fn kill_left(supervisor: u32, folder: &Path) {
    for process in alive(supervisor, folder) {
        kill_if(process.pid, || read_process(process.pid).as_ref() == Some(&process));
    }
}

/// Sends SIGKILL to a process in the same way as `signal_if`. Returns whether the signal was sent.
pub fn kill_if(pid: u32, same: impl FnOnce() -> bool) -> bool {
    signal_if(pid, Signal::KILL, same)
}

/// Sends a signal to a process if `same` returns true. The pid may have been reused before the pidfd was opened, so
/// `same` must check that it is still the same process. Returns whether the signal was sent.
pub fn signal_if(pid: u32, signal: Signal, same: impl FnOnce() -> bool) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    same() && pidfd_send_signal(&pidfd, signal).is_ok()
}

/// Returns whether a child ends before the timeout. Does not reap the child.
pub fn ends_within(child: &Child, timeout: Duration) -> bool {
    // The pid of a child that has not been reaped cannot be reused.
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("a pidfd of a child");
    readable(&pidfd, timeout).expect("waiting for the program")
}

fn alive(supervisor: u32, folder: &Path) -> Vec<Process> {
    let me = std::process::id();
    let (folder, supervisor) = (folder.to_string_lossy().into_owned(), supervisor.to_string());
    let mut all = all();
    let mut found: Vec<Process> = Vec::new();
    loop {
        let (more, others): (Vec<Process>, Vec<Process>) = all.into_iter().partition(|process| {
            let word = |at: usize| process.arguments.get(at).map(String::as_str);
            let is_worker = word(1) == Some("__worker") && word(3) == Some(supervisor.as_str());
            // A compiler can be recognised because the run's folder is in its arguments.
            let is_compiler = process.pid != me && process.arguments.iter().any(|it| it.contains(&folder));
            let is_orphan = process.parent == me && matches!(word(1), Some("__runner" | "__zygote"));
            let is_child = found.iter().any(|parent| parent.pid == process.parent);
            is_worker || is_compiler || is_orphan || is_child
        });
        if more.is_empty() {
            return found;
        }
        found.extend(more);
        all = others;
    }
}

/// Returns all live processes in `/proc`.
fn all() -> Vec<Process> {
    pids().filter_map(read_process).collect()
}

pub fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Reads a live process. Returns `None` if the process has ended. A zombie counts as ended, because it only waits for
/// its parent to reap it.
pub fn read_process(pid: u32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain any character, so search for its end from the right. The state and the parent follow it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
    if matches!(state, "Z" | "X") {
        return None;
    }
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = String::from_utf8_lossy(&line);
    let arguments = line.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
    Some(Process { pid, parent, arguments })
}
