//! The lock-down of a runner: everything that it gives up at the start of its own main, before any foreign code
//! is loaded.
//!
//! Owns the order of the steps and the report of protections that this machine could not enforce. There is a file
//! per step: `parent` (session, death with the worker), `limits`, `descriptors`, `identity` (user, capabilities),
//! `files` (Landlock), `calls`, `call_table`, `by_number` and `affinity` (seccomp), `seal` (input maps), `abort`
//! (makes `abort()` work in a process that is pid 1).
//!
//! Namespaces are created by the cloning process (`sandbox::spawn`), and the environment is the one passed to exec.

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
    /// A loaded library: reads system libraries and itself, writes nothing, starts only threads.
    Candidate,
    /// A compiler and its children: read the system and the sources, and write to the scratch folder.
    Compiler,
}

/// What the worker tells a runner about its sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    pub kind: SandboxKind,
    pub limits: ResourceLimits,
    /// For candidates, if the worker is root: the number of the runner's own user, distinct among live runners.
    pub user_number: u32,
    pub reach: Reach,
}

/// Which files a sandboxed process may open besides the system's and those that it gets as descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// Files and folders that may be read: an interpreter's folders; include and library folders of a compiler. They
    /// must exist.
    pub readable: Vec<PathBuf>,
    /// Folders whose shared libraries may be read, and no other file in them. They must exist.
    pub libraries: Vec<PathBuf>,
    /// Folders whose programs a compiler may execute too. They must exist.
    pub toolchain: Vec<PathBuf>,
    /// Files and folders that stay closed even if they are in a readable folder: captures, results. Anything
    /// listed in `readable` or `writable` itself stays accessible, and no library in them. Absolute paths without links.
    pub hidden: Vec<PathBuf>,
    /// Folders of the user that stay closed even if they are in a system folder. Absolute paths without links.
    pub homes: Vec<PathBuf>,
    /// Files and folders that may be written: a compiler's scratch folder, or a candidate's device nodes.
    pub writable: Vec<PathBuf>,
}

/// Values for both hard and soft limits. A lower limit that the worker itself has is not raised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Private writable memory (RLIMIT_DATA). Shared and read-only maps do not count.
    pub data: Bytes,
    /// The whole address space (RLIMIT_AS). `None` for a process with a CUDA context, whose driver reserves large
    /// ranges.
    pub address_space: Option<Bytes>,
    /// The largest file that may be written; zero for a candidate.
    pub file_size: Bytes,
    pub open_files: u32,
    pub processes: Option<ProcessLimit>,
    /// The size to which the first thread's stack may grow.
    pub stack: Bytes,
    pub locked_memory: Bytes,
}

/// A limit on processes and threads. The kernel counts them per user (since Linux 5.14 per user namespace), and
/// exempts uid 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLimit {
    /// How many threads and processes it may have itself.
    pub own: u32,
    /// Other tasks of the worker's user. They count too, unless the process gets its own user or user namespace.
    pub beside: u32,
}

/// The descriptors that a runner keeps, besides its standard streams.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors<'a> {
    /// The socket to the worker. An orphan notices its hang-up, so it must be a stream or seqpacket socket:
    /// datagram sockets never hang up.
    pub worker: BorrowedFd<'a>,
    /// The library to load, opened for reading. The path of this descriptor may be read, whoever owns the file.
    pub artifact: Option<BorrowedFd<'a>>,
    /// Libraries that are loaded before the artifact, opened in the same way.
    pub libraries: &'a [BorrowedFd<'a>],
}

#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    #[error("confining the runner: {action} was refused")]
    Refused {
        action: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("confining the runner: the worker is gone")]
    WorkerGone,
    #[error("confining the runner: it has {threads} threads already (lock down first, then start threads)")]
    Threads { threads: usize },
    #[error("confining the runner: `{}` cannot be opened (it must exist and be readable)", path.display())]
    Path {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "confining the runner: `{}` holds more than {most} files, too many for a rule each (name a narrower folder)",
        path.display()
    )]
    Crowded { path: PathBuf, most: usize },
    #[error("confining the runner: Landlock rules were refused")]
    Landlock {
        #[source]
        source: landlock::RulesetError,
    },
    #[error("confining the runner: Landlock offers ABI {abi} and did not enforce all of it")]
    LandlockPartial { abi: i32 },
    #[error("confining the runner: the system call filter could not be built")]
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

