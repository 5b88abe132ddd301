//! A compiler, run once in a confined process: started, waited for, ended, reaped. Like `process`, but what runs
//! is a program of the user's machine that reads a stranger's text.

use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use opt_shared::formula::COMPILER_BASE;
use opt_shared::ids::LeaseId;
use opt_shared::message::{KillReason, Pack};
use opt_shared::units::Bytes;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::{Deserialize, Serialize};

use super::cell;
use super::handle::{End, RunnerHandle};
use super::patience::Patience;
use super::process::{LAST_SLICE, RunnerTrouble, wait_dead};
use super::spawn::spawn_runner;
use super::streams::Stream;
use crate::link::{Link, RunnerNotice};
use crate::runner::confine::{self, Confinement, Descriptors};
use crate::runner::frame::{
    FrameError, Reply, ToRunner, receive_from_worker, receive_reply, send_reply, send_to_runner,
};
use crate::runner::serve::SOCKET_FD;

/// Kept of a compiler's output while it runs.
const LOG_SIZE: Bytes = Bytes::kib(256);

/// Its own programs and libraries, what it reads, and what it writes, in the page cache.
const COMPILER_FILES: Bytes = Bytes::mib(256);

pub(crate) struct CompilerSpec<'a> {
    pub(crate) lease: LeaseId,
    pub(crate) program: &'a Path,
    pub(crate) arguments: &'a [OsString],
    pub(crate) env: Vec<CString>,
    pub(crate) scratch: &'a Path,
    pub(crate) readable: &'a [PathBuf],
    pub(crate) memory: Bytes,
}

/// What the confined process is to become.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompileOrder {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    pub scratch: PathBuf,
    pub confinement: Confinement,
}

pub(crate) struct CompilerEnd {
    pub(crate) end: End,
    pub(crate) killed: Option<KillReason>,
    pub(crate) log_head: String,
    pub(crate) peak_owed: Bytes,
}

pub(crate) struct Compiler {
    handle: RunnerHandle,
    socket: OwnedFd,
    log: Stream,
}

impl Compiler {
    pub(crate) fn start(link: &mut Link, spec: &CompilerSpec<'_>) -> Result<Self, RunnerTrouble> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(RunnerTrouble::Descriptors)?;
        let log = Stream::create(LOG_SIZE).map_err(RunnerTrouble::Descriptors)?;
        let null = rustix::fs::open(
            "/dev/null",
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .map_err(RunnerTrouble::Descriptors)?;
        let spawned = spawn_runner(
            link.executable(),
            &[c"opt-compiler", crate::COMPILER_ARGUMENT],
            &spec.env,
            &[(null.as_fd(), 0), (log.descriptor(), 1), (log.descriptor(), 2), (theirs.as_fd(), SOCKET_FD)],
            link.namespaces(),
        )
        .map_err(RunnerTrouble::Spawn)?;
        drop(theirs);
        let compiler = Self { handle: spawned.into(), socket: ours, log };
        let pid = compiler.handle.pid();
        link.runner_started(&RunnerNotice {
            lease: spec.lease,
            pid,
            start_time: compiler.handle.start_time()?,
            limit: spec.memory + COMPILER_BASE,
            shared: compiler.log.size(),
            of_worker: Bytes::ZERO,
            pack: Pack { files: COMPILER_FILES, tasks: cell::COMPILER_TASKS, tree: true },
        })?;
        link.wait_watched(pid)?;
        let order = CompileOrder {
            program: spec.program.to_owned(),
            arguments: spec.arguments.to_vec(),
            scratch: spec.scratch.to_owned(),
            confinement: cell::for_compiler(spec.scratch, spec.readable, spec.memory),
        };
        send_to_runner(compiler.socket.as_fd(), &ToRunner::Compile(order), &[])?;
        Ok(compiler)
    }

    /// Whether it ended in time.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<bool, RunnerTrouble> {
        let mut patience = Patience::with(self.handle.pid(), timeout);
        loop {
            let slice = LAST_SLICE.min(timeout);
            if wait_dead(&self.handle, slice)? {
                return Ok(true);
            }
            if patience.ends_after(slice) {
                return Ok(false);
            }
        }
    }

    pub(crate) fn end_for(&mut self, link: &mut Link, reason: KillReason) -> Result<(), RunnerTrouble> {
        link.kill_wanted(self.handle.pid(), reason)?;
        if !wait_dead(&self.handle, link.answer_patience())? {
            self.handle.kill()?;
            wait_dead(&self.handle, link.answer_patience())?;
        }
        Ok(())
    }

    pub(crate) fn finish(mut self, link: &mut Link, log_head: usize) -> Result<CompilerEnd, RunnerTrouble> {
        let word = link.runner_died(self.handle.pid())?;
        // Our own part speaks only if it could not become the compiler.
        if let Ok(Some(Reply::Trouble { text })) = receive_reply(self.socket.as_fd(), Duration::ZERO) {
            self.handle.reap()?;
            return Err(RunnerTrouble::Setup { text });
        }
        let end = self.handle.reap()?;
        Ok(CompilerEnd {
            end,
            killed: word.killed,
            log_head: self.log.head(log_head),
            peak_owed: word.peak_owed,
        })
    }
}

/// The entry point behind the hidden argument: locks down and becomes the compiler.
pub fn main() -> i32 {
    // SAFETY: the worker that started us put the socket here and nobody else uses it.
    let socket = unsafe { BorrowedFd::borrow_raw(SOCKET_FD) };
    let text = match become_compiler(socket) {
        Ok(never) => match never {},
        Err(text) => text,
    };
    let _ = send_reply(socket, &Reply::Trouble { text });
    2
}

fn become_compiler(socket: BorrowedFd<'_>) -> Result<std::convert::Infallible, String> {
    let order = match receive_from_worker(socket) {
        Ok((ToRunner::Compile(order), _)) => order,
        Ok(_) => return Err("the first frame was no compile order".to_owned()),
        Err(FrameError::Closed) => return Err("the worker is gone".to_owned()),
        Err(error) => return Err(opt_shared::causes::chain(&error)),
    };
    std::env::set_current_dir(&order.scratch)
        .map_err(|error| format!("entering the work folder: {error}"))?;
    let kept = Descriptors { worker: socket, artifact: None, libraries: &[] };
    confine::lock_down(&cell::beyond_present(order.confinement), &kept)
        .map_err(|error| opt_shared::causes::chain(&error))?;
    // The compiler has no business with the socket.
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC).map_err(|errno| errno.to_string())?;
    let error = std::process::Command::new(&order.program).args(&order.arguments).exec();
    Err(format!("starting {}: {error}", order.program.as_os_str().as_bytes().escape_ascii()))
}
