//! Processes that a run may have left, told without a word of its own: from `/proc`.
//!
//! A worker names its supervisor's pid in its arguments. A runner names nobody, so orphans come to this process (it is
//! their subreaper): a child that no test started is somebody's leak.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// What dies by its parent's death is given this long to be gone.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub command: String,
}

/// Orphans of the whole tree become children of this process, where they can be seen.
pub fn adopt_orphans() {
    rustix::process::set_child_subreaper(Pid::from_raw(1)).expect("Linux has subreapers");
}

/// What is still alive of the run, after some patience.
pub fn left(supervisor: u32, folder: &Path) -> Vec<Process> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let alive = alive(supervisor, folder);
        if alive.is_empty() || deadline <= Instant::now() {
            return alive;
        }
        std::thread::sleep(POLL);
    }
}

/// Ends what a command that did not end has left.
pub fn kill_left(supervisor: u32, folder: &Path) {
    for process in alive(supervisor, folder) {
        let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else { continue };
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        // The number may have been given away between the look and the descriptor.
        if all().iter().any(|it| it.pid == process.pid && it.command == process.command) {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
    }
}

fn alive(supervisor: u32, folder: &Path) -> Vec<Process> {
    let me = std::process::id();
    let (folder, supervisor) = (folder.to_string_lossy().into_owned(), supervisor.to_string());
    let mut all = all();
    let mut found: Vec<Process> = Vec::new();
    loop {
        let (more, others): (Vec<Process>, Vec<Process>) = all.into_iter().partition(|process| {
            let words: Vec<&str> = process.command.split(' ').collect();
            let is_worker = words.get(1) == Some(&"__worker") && words.get(3) == Some(&supervisor.as_str());
            // Compilers have the run's folder in their arguments.
            let is_compiler = process.pid != me && words.iter().any(|word| word.contains(&folder));
            let is_orphan = process.parent == me && words.get(1) == Some(&"__runner");
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
    let entries = std::fs::read_dir("/proc").expect("/proc");
    entries.flatten().filter_map(|entry| process(&entry.path())).collect()
}

fn process(folder: &Path) -> Option<Process> {
    let pid = folder.file_name()?.to_str()?.parse().ok()?;
    let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
    // After the name, which may hold anything: state, parent.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
    if matches!(state, "Z" | "X") {
        return None;
    }
    let command = std::fs::read(folder.join("cmdline")).ok()?;
    let command = String::from_utf8_lossy(&command).trim_end_matches('\0').replace('\0', " ");
    Some(Process { pid, parent, command })
}
