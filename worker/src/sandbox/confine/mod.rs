//! The lock-down of a runner: everything it gives up, in its own main, before anything foreign is loaded.
//!
//! Owns the order of the steps and the report of what this machine could not enforce. One file per step:
//! `parent` (session, death with the worker), `limits`, `descriptors`, `identity` (user, capabilities), `files`
//! (Landlock), `calls`, `call_table`, `by_number`
//! and `affinity` (seccomp), `seal` (input maps), `abort` (SIGABRT as pid 1).
//! Leaves to others: namespaces, which only the one who clones can give (`sandbox::spawn`), and the environment,
//! which is whatever was passed to exec.

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

/// Which policy a sandbox has: it depends on what runs in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxKind {
    /// A loaded library: reads system libraries and itself; writes nothing; starts threads only.
    Candidate,
    /// A compiler and its children: reads the system and the sources; writes its scratch folder.
    Compiler,
}

/// What the worker tells a runner about its sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    pub kind: SandboxKind,
    pub limits: ResourceLimits,
    /// Candidates, when the worker is root: which user of their own they become. Distinct among live runners.
    pub user_number: u32,
    /// Files and folders that may be read, beyond the system's: library folders of a candidate; include and library
    /// folders of a compiler. They must exist.
    pub readable: Vec<PathBuf>,
    /// Folders from which a compiler may execute, too. They must exist.
    pub toolchain: Vec<PathBuf>,
    /// What stays closed although it lies in a folder that is readable: captures, results. What is readable or
    /// writable by its own name stays so. Whole paths, without links.
    pub hidden: Vec<PathBuf>,
    /// Folders of the user's that stay closed where they lie in a folder of the system, likewise.
    pub homes: Vec<PathBuf>,
    /// Files and folders that may be written: a compiler's scratch folder; a candidate's device nodes, if any.
    pub writable: Vec<PathBuf>,
}

/// Hard and soft limits alike. A limit that the worker itself lies under already is not raised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Private writable memory (RLIMIT_DATA). Shared and read-only maps are not counted.
    pub data: Bytes,
    /// All address space (RLIMIT_AS); none for a process with a CUDA context, whose driver reserves it freely.
    pub address_space: Option<Bytes>,
    /// The largest file that may be written: zero for a candidate.
    pub file_size: Bytes,
    pub open_files: u32,
    pub processes: Option<ProcessLimit>,
    /// Growth of the first thread's stack.
    pub stack: Bytes,
    pub locked_memory: Bytes,
}

/// Processes and threads. The kernel counts them per user (since Linux 5.14 per user namespace) and exempts uid 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLimit {
    /// Threads and processes of its own.
    pub own: u32,
    /// Others of the worker's user: they are counted, too, where the process gets no user or user namespace of its own.
    pub beside: u32,
}

/// The descriptors a runner keeps beyond its standard streams.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors<'a> {
    /// The socket to the worker; its hang-up is how an orphan knows, so a stream or sequenced-packet one: datagram
    /// sockets never hang up.
    pub worker: BorrowedFd<'a>,
    /// The library to load, open for reading; it may be read by this descriptor's path whoever owns it.
    pub artifact: Option<BorrowedFd<'a>>,
    /// Libraries that are loaded before it, likewise.
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
        "confining the runner: `{}` holds captures or results, and beside them more than {most} files (name a narrower folder)",
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

/// Gives up everything that a sandboxed process has no business with. There is no way back, not even for us.
///
/// Call it while the process has one thread: Landlock and seccomp bind the calling thread and what it starts.
/// The answer names every protection that was asked for, the absent ones with `present: false`. An error means
/// that a protection every supported kernel has was refused: do not load anything then.
pub fn lock_down(
    confinement: &Confinement,
    descriptors: &Descriptors<'_>,
) -> Result<Vec<Protection>, ConfineError> {
    refuse_other_threads()?;
    let user = rustix::process::getuid();
    let mut protections = vec![parent::leave_session()?];
    protections.push(parent::die_with_the_worker(descriptors.worker)?);
    abort::report_aborts().map_err(|source| ConfineError::Refused { action: "handling SIGABRT", source })?;
    descriptors::close_all_but(descriptors)?;
    // Rules are made while we may still open folders that only root may enter.
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
    // Changing the user cleared the death signal and reset who may look into this process.
    parent::die_with_the_worker(descriptors.worker)?;
    protections.push(identity::hide_memory()?);
    protections.push(identity::refuse_new_privileges()?);
    protections.extend(files.enforce()?);
    protections.push(calls::restrict(confinement)?);
    Ok(protections)
}

/// Whether a compiler may execute this program, whose path is whole: it lies in a folder of the system, or of a toolchain.
pub(crate) fn compilers_may_execute(program: &Path, toolchain: &[PathBuf]) -> bool {
    files::compilers_may_execute(program, toolchain)
}

/// Landlock alone: for a probe that asks which protection a driver cannot live with.
pub fn restrict_files(
    confinement: &Confinement,
    descriptors: &Descriptors<'_>,
) -> Result<Vec<Protection>, ConfineError> {
    let files = files::Rules::prepare(confinement, descriptors)?;
    identity::refuse_new_privileges()?;
    files.enforce()
}

/// The system call filter alone, likewise.
pub fn restrict_calls(confinement: &Confinement) -> Result<Protection, ConfineError> {
    identity::refuse_new_privileges()?;
    calls::restrict(confinement)
}

fn refuse_other_threads() -> Result<(), ConfineError> {
    // Without /proc there is nothing to count; the callers are ours and lock down first thing in main.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 { Err(ConfineError::Threads { threads }) } else { Ok(()) }
}
