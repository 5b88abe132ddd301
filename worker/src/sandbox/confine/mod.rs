//! The lock-down of a sandboxed process, in which the process gives up every privilege that it does not need before
//! untrusted code runs in it.
//!
//! Owns the order of the steps, and the report of protections that this machine cannot enforce. Each step has a file:
//! `parent` (session, death with the worker), `limits`, `descriptors`, `identity` (user, capabilities), `files`
//! (Landlock), `calls`, `call_table`, `by_number` and `affinity` (seccomp), `seal` (input mappings), `abort` (makes
//! `abort()` work in a process that is pid 1).
//!
//! This module creates no namespaces: the process that clones the sandboxed process does (`sandbox::spawn`). It does
//! not change the environment either, which is the one passed to exec.

pub mod abort;
mod affinity;
mod by_number;
mod call_table;
mod calls;
mod descriptors;
mod files;
mod identity;
mod limits;
mod parent;
pub mod seal;

#[cfg(test)]
mod canaries;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use opt_shared::message::Protection;
use opt_shared::units::Bytes;
use serde::{Deserialize, Serialize};

use crate::oom;

/// The kind of process in a sandbox, which determines its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxKind {
    /// A runner. It reads libraries, its artifact and the folders of its interpreter. It writes no files except the
    /// device nodes that it is given, and it starts only threads.
    Candidate,
    /// A compiler and its children. They read the system and the sources, and write to the scratch folder.
    Compiler,
}

/// A description of a sandbox. The worker sends it to the process, which then applies it to itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    pub kind: SandboxKind,
    pub limits: ResourceLimits,
    /// The number from which the id of the runner's own user is computed. It is used only for candidates, and only if
    /// the worker is root.
    pub user_number: u32,
    pub file_access: FileAccess,
}

/// The files that a sandboxed process may open, in addition to the system's files and to those that it gets as
/// descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAccess {
    /// Files and folders that may be read, such as an interpreter's folders, or a compiler's include and library
    /// folders. They must exist.
    pub readable: Vec<PathBuf>,
    /// Folders from which only the shared libraries may be read. They must exist.
    pub libraries: Vec<PathBuf>,
    /// Folders whose programs a compiler may execute, in addition to the system's. They must exist.
    pub toolchain: Vec<PathBuf>,
    /// Files and folders that stay inaccessible even in a readable folder, such as captures and results. If `readable`,
    /// `toolchain` or `writable` lists a path inside a hidden folder, this path is accessible nevertheless. Libraries
    /// in a hidden folder are not readable. All paths are absolute, without links.
    pub hidden: Vec<PathBuf>,
    /// Folders of the user that stay inaccessible even in a system folder, unless they contain a system folder or
    /// another list names them. All paths are absolute, without links.
    pub homes: Vec<PathBuf>,
    /// Files and folders that may be written, such as a compiler's scratch folder, or a candidate's device nodes.
    pub writable: Vec<PathBuf>,
}

/// The resource limits of a sandboxed process. Each value is both the hard and the soft limit. If the worker's own
/// limit is lower, the lower one applies. But a candidate's lock-down fails if the worker's limits do not allow the
/// candidate's private memory (`data`), address space and processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Private writable memory (RLIMIT_DATA). Shared and read-only mappings do not count.
    pub data: Bytes,
    /// The whole address space (RLIMIT_AS). `None` for a process with a CUDA context, whose driver reserves large
    /// ranges.
    pub address_space: Option<Bytes>,
    pub file_size: Bytes,
    pub open_files: u32,
    pub processes: Option<ProcessLimit>,
    /// The size to which the first thread's stack may grow.
    pub stack: Bytes,
    pub locked_memory: Bytes,
}

/// A limit on processes and threads. Linux counts them for each user and, since 5.14, for each combination of user and
/// user namespace. It does not apply the limit to uid 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLimit {
    pub own: u32,
    /// The number of other tasks of the worker's user. Linux counts these tasks too, unless the process gets a user or
    /// a user namespace of its own.
    pub other_tasks: u32,
}

/// The descriptors that a runner keeps, in addition to its standard streams.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors<'a> {
    /// The socket to the worker. It must be a stream or seqpacket socket, because a runner detects by a hang-up that
    /// its worker has ended, and datagram sockets never hang up.
    pub worker: BorrowedFd<'a>,
    /// The library to load, opened for reading. The runner may open it again through the path of this descriptor, even
    /// if the file belongs to another user.
    pub artifact: Option<BorrowedFd<'a>>,
    /// Libraries that are loaded before the artifact, opened in the same way.
    pub libraries: &'a [BorrowedFd<'a>],
}

