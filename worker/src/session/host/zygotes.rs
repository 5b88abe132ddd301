//! This worker's zygote: an interpreter that has imported torch, from which runners are copied.
//!
//! If a runner needs another interpreter or environment, a new zygote replaces the current one. If no zygote can be
//! started, runners start their own interpreter, and the reason is reported to the supervisor.

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use opt_shared::formula::PYTHON_COPY;
use opt_shared::units::Bytes;
use opt_shared::wait::readable;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::error::RunnerError;
use super::fresh::{self, Parts, Process};
use crate::link::Link;
use crate::runner::frame::{FrameError, Python, receive_frame, send_frame};
use crate::runner::zygote::{FromZygote, Start, ToZygote};
use crate::sandbox::handle::RunnerHandle;
use crate::sandbox::spawn::{Namespaces, SOCKET_FD, SpawnedRunner, spawn_runner};
use crate::sandbox::streams::Stream;
use crate::sandbox::timeout::Timeout;

/// The time limit of a zygote's imports. They read a few hundred megabytes, so a timeout means that the disk hangs.
const READY_TIMEOUT: Duration = Duration::from_mins(10);
/// The time limit of a copy. A copy takes milliseconds, so a timeout means that the machine is overloaded.
const CLONE_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a zygote that is no longer needed may take to finish a copy.
const LAST_TIMEOUT: Duration = Duration::from_secs(5);
const WAIT_SLICE: Duration = Duration::from_millis(100);
/// The size of the file that receives what a zygote prints. A zygote prints nothing unless it fails.
const OUTPUT: Bytes = Bytes::kib(64);
/// How many bytes at the end of that file are read, to quote the last line in an error message.
const PRINTED: usize = 300;

/// The properties of a runner that decide whether a zygote can serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) python: Python,
    /// The environment with which a runner would be started.
    pub(super) environment: Vec<CString>,
}

#[derive(Default)]
pub(crate) struct Zygotes {
    current: RefCell<Option<Zygote>>,
    /// Zygotes that failed before and are not tried again.
    given_up: RefCell<Vec<Wanted>>,
}

/// A copy that the zygote was ordered to make, with its descriptors.
struct Ordered {
    parts: Parts,
    /// The number of bytes of each standard stream that are kept.
    output: Bytes,
}

enum ZygoteError {
    /// The zygote has ended, or its socket failed. Another one may work.
    Lost(String),
    /// Another zygote would fail too.
    Useless(String),
    /// The zygote did not make this copy.
    Refused(String),
    /// This worker cannot prepare a runner.
    Worker(RunnerError),
}

struct Zygote {
    wanted: Wanted,
    handle: RunnerHandle,
    socket: OwnedFd,
    printed: Stream,
    ready: Cell<bool>,
    /// The copy that was ordered ahead, for the next runner.
    ahead: Cell<Option<Ordered>>,
}

impl Zygotes {
    /// Starts the wanted zygote without waiting for it.
    pub(super) fn prepare(&self, link: &Link, wanted: &Wanted) {
        if !self.given_up.borrow().contains(wanted) {
            // The error is reported when a zygote is needed.
            let _ = self.ensure_current(link, wanted);
        }
    }

    /// Returns a copy that waits for its setup, or `None` if the runner must start its own interpreter. `output` is the
    /// number of bytes of each standard stream that are kept.
    pub(super) fn copy(
        &self,
        link: &Link,
        wanted: &Wanted,
        output: Bytes,
    ) -> Result<Option<Process>, RunnerError> {
        if self.given_up.borrow().contains(wanted) {
            return Ok(None);
        }
        // If the zygote was killed after its last use, a new one is tried, but only once.
        let mut again = true;
        loop {
            let copied = self.ensure_current(link, wanted).and_then(|()| {
                let current = self.current.borrow();
                let zygote = current.as_ref().ok_or_else(|| ZygoteError::Lost("it is gone".to_owned()))?;
                zygote.copy(link.namespaces(), output)
            });
            let why = match copied {
                Ok(copied) => return Ok(Some(copied)),
                Err(ZygoteError::Lost(_)) if std::mem::take(&mut again) => {
                    self.current.take();
                    continue;
                }
                Err(ZygoteError::Lost(why) | ZygoteError::Useless(why) | ZygoteError::Refused(why)) => why,
                Err(ZygoteError::Worker(error)) => return Err(error),
            };
            self.current.take();
            self.given_up.borrow_mut().push(wanted.clone());
            link.no_zygote(why)?;
            return Ok(None);
        }
    }

