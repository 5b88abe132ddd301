//! The worker's end of the channel to the supervisor.
//!
//! Owns the handshake, the reader thread, and every wait for a message. A worker ends after the supervisor has ended:
//! if the channel closes while the worker waits for a task, the worker ends normally, and if it closes while the worker
//! waits for an answer, the wait fails.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use ipc_channel::ipc::{self, IpcSender};
use opt_shared::ids::LeaseId;
use opt_shared::message::{
    FromWorker, GroupLimits, Hello, KillReason, PROTOCOL_VERSION, Protection, Task, ToWorker,
};
use opt_shared::units::Bytes;

use crate::sandbox::spawn::Namespaces;

/// The longest wait for an answer, which is long enough for an overloaded machine. If the supervisor ends, the wait
/// fails at once, because the channel closes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The capacity of the inbox, in messages. The inbox contains at most one task, and a few messages for each runner.
const INBOX: usize = 64;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("connecting to the supervisor")]
    Connect(#[source] std::io::Error),
    #[error("setting up a channel to the supervisor")]
    Channel(#[source] std::io::Error),
    #[error("sending to the supervisor")]
    Send(#[source] ipc_channel::IpcError),
    #[error("the supervisor has ended, or has told this worker to end")]
    Gone,
    #[error("the supervisor did not answer within {ANSWER_TIMEOUT:?}")]
    Silent,
}

/// The supervisor's permission to reap a runner, together with what the supervisor has recorded about the runner.
pub(crate) struct ReapPermission {
    pub(crate) killed: Option<KillReason>,
    /// True if a control group above the runner's own has refused a process or thread while the runner was alive.
    pub(crate) tasks_refused: bool,
    pub(crate) peak_owed: Bytes,
}

/// The data with which a new runner is announced to the supervisor. `FromWorker::RunnerStarted` explains the fields.
pub(crate) struct RunnerNotice {
    pub(crate) lease: LeaseId,
    pub(crate) pid: u32,
    pub(crate) start_time: u64,
    pub(crate) limit: Bytes,
    pub(crate) shared: Bytes,
    pub(crate) of_worker: Bytes,
    pub(crate) inherited: Bytes,
    pub(crate) group_limits: GroupLimits,
}

pub(crate) struct Link {
    outbox: IpcSender<FromWorker>,
    inbox: Receiver<ToWorker>,
    /// Messages that arrived while the worker waited for a different message.
    early: RefCell<Vec<ToWorker>>,
    /// This program's executable, with which runners, zygotes and compilers are started.
    executable: OwnedFd,
    namespaces: Namespaces,
    reported_protections: Cell<bool>,
    /// The sizes of memory files, indexed by `Held`.
    held: Cell<[Bytes; 2]>,
    tasks_refused: Cell<bool>,
}

/// The kinds of memory files of a worker that are not charged to a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// The memory files with copies of inputs, or with a replay's pool.
    Inputs = 0,
    /// The memory files with variants of the inputs of timed calls.
    Variants = 1,
}

impl Link {
    pub(crate) fn connect(
        server: &str,
        nonce: String,
        executable: OwnedFd,
        namespaces: Namespaces,
    ) -> Result<Self, LinkError> {
        let hello: IpcSender<Hello> = IpcSender::connect(server.to_owned()).map_err(LinkError::Connect)?;
        let (to_worker, from_supervisor) = ipc::channel().map_err(LinkError::Channel)?;
        let (outbox, from_worker) = ipc::channel().map_err(LinkError::Channel)?;
        hello
            .send(Hello { version: PROTOCOL_VERSION, nonce, pid: std::process::id(), to_worker, from_worker })
            .map_err(LinkError::Send)?;
        let (forward, inbox) = bounded(INBOX);
        std::thread::Builder::new()
            .name("link-reader".into())
            .stack_size(256 * 1024)
            .spawn(move || {
                while let Ok(message) = from_supervisor.recv() {
                    if forward.send(message).is_err() {
                        break;
                    }
                }
            })
            .map_err(LinkError::Channel)?;
        Ok(Self {
            outbox,
            inbox,
            early: RefCell::default(),
            executable,
            namespaces,
            reported_protections: Cell::new(false),
            held: Cell::default(),
            tasks_refused: Cell::default(),
        })
    }

    pub(crate) fn executable(&self) -> BorrowedFd<'_> {
        self.executable.as_fd()
    }

    pub(crate) fn namespaces(&self) -> Namespaces {
        self.namespaces
    }

    pub(crate) fn answer_timeout(&self) -> Duration {
        ANSWER_TIMEOUT
    }

    /// Waits for the next task. Returns `None` if this worker should end.
    pub(crate) fn next_task(&self) -> Option<Task> {
        loop {
            match self.inbox.recv() {
                Ok(ToWorker::Start(task)) => return Some(*task),
                Ok(ToWorker::Shutdown) | Err(_) => return None,
                // All other messages are about runners that have already been reaped, so they can be ignored.
                Ok(ToWorker::RunnerWatched { .. } | ToWorker::MayReap { .. }) => {}
            }
        }
    }

    pub(crate) fn send(&self, message: FromWorker) -> Result<(), LinkError> {
        self.outbox.send(message).map_err(LinkError::Send)
    }

    /// Sets the size of one kind of memory file. Also reports the sum of all kinds to the supervisor, which charges the
    /// sum to this worker. A failure to report is ignored: if the supervisor is gone, the next receive fails too.
    pub(crate) fn holds(&self, what: Held, bytes: Bytes) {
        let mut held = self.held.get();
        held[what as usize] = bytes;
        self.held.set(held);
        let _ = self.send(FromWorker::Holds { bytes: held.into_iter().sum() });
    }

    pub(crate) fn holds_nothing(&self) -> Result<(), LinkError> {
        self.held.set(<[Bytes; 2]>::default());
        self.send(FromWorker::Holds { bytes: Bytes::ZERO })
    }

    /// Reports the protections of the sandbox to the supervisor. Does so only once in a worker's life.
    pub(crate) fn enforced(&self, protections: impl FnOnce() -> Vec<Protection>) -> Result<(), LinkError> {
        if self.reported_protections.replace(true) {
            return Ok(());
        }
        self.send(FromWorker::Enforced { protections: protections() })
    }

    pub(crate) fn runner_started(&self, notice: &RunnerNotice) -> Result<(), LinkError> {
        self.early.borrow_mut().clear();
        self.send(FromWorker::RunnerStarted {
            lease: notice.lease,
            pid: notice.pid,
            start_time: notice.start_time,
            limit: notice.limit,
            shared: notice.shared,
            of_worker: notice.of_worker,
            inherited: notice.inherited,
            group_limits: notice.group_limits,
        })
    }

    /// Reports a process that was started in advance, for a later runner.
    pub(crate) fn runner_ahead(&self, pid: u32, start_time: u64) -> Result<(), LinkError> {
        self.send(FromWorker::RunnerAhead { pid, start_time })
    }

    pub(crate) fn zygote_started(&self, pid: u32, start_time: u64) -> Result<(), LinkError> {
        self.send(FromWorker::ZygoteStarted { pid, start_time })
    }

    /// Reports why there is no zygote. Without one, each runner starts its own interpreter.
    pub(crate) fn no_zygote(&self, why: String) -> Result<(), LinkError> {
        self.send(FromWorker::NoZygote { why })
    }

    pub(crate) fn wait_watched(&self, pid: u32) -> Result<(), LinkError> {
        self.wait_for(|message| {
            matches!(message, ToWorker::RunnerWatched { pid: watched } if *watched == pid).then_some(())
        })
    }

    pub(crate) fn kill_wanted(&self, pid: u32, reason: KillReason) -> Result<(), LinkError> {
        self.send(FromWorker::KillWanted { pid, reason })
    }

    pub(crate) fn runner_died(&self, pid: u32) -> Result<ReapPermission, LinkError> {
        self.send(FromWorker::RunnerDied { pid })?;
        let permission = self.wait_for(|message| match message {
            &ToWorker::MayReap { pid: dead, killed, tasks_refused, peak_owed } if dead == pid => {
                Some(ReapPermission { killed, tasks_refused, peak_owed })
            }
            _ => None,
        })?;
        self.tasks_refused.set(self.tasks_refused.get() || permission.tasks_refused);
        Ok(permission)
    }

    /// Returns true if, since the last call, the supervisor reported that a control group refused a process or thread.
    pub(crate) fn take_processes_refused(&self) -> bool {
        self.tasks_refused.take()
    }

    /// Waits until `pick` returns an answer for a message, but for at most `ANSWER_TIMEOUT`. Other messages are kept in
    /// `early`.
    fn wait_for<T>(&self, pick: impl Fn(&ToWorker) -> Option<T>) -> Result<T, LinkError> {
        let mut early = self.early.borrow_mut();
        if let Some(at) = early.iter().position(|message| pick(message).is_some()) {
            let message = early.remove(at);
            return pick(&message).ok_or(LinkError::Silent);
        }
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            match self.inbox.recv_deadline(deadline) {
                Ok(ToWorker::Shutdown) | Err(RecvTimeoutError::Disconnected) => return Err(LinkError::Gone),
                Ok(message) => match pick(&message) {
                    Some(answer) => return Ok(answer),
                    None => early.push(message),
                },
                Err(RecvTimeoutError::Timeout) => return Err(LinkError::Silent),
            }
        }
    }
}
