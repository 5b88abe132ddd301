//! Measures how much of its time limit a runner or a compiler has used.
//!
//! The worker adds up how long it has waited for the process. No wait counts for more than its nominal length, even if
//! it takes longer because the machine is suspended, the process tree is frozen, or the worker gets no CPU. Time that
//! the process's first thread spends waiting for a CPU is added to the limit, up to a maximum.

use std::time::{Duration, Instant};

use opt_shared::formula::MAX_STRETCH;
use opt_shared::message::KillReason;
use opt_shared::process_text;

#[derive(Debug)]
pub(crate) struct Timeout {
    pid: u32,
    limit: Duration,
    /// The total length of the waits that count towards the limit.
    spent: Duration,
    /// The time at which the last wait ended.
    since: Instant,
    /// How long the process's first thread had waited for a CPU at the first reading. This is subtracted from later
    /// readings.
    queued_before: Option<Duration>,
    /// The total length of waits that are ignored because the process turned out to be stopped.
    stopped: Duration,
    scope: StopScope,
}

/// Which processes to check when a process does not end: one of them may have been stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopScope {
    Process,
    /// The process and its descendants, such as the `cc1` that a `cc` has started. Do not use this for processes that
    /// run a candidate's code, because that code could stop its own children.
    Tree,
}

/// Waits during which the process is stopped from outside are ignored, up to this total. Later waits count as usual.
const STOPPED_TIMEOUT: Duration = Duration::from_secs(30);
/// The shortest wait after which the worker checks whether the process is stopped. A shorter wait may be part of a
/// timed block, and the check would disturb it.
const MIN_CHECKED_WAIT: Duration = Duration::from_millis(5);
/// The largest number of processes that are checked in a tree. A compiler is allowed far fewer.
const MAX_TREE: usize = 1024;

impl Timeout {
    pub(crate) fn of(pid: u32, limit: Duration) -> Self {
        Self {
            pid,
            limit,
            spent: Duration::ZERO,
            since: Instant::now(),
            queued_before: None,
            stopped: Duration::ZERO,
            scope: StopScope::Process,
        }
    }

    pub(crate) fn with_scope(self, scope: StopScope) -> Self {
        Self { scope, ..self }
    }

    /// Adds the wait that has just ended, but no more than `nominal`. Returns true if the time limit has been reached.
    pub(crate) fn ends_after(&mut self, nominal: Duration) -> bool {
        let now = Instant::now();
        let waited = now.saturating_duration_since(self.since).min(nominal);
        self.since = now;
        if MIN_CHECKED_WAIT <= nominal && self.stopped < STOPPED_TIMEOUT && is_stopped(self.pid, self.scope) {
            self.stopped += waited;
            return false;
        }
        // This is read only after the first wait, because most processes end during that wait.
        let pid = self.pid;
        let before = *self.queued_before.get_or_insert_with(|| queued(pid).unwrap_or_default());
        self.spend(waited, || queued(pid).unwrap_or_default().saturating_sub(before))
    }

    fn spend(&mut self, waited: Duration, queued: impl FnOnce() -> Duration) -> bool {
        self.spent += waited;
        self.limit <= self.spent && self.limit + queued().min(self.limit * (MAX_STRETCH - 1)) <= self.spent
    }
}

/// Returns the reason to record if a process is killed because it has reached its time limit.
pub(crate) fn reason(pid: u32, limit: Duration, scope: StopScope) -> KillReason {
    if is_stopped(pid, scope) { KillReason::Stopped } else { KillReason::Timeout { limit } }
}

/// Returns true if a signal or a tracer has stopped one of the processes in `scope`. A candidate cannot bring about
/// either kind of stop itself.
fn is_stopped(pid: u32, scope: StopScope) -> bool {
    let mut tree = vec![pid];
    let mut next = 0;
    while let Some(&pid) = tree.get(next) {
        next += 1;
        let stat = process_text::read(pid, "stat").unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        if matches!(state, Some('T' | 't')) {
            return true;
        }
        if scope == StopScope::Tree && tree.len() < MAX_TREE {
            tree.extend(children(pid));
        }
    }
    false
}