    /// Lets the zygote move memory into huge pages and make a copy for the next runner, without waiting for it. Nothing
    /// may be timed meanwhile.
    pub(super) fn copy_ahead(&self, link: &Link, wanted: &Wanted, output: Bytes) {
        if let Some(zygote) = self.current.borrow().as_ref()
            && zygote.wanted == *wanted
        {
            // The error is reported when a copy is needed.
            let _ = zygote.copy_ahead(link.namespaces(), output);
        }
    }

    /// Starts the wanted zygote, unless it is the current one and alive.
    fn ensure_current(&self, link: &Link, wanted: &Wanted) -> Result<(), ZygoteError> {
        let mut current = self.current.borrow_mut();
        if current.as_ref().is_some_and(|zygote| zygote.wanted == *wanted && !zygote.is_dead()) {
            return Ok(());
        }
        // The former zygote is ended first, because the memory prediction covers only one.
        *current = None;
        *current = Some(Zygote::start(link, wanted).map_err(|error| {
            ZygoteError::Useless(format!("it cannot be started: {}", opt_shared::causes::chain(&error)))
        })?);
        Ok(())
    }
}

impl Zygote {
    fn start(link: &Link, wanted: &Wanted) -> Result<Self, RunnerError> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(RunnerError::Descriptors)?;
        let null = fresh::null()?;
        let printed = Stream::create(OUTPUT).map_err(RunnerError::Descriptors)?;
        let inherited: [(BorrowedFd<'_>, RawFd); 4] = [
            (null.as_fd(), 0),
            (printed.descriptor(), 1),
            (printed.descriptor(), 2),
            (theirs.as_fd(), SOCKET_FD),
        ];
        // The zygote must not be the first process of a namespace, because that process cannot have siblings.
        let handle: RunnerHandle = spawn_runner(
            link.executable(),
            &[c"opt-zygote", crate::ZYGOTE_ARGUMENT],
            &wanted.environment,
            &inherited,
            Namespaces::NONE,
        )
        .map_err(RunnerError::Spawn)?
        .into();
        link.zygote_started(handle.pid(), handle.start_time()?)?;
        send_frame(ours.as_fd(), &ToZygote::Host(wanted.python.clone()), &[])?;
        Ok(Self {
            wanted: wanted.clone(),
            handle,
            socket: ours,
            printed,
            ready: Cell::new(false),
            ahead: Cell::default(),
        })
    }

