//! Starts, watches, stops, kills and reaps worker processes. During a run, no other module of the supervisor starts or
//! reaps processes.
//!
//! This module also does the handshake with workers, runs the threads of their channels, and keeps the pidfds of
//! workers and runners. It reports `PoolEvent`s, and carries out the decisions of its callers. Signals are sent only
//! through pidfds.
//!
//! A worker reaps its own runners. If a runner outlives its worker, this module reaps it, which is possible because the
//! supervisor is a subreaper (`PR_SET_CHILD_SUBREAPER`). In this module, a compiler is also called a runner.

mod canary;
mod channel;
mod halt;
mod spawn;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use opt_shared::causes::is_shortage;
use opt_shared::device::Device;
use opt_shared::ids::WorkerId;
use opt_shared::message::{FromWorker, Role, ToWorker};
use opt_shared::wait::readable;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

pub use self::canary::Canary;
use self::channel::Channel;
pub(crate) use self::halt::halt_descendants;
pub use self::spawn::{Executable, SpawnError};

/// An event from a worker's thread or a pidfd.
#[derive(Debug)]
pub enum PoolEvent {
    Ready {
        worker: WorkerId,
        pid: u32,
    },
    /// The handshake failed. If the process was started, it must still be killed.
    NotReady {
        worker: WorkerId,
        why: String,
    },
    Message {
        worker: WorkerId,
        message: FromWorker,
    },
    /// The worker has died and was reaped. If `left_runners` is set, some of its runners were killed and have not been
    /// reaped yet. `OrphansEnded` then follows.
    Gone {
        worker: WorkerId,
        how: String,
        left_runners: bool,
    },
    /// The last runner that a dead worker left behind has ended.
    OrphansEnded {
        worker: WorkerId,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("creating the event descriptor of the pool")]
    Wake(#[source] rustix::io::Errno),
    #[error("becoming the reaper of orphaned runners")]
    Subreaper(#[source] rustix::io::Errno),
    #[error("opening this program's own file")]
    Executable(#[source] std::io::Error),
}

/// A worker that has not been reaped yet.
struct Member {
    pid: u32,
    pidfd: OwnedFd,
    channel: Channel,
    runners: BTreeMap<u32, Runner>,
    /// Whether the worker was stopped. It is killed once the reason has been recorded.
    halted: bool,
}

struct Runner {
    pidfd: OwnedFd,
    /// Whether the runner was stopped. It is killed once the reason has been recorded.
    halted: bool,
}

/// The reason why the supervisor cannot watch a runner.
#[derive(Debug)]
pub enum Unwatched {
    /// The runner or its worker has died.
    Gone,
    /// This process has no file descriptor or no memory left for watching. The runner may be alive.
    Short(String),
    /// Another system call failed. The runner may be alive.
    Failed(String),
}

/// A runner that a dead worker left behind.
struct Orphan {
    worker: WorkerId,
    pid: u32,
    pidfd: OwnedFd,
}

/// All workers of a run, and the runners that dead workers left behind.
pub struct Pool {
    executable: Executable,
    /// The device that the kernels of all workers run on.
    device: Device,
    members: BTreeMap<WorkerId, Member>,
    events: Receiver<PoolEvent>,
    event_sender: Sender<PoolEvent>,
    wake: std::sync::Arc<OwnedFd>,
    /// The runners of dead workers. They have been killed, and are kept here until they are reaped.
    orphans: Vec<Orphan>,
    /// The dead workers that left runners behind. `OrphansEnded` is reported when the last runner of such a worker has
    /// ended.
    with_orphans: BTreeSet<WorkerId>,
    log_folder: PathBuf,
    children: ChildrenOf,
    /// The pids and start times of the children that this process already had when the pool was created. The pool
    /// leaves them alone, because it did not start them.
    inherited: BTreeSet<(u32, u64)>,
}

/// A function that returns the pids of all children of a process. It is called when the pool is created and when it is
/// dropped. It is also called when a worker has died, unless the worker exited with code 0 and left no known runner.
pub type ChildrenOf = fn(u32) -> Vec<u32>;

/// How long the pool waits, at the end of the run, for killed processes to die.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(20);

impl Pool {
    pub fn new(device: Device, log_folder: PathBuf, children: ChildrenOf) -> Result<Self, PoolError> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(PoolError::Subreaper)?;
        let wake = rustix::event::eventfd(
            0,
            rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK,
        )
        .map_err(PoolError::Wake)?;
        let (event_sender, events) = unbounded();
        Ok(Self {
            executable: Executable::open().map_err(PoolError::Executable)?,
            device,
            members: BTreeMap::new(),
            events,
            event_sender,
            wake: std::sync::Arc::new(wake),
            orphans: Vec::new(),
            with_orphans: BTreeSet::new(),
            log_folder,
            children,
            inherited: children(std::process::id()).into_iter().filter_map(pid_and_start).collect(),
        })
    }

    /// Starts a worker and returns its pid. Events report its progress. The calling thread must live as long as the
    /// run, because the worker's parent-death signal fires when that thread ends.
    pub fn start(&mut self, worker: WorkerId, role: Role) -> Result<u32, SpawnError> {
        let log = self.log_folder.join(format!("{worker}.stderr"));
        let spawned = spawn::start_worker(&self.executable, role, self.device, &log)?;
        let pid = spawned.pid;
        let channel = Channel::open(
            worker,
            pid,
            spawned.server,
            spawned.nonce,
            self.event_sender.clone(),
            std::sync::Arc::clone(&self.wake),
        );
        self.members.insert(
            worker,
            Member { pid, pidfd: spawned.pidfd, channel, runners: BTreeMap::new(), halted: false },
        );
        Ok(pid)
    }

    pub fn executable(&self) -> &Executable {
        &self.executable
    }

    pub fn send(&self, worker: WorkerId, message: ToWorker) {
        if let Some(member) = self.members.get(&worker) {
            member.channel.send(message);
        }
    }

    /// Stops a worker and its runners, which a stopped worker cannot watch. The caller calls `kill_worker` when the
    /// reason has been recorded.
    pub fn halt_worker(&mut self, worker: WorkerId) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.halted = true;
            member.halt();
        }
    }

