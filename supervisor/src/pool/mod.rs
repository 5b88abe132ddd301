//! Worker processes: the only place in the supervisor that executes, kills and waits for processes.
//!
//! Owns starting a worker, the handshake, the threads of its channel, the pidfds of workers and runners, and
//! reaping. Decides nothing: it reports `PoolEvent`s and does what it is called for. Signals go only through
//! pidfds. Workers are reaped only here; runners are reaped by their workers, or here if they outlive them (the
//! supervisor is a subreaper).

mod canary;
mod channel;
mod spawn;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use opt_shared::device::Device;
use opt_shared::ids::WorkerId;
use opt_shared::message::{FromWorker, Role, ToWorker};
use opt_shared::wait::readable;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

pub use self::canary::Canary;
use self::channel::Channel;
pub use self::spawn::{Executable, SpawnError};

/// An event from a worker's thread or a pidfd.
#[derive(Debug)]
pub enum PoolEvent {
    Ready {
        worker: WorkerId,
        pid: u32,
    },
    /// The handshake failed; the process, if there is one, still has to be killed.
    NotReady {
        worker: WorkerId,
        why: String,
    },
    Message {
        worker: WorkerId,
        message: FromWorker,
    },
    /// The pidfd fired, and the process has been reaped. `left_runners`: some of its runners are alive, and are
    /// killed now.
    Gone {
        worker: WorkerId,
        how: String,
        left_runners: bool,
    },
    /// The last of those runners has ended.
    Returned {
        worker: WorkerId,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("making the event descriptor of the pool")]
    Wake(#[source] rustix::io::Errno),
    #[error("becoming the reaper of orphaned runners")]
    Subreaper(#[source] rustix::io::Errno),
    #[error("opening this program's own file")]
    Executable(#[source] std::io::Error),
}

struct Member {
    pid: u32,
    pidfd: OwnedFd,
    channel: Channel,
    runners: BTreeMap<u32, Runner>,
    /// It is stopped and will be killed.
    doomed: bool,
}

struct Runner {
    pidfd: OwnedFd,
    doomed: bool,
}

/// Why a runner cannot be watched.
#[derive(Debug)]
pub enum Unwatched {
    /// It has died.
    Gone,
    /// As far as is known, it is alive.
    Failed(String),
}

/// A process that a dead worker left behind.
struct Orphan {
    worker: WorkerId,
    pid: u32,
    pidfd: OwnedFd,
}

pub struct Pool {
    executable: Executable,
    /// What every worker's kernels run on.
    device: Device,
    /// The workers' folder; their one-shot sockets are below it.
    members: BTreeMap<WorkerId, Member>,
    events: Receiver<PoolEvent>,
    teller: Sender<PoolEvent>,
    wake: std::sync::Arc<OwnedFd>,
    /// Killed runners of dead workers, which are reaped here.
    orphans: Vec<Orphan>,
    /// Dead workers with live runners; each is reported once, when its last runner has ended.
    returning: BTreeSet<WorkerId>,
    log_folder: PathBuf,
    children: ChildrenOf,
    /// Children that this process had before it became a supervisor, with their start times. Whoever called
    /// `exec` started them, so they are not ours.
    inherited: BTreeSet<(u32, u64)>,
}

/// Returns every child of a process. Called only when a worker has died.
pub type ChildrenOf = fn(u32) -> Vec<u32>;

/// How long killed processes may take to die at the end of the run.
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
        let (teller, events) = unbounded();
        Ok(Self {
            executable: Executable::open().map_err(PoolError::Executable)?,
            device,
            members: BTreeMap::new(),
            events,
            teller,
            wake: std::sync::Arc::new(wake),
            orphans: Vec::new(),
            returning: BTreeSet::new(),
            log_folder,
            children,
            inherited: children(std::process::id()).into_iter().filter_map(with_start).collect(),
        })
    }

    /// Starts a worker, and reports its progress in events. Call it from a thread that lives as long as the run:
    /// the worker's parent-death signal fires when the thread that started it ends.
    pub fn start(&mut self, worker: WorkerId, role: Role) -> Result<u32, SpawnError> {
        let log = self.log_folder.join(format!("{worker}.stderr"));
        let spawned = spawn::worker(&self.executable, role, self.device, &log)?;
        let pid = spawned.pid;
        let channel = Channel::open(
            worker,
            pid,
            spawned.server,
            spawned.nonce,
            self.teller.clone(),
            std::sync::Arc::clone(&self.wake),
        );
        self.members.insert(
            worker,
            Member { pid, pidfd: spawned.pidfd, channel, runners: BTreeMap::new(), doomed: false },
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

    /// Stops a worker, and its runners, which it can no longer watch. `kill_worker` follows when the reason is on
    /// record.
    pub fn halt_worker(&mut self, worker: WorkerId) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.doomed = true;
            member.halt();
        }
    }

    pub fn halt_runner(&mut self, worker: WorkerId, pid: u32) {
        if let Some(runner) = self.members.get_mut(&worker).and_then(|member| member.runners.get_mut(&pid)) {
            runner.doomed = true;
            let _ = pidfd_send_signal(&runner.pidfd, Signal::STOP);
        }
    }

    /// Stops them again, in case they were woken.
    pub fn halt_the_doomed(&self) {
        for member in self.members.values() {
            member.halt();
        }
    }

    pub fn kill_worker(&self, worker: WorkerId) {
        if let Some(member) = self.members.get(&worker) {
            // It may be a zombie already; then its pidfd will report it.
            let _ = pidfd_send_signal(&member.pidfd, Signal::KILL);
        }
    }

    /// Opens a pidfd for a runner that its worker reported, and checks that it is the right process: a child of
    /// the worker, with the reported start time.
    pub fn watch_runner(&mut self, worker: WorkerId, pid: u32, start_time: u64) -> Result<(), Unwatched> {
        let Some(member) = self.members.get_mut(&worker) else { return Err(Unwatched::Gone) };
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Unwatched::Gone)?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(|errno| match errno {
            rustix::io::Errno::SRCH => Unwatched::Gone,
            errno => Unwatched::Failed(format!("opening a pidfd: {errno}")),
        })?;
        let (parent, started) = parent_and_start(pid).ok_or(Unwatched::Gone)?;
        // The pid belongs to another process now, or the worker has died meanwhile.
        if parent != member.pid || started != start_time {
            return Err(Unwatched::Gone);
        }
        member.runners.insert(pid, Runner { pidfd, doomed: false });
        Ok(())
    }

