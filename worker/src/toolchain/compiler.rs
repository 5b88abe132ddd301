//! Runs a compiler once in a sandboxed process: starts it, waits for its end, kills it if needed, and reaps it. In
//! contrast to a runner (`session::host::process`), this process runs a program that the machine's user has installed,
//! on untrusted input.

use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use opt_shared::formula::COMPILER_BASE;
use opt_shared::ids::LeaseId;
use opt_shared::message::{GroupLimits, KillReason};
use opt_shared::room::Room;
use opt_shared::units::Bytes;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::link::{Link, LinkError, RunnerNotice};
use crate::runner::compile_order::CompileOrder;
pub(crate) use crate::runner::compile_order::CompilerKind;
use crate::runner::frame::{FrameError, Reply, ToRunner, receive_reply, send_to_runner};
use crate::sandbox::handle::{End, HandleError, RunnerHandle};
use crate::sandbox::policy::{self, CompilerFileAccess};
use crate::sandbox::spawn::SOCKET_FD;
use crate::sandbox::spawn::{SpawnError, spawn_runner};
use crate::sandbox::streams::Stream;
use crate::sandbox::timeout::{self, StopScope, Timeout};

/// The size of the part of a compiler's output that is kept while the compiler runs.
const LOG_SIZE: Bytes = Bytes::kib(256);

/// The size of the page cache that a compiler may use in its control group, for its programs and libraries and for the
/// files that it reads and writes.
const COMPILER_FILES: Bytes = Bytes::mib(256);

/// The longest single wait for the end of a build. After each wait, the free space of the disk and the time limit are
/// checked.
const WAIT_SLICE: Duration = Duration::from_millis(100);