/// Returns true if a tracer, such as a debugger, is attached to the process. A candidate cannot attach one.
pub(crate) fn is_traced(pid: u32) -> bool {
    let status = process_text::read(pid, "status").unwrap_or_default();
    status.lines().filter_map(|line| line.strip_prefix("TracerPid:")).any(|tracer| tracer.trim() != "0")
}

/// Returns the children of all threads of a process, or none if Linux does not list them.
fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Returns how long the process's first thread has waited for a CPU, or `None` if Linux does not count it.
fn queued(pid: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn timeout(limit: Duration) -> Timeout {
        Timeout::of(std::process::id(), limit)
    }

    #[test]
    fn pause_of_the_machine_counts_as_one_wait() {
        let mut limit = timeout(100 * MS);
        let asleep_for_an_hour = Instant::now().checked_sub(Duration::from_secs(3600));
        // `None` on a machine that was started within the last hour.
        limit.since = asleep_for_an_hour.unwrap_or(limit.since);
        limit.queued_before = Some(Duration::MAX);
        assert!(!limit.ends_after(90 * MS));
        limit.since = asleep_for_an_hour.unwrap_or(limit.since);
        assert_eq!(limit.ends_after(90 * MS), asleep_for_an_hour.is_some());
    }

    #[test]
    fn waiting_for_a_cpu_extends_the_limit_up_to_a_bound() {
        let mut waiting = timeout(100 * MS);
        assert!(!waiting.spend(99 * MS, || unreachable!("nothing is asked before the limit")));
        assert!(!waiting.spend(50 * MS, || 80 * MS));
        assert!(waiting.spend(31 * MS, || 80 * MS));
        let mut starved = timeout(100 * MS);
        assert!(!starved.spend(399 * MS, || Duration::from_secs(100)));
        assert!(starved.spend(MS, || Duration::from_secs(100)));
        let mut idle = timeout(100 * MS);
        assert!(idle.spend(100 * MS, || Duration::ZERO));
    }

    #[test]
    fn stopped_child_counts_for_a_tree_but_not_for_a_process() {
        if !std::path::Path::new("/proc/thread-self/children").exists() {
            eprintln!("not tested: Linux does not list children on this machine");
            return;
        }
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sh -c 'kill -STOP $$' & wait"])
            .spawn()
            .expect("sh");
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_stopped(shell.id(), StopScope::Tree) {
            assert!(Instant::now() < deadline, "its child never stops");
            std::thread::sleep(MS);
        }
        let limit = Duration::from_secs(2);
        assert_eq!(reason(shell.id(), limit, StopScope::Tree), KillReason::Stopped);
        assert_eq!(reason(shell.id(), limit, StopScope::Process), KillReason::Timeout { limit });
        for child in children(shell.id()) {
            let pid = rustix::process::Pid::from_raw(i32::try_from(child).expect("a pid")).expect("a pid");
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kills");
        }
        shell.wait().expect("reaps");
        assert_eq!(reason(shell.id(), limit, StopScope::Tree), KillReason::Timeout { limit }, "it has ended");
    }

    #[test]
    fn only_a_process_with_a_tracer_is_traced() {
        use std::os::unix::process::CommandExt as _;
        let mut traced = std::process::Command::new("sleep");
        traced.arg("600");
        // SAFETY: the closure makes one system call, which is allowed between fork and exec.
        unsafe {
            traced.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            })
        };
        let mut traced = traced.spawn().expect("starts");
        assert!(is_traced(traced.id()), "its parent traces it");
        traced.kill().expect("kills");
        traced.wait().expect("reaps");
        assert!(!is_traced(std::process::id()) && !is_traced(traced.id()));
    }

    #[test]
    fn queued_time_is_read_from_linux() {
        if std::path::Path::new("/proc/self/schedstat").exists() {
            assert!(queued(std::process::id()).is_some());
        } else {
            eprintln!("not tested: Linux has no schedstat on this machine");
        }
        assert_eq!(queued(0), None);
    }
}