    /// Stops a runner. The caller calls `kill_runner` when the reason has been recorded.
    pub fn halt_runner(&mut self, worker: WorkerId, pid: u32) {
        if let Some(runner) = self.members.get_mut(&worker).and_then(|member| member.runners.get_mut(&pid)) {
            runner.halted = true;
            let _ = pidfd_send_signal(&runner.pidfd, Signal::STOP);
        }
    }

    /// Stops all halted processes again, in case another process has made them continue.
    pub fn halt_again(&self) {
        for member in self.members.values() {
            member.halt();
        }
    }

    pub fn kill_worker(&self, worker: WorkerId) {
        if let Some(member) = self.members.get(&worker) {
            // This fails if the worker is already a zombie. In this case, its pidfd reports its death.
            let _ = pidfd_send_signal(&member.pidfd, Signal::KILL);
        }
    }

    /// Opens a pidfd for a runner that its worker reported, and checks that it is a child of the worker with the
    /// reported start time.
    pub fn watch_runner(&mut self, worker: WorkerId, pid: u32, start_time: u64) -> Result<(), Unwatched> {
        let Some(member) = self.members.get_mut(&worker) else { return Err(Unwatched::Gone) };
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Unwatched::Gone)?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(|errno| match errno {
            rustix::io::Errno::SRCH => Unwatched::Gone,
            errno if is_shortage(&errno) => Unwatched::Short(format!("opening a pidfd: {errno}")),
            errno => Unwatched::Failed(format!("opening a pidfd: {errno}")),
        })?;
        let (parent, started) =
            parent_and_start(pid).ok_or_else(|| match std::fs::File::open("/proc/self/stat") {
                Err(error) if is_shortage(&error) => Unwatched::Short(format!("reading its parent: {error}")),
                _ => Unwatched::Gone,
            })?;
        // If the parent or the start time differs, another process has the pid now, or the worker has died.
        if parent != member.pid || started != start_time {
            return Err(Unwatched::Gone);
        }
        member.runners.insert(pid, Runner { pidfd, halted: false });
        Ok(())
    }

    /// Kills a runner that was halted before. Returns false if the worker has no halted runner with this pid. If the
    /// runner with this pid is not halted, it was started later and is left alone.
    pub fn kill_runner(&self, worker: WorkerId, pid: u32) -> bool {
        let runner = self.members.get(&worker).and_then(|member| member.runners.get(&pid));
        match runner.filter(|runner| runner.halted) {
            Some(runner) => {
                let _ = pidfd_send_signal(&runner.pidfd, Signal::KILL);
                true
            }
            None => false,
        }
    }

    pub fn forget_runner(&mut self, worker: WorkerId, pid: u32) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.runners.remove(&pid);
        }
    }

    /// Returns a descriptor that is readable when a channel has sent an event. Only the pidfds show that processes have
    /// died.
    pub fn wake_descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Returns the pidfds of all workers, and of the runners that dead workers left behind. A pidfd is readable when
    /// its process is dead.
    pub fn pidfds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let orphans = self.orphans.iter().map(|orphan| orphan.pidfd.as_fd());
        self.members.values().map(|member| member.pidfd.as_fd()).chain(orphans)
    }

    /// Forgets all runners of a worker after the worker has reaped them, even if it did not report the end of each.
    pub fn forget_runners(&mut self, worker: WorkerId) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.runners.clear();
        }
    }

    pub fn pid(&self, worker: WorkerId) -> Option<u32> {
        self.members.get(&worker).map(|member| member.pid)
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the events since the last call. The event of a worker's death comes after the messages from this worker
    /// that have arrived.
    pub fn events(&mut self) -> Vec<PoolEvent> {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        let dead: Vec<WorkerId> =
            self.members.iter().filter(|(_, member)| is_dead(&member.pidfd)).map(|(&id, _)| id).collect();
        let mut gone = Vec::new();
        for worker in dead {
            if let Some(member) = self.members.remove(&worker) {
                let how = self.reap_worker(worker, member);
                let left_runners = self.has_orphans(worker);
                if left_runners {
                    self.with_orphans.insert(worker);
                }
                gone.push(PoolEvent::Gone { worker, how, left_runners });
            }
        }
        gone.extend(self.reap_orphans());
        let mut all: Vec<PoolEvent> = self.events.try_iter().collect();
        all.extend(gone);
        all
    }

    /// Reaps a dead worker, and kills the runners that it left behind. Returns a description of how the worker ended,
    /// such as `signal 9`.
    fn reap_worker(&mut self, worker: WorkerId, member: Member) -> String {
        let Member { pidfd, channel, runners, .. } = member;
        let (how, orderly) = describe_end(&pidfd);
        // If the worker died before the handshake, its reader thread is still waiting. This call ends the thread.
        channel.close();
        // The runners of a dead worker become children of this process, because it is a subreaper. Linux kills them
        // when their worker dies. To be sure, the pool kills them again.
        let mut remaining: Vec<(u32, OwnedFd)> =
            runners.into_iter().map(|(pid, runner)| (pid, runner.pidfd)).collect();
        // Skip the search for unknown runners if the worker exited as ordered, because it has then reaped its runners.
        // The more processes the machine has, the longer the search takes, and it may delay a profiler.
        if !(orderly && remaining.is_empty()) {
            remaining.extend(self.unknown_children());
        }
        self.kill_orphans(worker, remaining);
        how
    }

    /// Returns the children of this process that are neither workers nor known orphans, and that did not exist before
    /// the pool.
    fn unknown_children(&self) -> Vec<(u32, OwnedFd)> {
        let workers = self.members.values().map(|member| member.pid);
        let known_pids: BTreeSet<u32> = workers.chain(self.orphans.iter().map(|orphan| orphan.pid)).collect();
        (self.children)(std::process::id())
            .into_iter()
            .filter(|pid| !known_pids.contains(pid) && !self.is_inherited(*pid))
            .filter_map(|pid| {
                let raw = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
                Some((pid, pidfd_open(raw, PidfdFlags::empty()).ok()?))
            })
            .collect()
    }

    fn is_inherited(&self, pid: u32) -> bool {
        !self.inherited.is_empty() && pid_and_start(pid).is_some_and(|it| self.inherited.contains(&it))
    }

    fn kill_orphans(&mut self, worker: WorkerId, processes: Vec<(u32, OwnedFd)>) {
        for (pid, pidfd) in processes {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            self.orphans.push(Orphan { worker, pid, pidfd });
        }
        // Linux killed most of these processes when the worker died, so they can be reaped now.
        self.orphans.retain(|orphan| !reap_if_dead(&orphan.pidfd));
    }

    fn has_orphans(&self, worker: WorkerId) -> bool {
        self.orphans.iter().any(|orphan| orphan.worker == worker)
    }

    /// Reaps dead orphans, and returns an event for each worker whose last orphan is gone. Never waits, because a
    /// process that is stuck in a system call must not block the run.
    fn reap_orphans(&mut self) -> Vec<PoolEvent> {
        self.orphans.retain(|orphan| !reap_if_dead(&orphan.pidfd));
        let back: Vec<WorkerId> =
            self.with_orphans.iter().copied().filter(|&worker| !self.has_orphans(worker)).collect();
        self.with_orphans.retain(|worker| !back.contains(worker));
        back.into_iter().map(|worker| PoolEvent::OrphansEnded { worker }).collect()
    }
}