/// Gives up everything that a sandboxed process does not need. This cannot be undone, not even by our own code.
///
/// Call it while the process has a single thread: Landlock and seccomp apply to the calling thread and what it
/// starts. The result lists every requested protection, and the missing ones with `present: false`. An error
/// means that a protection was refused that every supported kernel has; in that case, do not load anything.
pub fn lock_down(
    confinement: &Confinement,
    descriptors: &Descriptors<'_>,
) -> Result<Vec<Protection>, ConfineError> {
    refuse_other_threads()?;
    let user = rustix::process::getuid();
    let mut protections = vec![parent::leave_session()?];
    // When the machine runs out of memory, the kernel should kill sandboxed processes first. If this is refused, it
    // chooses by size alone.
    let _ = oom::raise_score(oom::SANDBOXED);
    protections.push(parent::die_with_the_worker(descriptors.worker)?);
    abort::report_aborts().map_err(|source| ConfineError::Refused { action: "handling SIGABRT", source })?;
    descriptors::close_all_but(descriptors)?;
    // The rules are prepared while folders that only root may enter can still be opened.
    let files = files::Rules::prepare(confinement, descriptors)?;
    protections.extend(limits::apply(&confinement.limits)?);
    protections.extend(match confinement.kind {
        SandboxKind::Candidate => identity::become_nobody_else(confinement.user_number)?,
        SandboxKind::Compiler => identity::give_up_capabilities()?,
    });
    if let Some(processes) = confinement.limits.processes {
        let shares_user = rustix::process::getuid() == user && !limits::counted_alone();
        protections.push(limits::limit_processes(processes, shares_user)?);
    }
    // Changing the user cleared the parent-death signal and changed who may inspect this process.
    parent::die_with_the_worker(descriptors.worker)?;
    protections.push(identity::hide_memory()?);
    protections.push(identity::refuse_new_privileges()?);
    protections.extend(files.enforce()?);
    protections.push(calls::restrict(confinement)?);
    Ok(protections)
}

/// Ties one of our own processes, in which no candidate runs, to its worker: it leaves the terminal's session, dies
/// with the worker, and is closed to other processes.
pub(crate) fn tie_to_worker(worker: BorrowedFd<'_>) -> Result<(), ConfineError> {
    parent::leave_session()?;
    parent::die_with_the_worker(worker)?;
    identity::hide_memory().map(drop)
}

/// The number of threads of this process.
pub(crate) fn threads() -> usize {
    // Without /proc, threads cannot be counted, and one is assumed: callers ask before they start any themselves.
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}

/// Whether a compiler may execute this program: it is in a system folder or in a toolchain. `program` is an
/// absolute path.
pub(crate) fn compilers_may_execute(program: &Path, toolchain: &[PathBuf]) -> bool {
    files::compilers_may_execute(program, toolchain)
}

/// The system's folders of libraries that exist here, which candidates may read. Paths without links.
pub(crate) fn library_folders() -> impl Iterator<Item = PathBuf> {
    files::library_folders()
}

/// Applies Landlock alone, for a probe that finds out which protection a driver does not tolerate.
pub fn restrict_files(
    confinement: &Confinement,
    descriptors: &Descriptors<'_>,
) -> Result<Vec<Protection>, ConfineError> {
    let files = files::Rules::prepare(confinement, descriptors)?;
    identity::refuse_new_privileges()?;
    files.enforce()
}

/// Applies the system call filter alone, for the same probe.
pub fn restrict_calls(confinement: &Confinement) -> Result<Protection, ConfineError> {
    identity::refuse_new_privileges()?;
    calls::restrict(confinement)
}

fn refuse_other_threads() -> Result<(), ConfineError> {
    let threads = threads();
    if threads > 1 { Err(ConfineError::Threads { threads }) } else { Ok(()) }
}