    /// Kills a runner that was halted before; otherwise the pid might belong to another process by now. Returns
    /// false if there is none.
    pub fn kill_runner(&self, worker: WorkerId, pid: u32) -> bool {
        let runner = self.members.get(&worker).and_then(|member| member.runners.get(&pid));
        match runner.filter(|runner| runner.doomed) {
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

    /// Readable when an event waits.
    pub fn wake_descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Readable when a worker, or a runner that it left, is dead.
    pub fn pidfds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let orphans = self.orphans.iter().map(|orphan| orphan.pidfd.as_fd());
        self.members.values().map(|member| member.pidfd.as_fd()).chain(orphans)
    }

    /// Forgets all runners of a worker, which has reaped them, whether it reported each or not.
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

    /// Everything that has happened since the last call. Messages of a worker that have arrived come before its
    /// death; later ones are dropped.
    pub fn events(&mut self) -> Vec<PoolEvent> {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        let dead: Vec<WorkerId> =
            self.members.iter().filter(|(_, member)| is_dead(&member.pidfd)).map(|(&id, _)| id).collect();
        let mut gone = Vec::new();
        for worker in dead {
            if let Some(member) = self.members.remove(&worker) {
                let how = self.bury(worker, member);
                let left_runners = self.has_orphans(worker);
                if left_runners {
                    self.returning.insert(worker);
                }
                gone.push(PoolEvent::Gone { worker, how, left_runners });
            }
        }
        gone.extend(self.reap_orphans());
        let mut all: Vec<PoolEvent> = self.events.try_iter().collect();
        all.extend(gone);
        all
    }

    /// Reaps a dead worker and kills the runners that it left.
    fn bury(&mut self, worker: WorkerId, member: Member) -> String {
        let Member { pidfd, channel, runners, .. } = member;
        let (how, orderly) = describe_end(&pidfd);
        // Ends the handshake if the worker died before it; nothing else would.
        channel.close();
        // Runners of dead workers become children of this subreaper. The kernel kills them with their worker, and
        // so do we.
        let mut left: Vec<(u32, OwnedFd)> =
            runners.into_iter().map(|(pid, runner)| (pid, runner.pidfd)).collect();
        // A worker that ended when told to has reaped its runners. Looking for more takes time in proportion to
        // the processes on the machine, and a profiler is waiting.
        if !(orderly && left.is_empty()) {
            left.extend(self.strangers());
        }
        self.kill_left(worker, left);
        how
    }

    /// Children that are not workers. Workers are reaped only through their own pidfds.
    fn strangers(&self) -> Vec<(u32, OwnedFd)> {
        let workers = self.members.values().map(|member| member.pid);
        // Runners of other dead workers are being handled already.
        let known: BTreeSet<u32> = workers.chain(self.orphans.iter().map(|orphan| orphan.pid)).collect();
        (self.children)(std::process::id())
            .into_iter()
            .filter(|pid| !known.contains(pid) && !self.is_inherited(*pid))
            .filter_map(|pid| {
                let raw = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
                Some((pid, pidfd_open(raw, PidfdFlags::empty()).ok()?))
            })
            .collect()
    }

    fn is_inherited(&self, pid: u32) -> bool {
        !self.inherited.is_empty() && with_start(pid).is_some_and(|it| self.inherited.contains(&it))
    }

    fn kill_left(&mut self, worker: WorkerId, left: Vec<(u32, OwnedFd)>) {
        for (pid, pidfd) in left {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            self.orphans.push(Orphan { worker, pid, pidfd });
        }
        // Most are dead already, killed with the worker.
        self.orphans.retain(|orphan| !reap_if_dead(&orphan.pidfd));
    }

    fn has_orphans(&self, worker: WorkerId) -> bool {
        self.orphans.iter().any(|orphan| orphan.worker == worker)
    }

    /// Reaps dead orphans without waiting: a process stuck in the kernel must not hang the run.
    fn reap_orphans(&mut self) -> Vec<PoolEvent> {
        self.orphans.retain(|orphan| !reap_if_dead(&orphan.pidfd));
        let back: Vec<WorkerId> =
            self.returning.iter().copied().filter(|&worker| !self.has_orphans(worker)).collect();
        self.returning.retain(|worker| !back.contains(worker));
        back.into_iter().map(|worker| PoolEvent::Returned { worker }).collect()
    }
}

impl Member {
    /// Stops a worker with its runners, or the runners that are to be killed.
    fn halt(&self) {
        if self.doomed {
            let _ = pidfd_send_signal(&self.pidfd, Signal::STOP);
        }
        for runner in self.runners.values().filter(|runner| self.doomed || runner.doomed) {
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
            self.bury(worker, member);
        }
        // Whichever worker they belonged to; it no longer matters.
        let left = self.strangers();
        self.kill_left(WorkerId(0), left);
        let deadline = Instant::now() + ORPHAN_TIMEOUT;
        for orphan in self.orphans.drain(..) {
            dies_within(&orphan.pidfd, deadline.saturating_duration_since(Instant::now()));
            reap_if_dead(&orphan.pidfd);
        }
    }
}

/// Whether a process is dead; reaps it if it is our child, as orphans are.
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

/// A description of the end, and whether the process ended by itself as it should.
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

fn with_start(pid: u32) -> Option<(u32, u64)> {
    parent_and_start(pid).map(|(_, start)| (pid, start))
}

fn parent_and_start(pid: u32) -> Option<(u32, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    // After the name: field 3 is the state, 4 the parent, 22 the start time.
    let parent = fields.nth(1)?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some((parent, started))
}