impl Member {
    /// Stops a halted worker with all its runners, or only the halted runners if the worker is not halted.
    fn halt(&self) {
        if self.halted {
            let _ = pidfd_send_signal(&self.pidfd, Signal::STOP);
        }
        for runner in self.runners.values().filter(|runner| self.halted || runner.halted) {
            let _ = pidfd_send_signal(&runner.pidfd, Signal::STOP);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for member in self.members.values() {
            let _ = pidfd_send_signal(&member.pidfd, Signal::KILL);
        }
        for (worker, member) in std::mem::take(&mut self.members) {
            dies_within(&member.pidfd, ORPHAN_TIMEOUT);
            self.reap_worker(worker, member);
        }
        // It is unknown which worker started these runners, but at the end of the run this no longer matters.
        let remaining = self.unknown_children();
        self.kill_orphans(WorkerId(0), remaining);
        let deadline = Instant::now() + ORPHAN_TIMEOUT;
        for orphan in self.orphans.drain(..) {
            dies_within(&orphan.pidfd, deadline.saturating_duration_since(Instant::now()));
            reap_if_dead(&orphan.pidfd);
        }
    }
}

/// Reaps a process if it is dead and a child of this process. Returns whether it is dead.
fn reap_if_dead(pidfd: &OwnedFd) -> bool {
    let dead = is_dead(pidfd);
    if dead {
        let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
    dead
}

fn is_dead(pidfd: &OwnedFd) -> bool {
    dies_within(pidfd, Duration::ZERO)
}

fn dies_within(pidfd: &OwnedFd, timeout: Duration) -> bool {
    readable(pidfd, timeout).unwrap_or(false)
}

/// Reaps a dead process. Returns a description of its end, and whether it exited with code 0.
fn describe_end(pidfd: &OwnedFd) -> (String, bool) {
    let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
    let orderly = matches!(&status, Ok(Some(status)) if status.exit_status() == Some(0));
    let how = match status {
        Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "an unknown end".to_owned(),
        },
        Ok(None) => "an unknown end".to_owned(),
        Err(errno) => format!("an end that could not be read: {errno}"),
    };
    (how, orderly)
}

fn pid_and_start(pid: u32) -> Option<(u32, u64)> {
    parent_and_start(pid).map(|(_, start)| (pid, start))
}

fn parent_and_start(pid: u32) -> Option<(u32, u64)> {
    let text = opt_shared::process_text::read(pid, "stat").ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    // The fields after the name: field 3 is the state, 4 the parent, 22 the start time.
    let parent = fields.nth(1)?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some((parent, started))
}
