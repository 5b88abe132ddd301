//! This worker's zygote: an interpreter that imported torch once, and of which its runners are copies.
//!
//! There is one, of the interpreter and the environment that were asked for last: another one replaces it. Where none can be
//! had, runners start their own interpreter, and the supervisor is told why.

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use opt_shared::units::Bytes;
use opt_shared::wait::readable;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::process::{self, RunnerError};
use crate::link::Link;
use crate::runner::frame::{FrameError, Python, receive_frame, send_frame};
use crate::runner::zygote::{FromZygote, ToZygote};
use crate::sandbox::handle::RunnerHandle;
use crate::sandbox::spawn::{Namespaces, SOCKET_FD, SpawnedRunner, spawn_runner};
use crate::sandbox::streams::Stream;
use crate::sandbox::timeout::Timeout;

/// An import reads some hundred megabytes at the disk's rate; this is a disk that hangs.
const READY_TIMEOUT: Duration = Duration::from_mins(10);
/// A copy takes milliseconds; this is a machine that drowns.
const CLONE_TIMEOUT: Duration = Duration::from_mins(1);
const WAIT_SLICE: Duration = Duration::from_millis(100);
/// Kept of what it prints, which is nothing unless it fails.
const OUTPUT: Bytes = Bytes::kib(64);
/// Of what it printed last, in the reason why there is none.
const PRINTED: usize = 300;

/// What decides which zygote serves a runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) python: Python,
    /// As a runner would be started with.
    pub(super) environment: Vec<CString>,
}

/// The zygote of a worker, if it has one.
#[derive(Default)]
pub(crate) struct Zygotes {
    current: RefCell<Option<Zygote>>,
    /// For which there is none: they were tried.
    given_up: RefCell<Vec<Wanted>>,
}

/// A copy that waits to be told what it is.
pub(super) struct Copied {
    pub(super) handle: RunnerHandle,
    /// Private memory that it has from its zygote and shares with it until it writes there.
    pub(super) inherited: Bytes,
}

/// Why a zygote is of no use.
enum Trouble {
    /// It has ended, or does not answer: another one may do.
    Lost(String),
    /// No other one would do better.
    Useless(String),
}

struct Zygote {
    wanted: Wanted,
    handle: RunnerHandle,
    socket: OwnedFd,
    printed: Stream,
    /// It has said so.
    ready: Cell<bool>,
}

impl Zygotes {
    /// Lets one import what will be wanted, and does not wait for it.
    pub(super) fn prepare(&self, link: &Link, wanted: &Wanted) {
        if !self.given_up.borrow().contains(wanted) {
            // Why not is told when one is needed.
            let _ = self.current(link, wanted);
        }
    }

    /// A copy with these descriptors; none where the runner has to start its own interpreter.
    pub(super) fn copy(
        &self,
        link: &Link,
        wanted: &Wanted,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Option<Copied>, RunnerError> {
        if self.given_up.borrow().contains(wanted) {
            return Ok(None);
        }
        // One that was killed since it was last used is replaced.
        let mut again = true;
        loop {
            let copied = self.current(link, wanted).and_then(|()| {
                let current = self.current.borrow();
                let zygote = current.as_ref().ok_or_else(|| Trouble::Lost("it is gone".to_owned()))?;
                zygote.copy(link.namespaces(), descriptors)
            });
            let why = match copied {
                Ok(copied) => return Ok(Some(copied)),
                Err(Trouble::Lost(_)) if std::mem::take(&mut again) => {
                    self.current.take();
                    continue;
                }
                Err(Trouble::Lost(why) | Trouble::Useless(why)) => why,
            };
            self.current.take();
            self.given_up.borrow_mut().push(wanted.clone());
            link.no_zygote(why)?;
            return Ok(None);
        }
    }

    /// Has the one that is wanted as the current one.
    fn current(&self, link: &Link, wanted: &Wanted) -> Result<(), Trouble> {
        let mut current = self.current.borrow_mut();
        if current.as_ref().is_some_and(|zygote| zygote.wanted == *wanted && !zygote.is_dead()) {
            return Ok(());
        }
        // The former one first: two at a time are in nobody's prediction.
        *current = None;
        *current = Some(Zygote::start(link, wanted).map_err(|error| {
            Trouble::Useless(format!("it cannot be started: {}", opt_shared::causes::chain(&error)))
        })?);
        Ok(())
    }
}

impl Zygote {
    fn start(link: &Link, wanted: &Wanted) -> Result<Self, RunnerError> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(RunnerError::Descriptors)?;
        let null = process::null()?;
        let printed = Stream::create(OUTPUT).map_err(RunnerError::Descriptors)?;
        let inherited: [(BorrowedFd<'_>, RawFd); 4] = [
            (null.as_fd(), 0),
            (printed.descriptor(), 1),
            (printed.descriptor(), 2),
            (theirs.as_fd(), SOCKET_FD),
        ];
        // As no namespace's first process: that one cannot have siblings.
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
        Ok(Self { wanted: wanted.clone(), handle, socket: ours, printed, ready: Cell::new(false) })
    }