#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    #[error("confining a sandboxed process: {action} was refused")]
    Refused {
        action: &'static str,
        #[source]
        source: io::Error,
    },
    #[error(
        "confining a sandboxed process: it inherits a limit of {inherited} on {limit}, and the candidate's limits need {needed} (raise the inherited limit, or lower [limits])"
    )]
    Inherited { limit: &'static str, inherited: String, needed: String },
    #[error("confining a sandboxed process: the worker is gone")]
    WorkerGone,
    #[error(
        "confining a sandboxed process: it has {threads} threads already (lock down first, then start threads)"
    )]
    Threads { threads: usize },
    #[error("confining a sandboxed process: `{}` cannot be opened (it must exist and be readable)", path.display())]
    Path {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "confining a sandboxed process: `{}` contains more than {max} files, too many for one rule per file (name a narrower folder)",
        path.display()
    )]
    Crowded { path: PathBuf, max: usize },
    #[error("confining a sandboxed process: Landlock rules were refused")]
    Landlock {
        #[source]
        source: landlock::RulesetError,
    },
    #[error("confining a sandboxed process: Landlock offers ABI {abi} and did not enforce all of it")]
    LandlockPartial { abi: i32 },
    #[error("confining a sandboxed process: the system call filter could not be built")]
    Filter {
        #[source]
        source: seccompiler::BackendError,
    },
}

impl ConfineError {
    fn refused(action: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::Refused { action, source: errno.into() }
    }

    fn last_os(action: &'static str) -> Self {
        Self::Refused { action, source: io::Error::last_os_error() }
    }
}

fn protection(name: &str, present: bool, detail: impl Into<String>) -> Protection {
    Protection { name: name.to_owned(), present, detail: detail.into() }
}

/// Gives up, for good, everything that a sandboxed process does not need.
///
/// Call this while the process has a single thread, because Landlock and seccomp apply only to the calling thread and
/// to everything that it starts. The result lists every requested protection; missing ones have `present: false`. After
/// an error, the process may be only partly confined, so do not load anything into it.
pub fn lock_down(
    confinement: &Confinement,
    descriptors: &Descriptors<'_>,
) -> Result<Vec<Protection>, ConfineError> {
    refuse_other_threads()?;
    let user = rustix::process::getuid();
    let mut protections = vec![parent::leave_session()?];
    // When the machine runs out of memory, Linux should kill sandboxed processes first. If raising the score is
    // refused, the process keeps the score of its worker.
    let _ = oom::raise_score(oom::SANDBOXED);
    protections.push(parent::die_with_the_worker(descriptors.worker)?);
    abort::report_aborts().map_err(|source| ConfineError::Refused { action: "handling SIGABRT", source })?;
    descriptors::close_all_but(descriptors)?;
    // The rules are prepared before the process may change its user, because folders that only root may enter can still
    // be opened now.
    let files = files::Rules::prepare(confinement, descriptors)?;
    protections.extend(limits::apply(&confinement.limits, confinement.kind)?);
    protections.extend(match confinement.kind {
        SandboxKind::Candidate => identity::become_own_user(confinement.user_number)?,
        SandboxKind::Compiler => identity::give_up_capabilities()?,
    });
    if let Some(processes) = confinement.limits.processes {
        let shares_user = rustix::process::getuid() == user && !limits::is_counted_separately();
        protections.push(limits::limit_processes(processes, shares_user, confinement.kind)?);
    }
    // Changing the user cleared the parent-death signal and changed who may inspect this process.
    parent::die_with_the_worker(descriptors.worker)?;
    protections.push(identity::hide_memory()?);
    protections.push(identity::refuse_new_privileges()?);
    protections.extend(files.enforce()?);
    protections.push(calls::restrict(confinement)?);
    Ok(protections)
}

/// Ties a process that runs no candidate to its worker: the process leaves the terminal's session and dies with the
/// worker, and other processes may not inspect it.
pub(crate) fn tie_to_worker(worker: BorrowedFd<'_>) -> Result<(), ConfineError> {
    parent::leave_session()?;
    parent::die_with_the_worker(worker)?;
    identity::hide_memory().map(drop)
}

pub(crate) fn threads() -> usize {
    // Without /proc, threads cannot be counted. The result is then 1, because callers have not started any yet.
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}

/// Returns true if a compiler may execute this program, because it is in a system folder or in a toolchain. `program`
/// is a canonical path.
pub(crate) fn compilers_may_execute(program: &Path, toolchain: &[PathBuf]) -> bool {
    files::compilers_may_execute(program, toolchain)
}

pub(crate) fn library_folders() -> impl Iterator<Item = PathBuf> {
    files::library_folders()
}

/// Applies only Landlock and no_new_privs. This is for a probe that finds out which protection a driver does not
/// tolerate.
pub fn restrict_files(
    confinement: &Confinement,
    descriptors: &Descriptors<'_>,
) -> Result<Vec<Protection>, ConfineError> {
    let files = files::Rules::prepare(confinement, descriptors)?;
    identity::refuse_new_privileges()?;
    files.enforce()
}

/// Applies only the system call filter and no_new_privs, for the same probe.
pub fn restrict_calls(confinement: &Confinement) -> Result<Protection, ConfineError> {
    identity::refuse_new_privileges()?;
    calls::restrict(confinement)
}

fn refuse_other_threads() -> Result<(), ConfineError> {
    let threads = threads();
    if threads > 1 { Err(ConfineError::Threads { threads }) } else { Ok(()) }
}