    /// Returns the copy that was made ahead if there is one and it fits, or else a new one.
    fn copy(&self, namespaces: Namespaces, output: Bytes) -> Result<Process, ZygoteError> {
        if !self.ready.get() {
            match self.receive(READY_TIMEOUT)? {
                (FromZygote::Ready, _) => self.ready.set(true),
                (FromZygote::Failed { text } | FromZygote::Refused { text }, _) => {
                    return Err(ZygoteError::Useless(text));
                }
                (FromZygote::Cloned { .. }, _) => return Err(unexpected_answer()),
            }
        }
        if let Some(ordered) = self.ahead.take() {
            let fits = ordered.output == output;
            match self.receive_copy(ordered) {
                Ok(process) if fits && process.wake(CLONE_TIMEOUT) => return Ok(process),
                // This copy cannot be used. Dropping it ends it, and a new one is made below.
                Ok(_) | Err(ZygoteError::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.receive_copy(self.order_copy(namespaces, output, Start::AtOnce)?)
    }

    fn copy_ahead(&self, namespaces: Namespaces, output: Bytes) -> Result<(), ZygoteError> {
        let former = self.ahead.take();
        if self.ready.get() && former.is_none() {
            self.send(&ToZygote::UseHugePages, &[])?;
            self.ahead.set(Some(self.order_copy(namespaces, output, Start::WhenWoken)?));
        } else {
            self.ahead.set(former);
        }
        Ok(())
    }

    /// Tells the zygote to clone itself, and passes the descriptors of the clone to it.
    fn order_copy(
        &self,
        namespaces: Namespaces,
        output: Bytes,
        start: Start,
    ) -> Result<Ordered, ZygoteError> {
        let parts = Parts::create(output).map_err(ZygoteError::Worker)?;
        let descriptors = parts.descriptors().map_err(ZygoteError::Worker)?;
        self.send(&ToZygote::Clone { namespaces, start }, &descriptors)?;
        Ok(Ordered { parts, output })
    }

    fn receive_copy(&self, ordered: Ordered) -> Result<Process, ZygoteError> {
        match self.receive(CLONE_TIMEOUT)? {
            (FromZygote::Cloned { pid, namespaces, protections }, Some(pidfd)) => {
                let spawned = SpawnedRunner { pid, pidfd, namespaces_used: namespaces, protections };
                Ok(ordered.parts.with(spawned.into(), PYTHON_COPY, private_bytes(self.handle.pid())))
            }
            (FromZygote::Refused { text }, _) => Err(ZygoteError::Refused(text)),
            (FromZygote::Failed { text }, _) => Err(ZygoteError::Useless(text)),
            (FromZygote::Cloned { .. } | FromZygote::Ready, _) => Err(unexpected_answer()),
        }
    }

    fn send(&self, order: &ToZygote, descriptors: &[BorrowedFd<'_>]) -> Result<(), ZygoteError> {
        send_frame(self.socket.as_fd(), order, descriptors).map_err(|error| self.lost_zygote(&error))
    }

    fn receive(&self, timeout: Duration) -> Result<(FromZygote, Option<OwnedFd>), ZygoteError> {
        let mut limit = Timeout::of(self.handle.pid(), timeout);
        while !readable(&self.socket, WAIT_SLICE).map_err(|error| self.lost_zygote(&error))? {
            if limit.ends_after(WAIT_SLICE) {
                return Err(ZygoteError::Useless(format!("it did not answer within {timeout:?}")));
            }
        }
        match receive_frame(self.socket.as_fd()) {
            Ok((message, mut descriptors)) => Ok((message, descriptors.pop())),
            Err(error) => Err(self.lost_zygote(&error)),
        }
    }

    fn lost_zygote(&self, error: &(dyn std::error::Error + 'static)) -> ZygoteError {
        let printed = self.printed.tail(PRINTED);
        let last = printed.trim().lines().last().unwrap_or("its standard error is empty");
        ZygoteError::Lost(format!("{} ({last})", opt_shared::causes::chain(error)))
    }

    fn is_dead(&self) -> bool {
        !matches!(self.handle.peek_end(), Ok(None))
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        // Only the zygote's answer contains the pidfd by which the copy is reaped. Without the pidfd, the copy ends
        // when its socket closes.
        if let Some(ordered) = self.ahead.take()
            && readable(&self.socket, LAST_TIMEOUT).unwrap_or(false)
        {
            drop(self.receive_copy(ordered));
        }
    }
}

fn unexpected_answer() -> ZygoteError {
    ZygoteError::Useless(opt_shared::causes::chain(&FrameError::Malformed { what: "order" }))
}

fn private_bytes(pid: u32) -> Bytes {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let mut pages = text.split_ascii_whitespace().skip(1).map_while(|pages| pages.parse::<u64>().ok());
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    Bytes::from(rustix::param::page_size()).saturating_mul(resident.saturating_sub(shared))
}