/// An error that prevents the worker from running a compiler. No candidate is to blame for such an error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompilerError {
    #[error("starting its process")]
    Spawn(#[source] SpawnError),
    #[error("preparing its descriptors")]
    Descriptors(#[source] rustix::io::Errno),
    #[error("communicating with its process")]
    Frame(#[from] FrameError),
    #[error("communicating with the supervisor")]
    Link(#[from] LinkError),
    #[error("its process could not be set up: {text}")]
    Setup { text: String },
    #[error("observing or ending its process")]
    Handle(#[from] HandleError),
}

pub(crate) struct CompilerSpec<'a> {
    pub(crate) lease: LeaseId,
    pub(crate) program: &'a Path,
    pub(crate) kind: CompilerKind,
    pub(crate) arguments: &'a [OsString],
    pub(crate) env: Vec<CString>,
    /// The compiler's working folder, inside the scratch folder.
    pub(crate) work: &'a Path,
    pub(crate) file_access: CompilerFileAccess<'a>,
    pub(crate) memory: Bytes,
    pub(crate) largest_file: Bytes,
    /// True if the compiler runs code of the candidate. Such code could stop the programs that it has started, so stops
    /// of these programs do not extend the time limit.
    pub(crate) runs_source: bool,
}

pub(crate) struct CompilerEnd {
    pub(crate) end: End,
    pub(crate) killed: Option<KillReason>,
    /// True if a control group above the compiler's own has refused a process or thread while the compiler ran.
    pub(crate) tasks_refused: bool,
    /// The beginning of the output. If `is_truncated` is true, more output may have followed.
    pub(crate) log: String,
    pub(crate) is_truncated: bool,
    pub(crate) peak_owed: Bytes,
    /// The smallest free space that was seen on the scratch folder's disk, or `None` if it could not be read.
    pub(crate) least_room: Option<Room>,
}

pub(crate) struct Compiler {
    handle: RunnerHandle,
    socket: OwnedFd,
    log: Stream,
    scratch: PathBuf,
    least_room: Option<Room>,
    runs_source: bool,
}

impl Compiler {
    /// Starts the process, waits until the supervisor watches its memory, and then orders it to run the compiler.
    pub(crate) fn start(link: &Link, spec: &CompilerSpec<'_>) -> Result<Self, CompilerError> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(CompilerError::Descriptors)?;
        let log = Stream::create(LOG_SIZE).map_err(CompilerError::Descriptors)?;
        let null = rustix::fs::open(
            "/dev/null",
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .map_err(CompilerError::Descriptors)?;
        let spawned = spawn_runner(
            link.executable(),
            &[c"opt-compiler", crate::COMPILER_ARGUMENT],
            &spec.env,
            &[(null.as_fd(), 0), (log.descriptor(), 1), (log.descriptor(), 2), (theirs.as_fd(), SOCKET_FD)],
            link.namespaces(),
        )
        .map_err(CompilerError::Spawn)?;
        drop(theirs);
        let compiler = Self {
            handle: spawned.into(),
            socket: ours,
            log,
            scratch: spec.file_access.scratch.to_owned(),
            least_room: Room::on_disk_of(spec.file_access.scratch).ok(),
            runs_source: spec.runs_source,
        };
        let pid = compiler.handle.pid();
        link.runner_started(&RunnerNotice {
            lease: spec.lease,
            pid,
            start_time: compiler.handle.start_time()?,
            limit: spec.memory + COMPILER_BASE,
            shared: compiler.log.size(),
            of_worker: Bytes::ZERO,
            inherited: Bytes::ZERO,
            group_limits: GroupLimits { files: COMPILER_FILES, tasks: policy::COMPILER_TASKS, tree: true },
        })?;
        link.wait_watched(pid)?;
        let order = CompileOrder {
            program: spec.program.to_owned(),
            kind: spec.kind,
            arguments: spec.arguments.to_vec(),
            work: spec.work.to_owned(),
            confinement: policy::for_compiler(&spec.file_access, spec.memory, spec.largest_file),
        };
        send_to_runner(compiler.socket.as_fd(), &ToRunner::Compile(order), &[])?;
        Ok(compiler)
    }

    /// Waits for the compiler's end. If the compiler exceeds `timeout`, returns the reason for which it must be killed.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<Option<KillReason>, CompilerError> {
        let pid = self.handle.pid();
        let scope = if self.runs_source { StopScope::Process } else { StopScope::Tree };
        let mut limit = Timeout::of(pid, timeout).with_scope(scope);
        loop {
            let slice = WAIT_SLICE.min(timeout);
            if self.handle.wait_dead(slice)? {
                return Ok(None);
            }
            self.look_at_room();
            if limit.ends_after(slice) {
                return Ok(Some(timeout::reason(pid, timeout, scope)));
            }
        }
    }

    fn look_at_room(&mut self) {
        let now = Room::on_disk_of(&self.scratch).ok();
        self.least_room = self.least_room.zip(now).map(|(least, now)| least.least(now));
    }

    /// Asks the supervisor to kill the compiler. If the supervisor does not do so, kills the compiler itself.
    pub(crate) fn end_for(&mut self, link: &Link, reason: KillReason) -> Result<(), CompilerError> {
        link.kill_wanted(self.handle.pid(), reason)?;
        if !self.handle.wait_dead(link.answer_timeout())? {
            self.handle.kill()?;
            self.handle.wait_dead(link.answer_timeout())?;
        }
        Ok(())
    }

    pub(crate) fn finish(mut self, link: &Link) -> Result<CompilerEnd, CompilerError> {
        self.look_at_room();
        let permission = link.runner_died(self.handle.pid())?;
        // Our own code in this process sends a reply only if it could not run the compiler.
        if let Ok(Some(Reply::Failed { text })) = receive_reply(self.socket.as_fd(), Duration::ZERO) {
            self.handle.reap()?;
            return Err(CompilerError::Setup { text });
        }
        let end = self.handle.reap()?;
        Ok(CompilerEnd {
            end,
            killed: permission.killed,
            tasks_refused: permission.tasks_refused,
            log: self.log.head(LOG_SIZE.to_usize()),
            is_truncated: self.log.is_truncated(),
            peak_owed: permission.peak_owed,
            least_room: self.least_room,
        })
    }
}