    fn copy(&self, namespaces: Namespaces, descriptors: &[BorrowedFd<'_>]) -> Result<Copied, Trouble> {
        if !self.ready.get() {
            match self.hear(READY_TIMEOUT)? {
                (FromZygote::Ready, _) => self.ready.set(true),
                (FromZygote::Trouble { text } | FromZygote::Refused { text }, _) => {
                    return Err(Trouble::Useless(text));
                }
                (FromZygote::Cloned { .. }, _) => return Err(out_of_order()),
            }
        }
        let order = ToZygote::Clone { namespaces };
        send_frame(self.socket.as_fd(), &order, descriptors).map_err(|error| self.lost(&error))?;
        match self.hear(CLONE_TIMEOUT)? {
            (FromZygote::Cloned { pid, namespaces, protections }, Some(pidfd)) => {
                let spawned = SpawnedRunner { pid, pidfd, namespaces_used: namespaces, protections };
                Ok(Copied { handle: spawned.into(), inherited: private_bytes(self.handle.pid()) })
            }
            (FromZygote::Refused { text } | FromZygote::Trouble { text }, _) => Err(Trouble::Useless(text)),
            (FromZygote::Cloned { .. } | FromZygote::Ready, _) => Err(out_of_order()),
        }
    }

    fn hear(&self, timeout: Duration) -> Result<(FromZygote, Option<OwnedFd>), Trouble> {
        let mut limit = Timeout::of(self.handle.pid(), timeout);
        while !readable(&self.socket, WAIT_SLICE).map_err(|error| self.lost(&error))? {
            if limit.ends_after(WAIT_SLICE) {
                return Err(Trouble::Useless(format!("it did not answer within {timeout:?}")));
            }
        }
        match receive_frame(self.socket.as_fd()) {
            Ok((heard, mut descriptors)) => Ok((heard, descriptors.pop())),
            Err(error) => Err(self.lost(&error)),
        }
    }

    fn lost(&self, error: &(dyn std::error::Error + 'static)) -> Trouble {
        let printed = self.printed.tail(PRINTED);
        let last = printed.trim().lines().last().unwrap_or("it printed nothing");
        Trouble::Lost(format!("{} ({last})", opt_shared::causes::chain(error)))
    }

    fn is_dead(&self) -> bool {
        !matches!(self.handle.peek_end(), Ok(None))
    }
}

fn out_of_order() -> Trouble {
    Trouble::Useless(opt_shared::causes::chain(&FrameError::Malformed { what: "order" }))
}

/// What a process has of private memory, in the page tables that a copy of it gets, too.
fn private_bytes(pid: u32) -> Bytes {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let mut pages = text.split_ascii_whitespace().skip(1).map_while(|pages| pages.parse::<u64>().ok());
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    Bytes::from(rustix::param::page_size()).saturating_mul(resident.saturating_sub(shared))
}
