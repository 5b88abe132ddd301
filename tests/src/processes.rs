//! Processes that a run may have left, told without a word of its own: from `/proc`.
//!
//! A worker names its supervisor's pid in its arguments. A runner names nobody, so orphans come to this process (it is
//! their subreaper): a child that no test started is somebody's leak.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use opt_shared::wait::readable;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::waiting::holds_within;

/// What dies by its parent's death is given this long to be gone.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub arguments: Vec<String>,
}

/// Orphans of the whole tree become children of this process, where they can be seen.
pub fn adopt_orphans() {
    rustix::process::set_child_subreaper(Pid::from_raw(1)).expect("Linux has subreapers");
}

/// What is still alive of the run, after a wait.
pub fn left(supervisor: u32, folder: &Path) -> Vec<Process> {
    let mut left = Vec::new();
    // What is still there when the time is up is the answer.
    let _ = holds_within(TIMEOUT, || {
        left = alive(supervisor, folder);
        left.is_empty()
    });
    left
}

/// Ends what a command that did not end has left.
pub fn kill_left(supervisor: u32, folder: &Path) {
    for process in alive(supervisor, folder) {
        kill_if(process.pid, || look(process.pid).as_ref() == Some(&process));
    }
}

/// SIGKILL, to that process and no other of its number: between the look and the descriptor, the number may have been
/// given away, so `same` looks again.
pub fn kill_if(pid: u32, same: impl FnOnce() -> bool) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    same() && pidfd_send_signal(&pidfd, Signal::KILL).is_ok()
}

/// Whether a child of ours, which nobody has reaped, ends in time.
pub fn ends_within(child: &Child, timeout: Duration) -> bool {
    // An unreaped child of ours keeps its pid.
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
            // Compilers have the run's folder in their arguments.
            let is_compiler = process.pid != me && process.arguments.iter().any(|it| it.contains(&folder));
            let is_orphan = process.parent == me && word(1) == Some("__runner");
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

/// Every process that is not dead, as far as `/proc` shows it.
fn all() -> Vec<Process> {
    pids().filter_map(look).collect()
}

pub fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A process that is not dead. A zombie is: reaping it is for who holds it.
pub fn look(pid: u32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may hold anything: state, parent.
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
