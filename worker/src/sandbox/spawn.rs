//! Starts a runner: calls `clone` with a pidfd and new namespaces, and then executes our own executable by its
//! descriptor.
//!
//! The runner's main locks the process down (`sandbox::confine`). [`RunnerHandle`](super::handle::RunnerHandle)
//! controls the runner after the start.
//!
//! `std::process::Command` can neither create namespaces nor return a pidfd. This file calls `clone` and not `clone3`,
//! because the filters of some containers refuse `clone3` with ENOSYS.

use std::ffi::{CStr, CString, c_char, c_int};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::{WaitId, WaitIdOptions};
use serde::{Deserialize, Serialize};

use opt_shared::message::Protection;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    /// Requests a PID namespace. In it, the runner is pid 1: it sees only processes that it has started, and they end
    /// with it.
    pub pid: bool,
    /// Requests an IPC namespace, in which the runner cannot reach System V segments and message queues of the host.
    pub ipc: bool,
}

impl Namespaces {
    pub const ALL: Self = Self { pid: true, ipc: true };
    pub const NONE: Self = Self { pid: false, ipc: false };

    pub(super) fn flags(self) -> c_int {
        let mut flags = 0;
        if self.pid {
            flags |= libc::CLONE_NEWPID;
        }
        if self.ipc {
            flags |= libc::CLONE_NEWIPC;
        }
        // Without privileges, the other namespaces can be created only together with a user namespace. This user
        // namespace has no id maps, so the process's permissions stay the same, and exec drops its capabilities.
        if flags != 0 && !rustix::process::geteuid().is_root() {
            flags |= libc::CLONE_NEWUSER;
        }
        flags
    }
}

/// A runner that has been started. Turn it into a [`RunnerHandle`](super::handle::RunnerHandle) at once, because
/// dropping a `SpawnedRunner` does not end the process.
#[derive(Debug)]
pub struct SpawnedRunner {
    /// Its pid in the worker's PID namespace.
    pub pid: u32,
    pub pidfd: OwnedFd,
    pub namespaces_used: Namespaces,
    /// The wanted namespaces as protections. Refused ones are marked as missing.
    pub protections: Vec<Protection>,
}

#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error(
        "preparing a sandboxed process: {action} (raise the limit on open files if it is reached, or free memory)"
    )]
    Prepare {
        action: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("starting a sandboxed process: clone was refused (raise the limit on processes, or free memory)")]
    Clone {
        #[source]
        source: io::Error,
    },
    #[error("starting a sandboxed process: in the new process, {step} failed")]
    Child {
        step: &'static str,
        #[source]
        source: io::Error,
    },
}

/// In a sandboxed process, the descriptor of the socket to the process that started it.
pub const SOCKET_FD: i32 = 3;
/// The steps that can fail in the new process. If one does, the process sends the index of this step through a pipe.
const CHILD_STEPS: [&str; 2] =
    ["giving an inherited descriptor its number", "execveat of our own executable"];
const STEP_DUP: u32 = 0;
const STEP_EXEC: u32 = 1;

const EXEC_FAILED: c_int = 127;

/// One more than the highest signal number of Linux.
const SIGNAL_END: c_int = 65;

/// The data that the child uses between clone and exec. It is prepared before the clone, because the child must not
/// allocate.
struct ChildPlan<'a> {
    executable: RawFd,
    arguments: &'a [*const c_char],
    environment: &'a [*const c_char],
    /// Pairs of a descriptor's present number and the number that it gets. No present number is also a new number of
    /// another pair; see `spawn_runner`.
    descriptors: &'a [(RawFd, RawFd)],
    /// Inclusive ranges of descriptors to close. They contain everything except the new numbers, the executable and the
    /// report pipe.
    close: &'a [(u32, u32)],
    report: RawFd,
    mask: &'a libc::sigset_t,
    default_action: &'a libc::sigaction,
}

/// Starts `executable` with the descriptors in `inherited`, each under the number beside it. Before Linux 5.9, the
/// runner also inherits all other descriptors that are not close-on-exec.
///
/// The runner's parent-death signal is tied to the calling *thread*, so call this from a thread that lives as long as
/// the worker. `inherited` must also contain the standard streams, with the numbers 0, 1 and 2.
pub fn spawn_runner(
    executable: BorrowedFd<'_>,
    arguments: &[&CStr],
    environment: &[CString],
    inherited: &[(BorrowedFd<'_>, RawFd)],
    namespaces: Namespaces,
) -> Result<SpawnedRunner, SpawnError> {
    let prepare =
        |action| move |source: rustix::io::Errno| SpawnError::Prepare { action, source: source.into() };
    // First duplicate all descriptors to numbers above all targets. Otherwise, moving one descriptor to its target
    // could overwrite another one that has not been moved yet.
    let floor = inherited.iter().map(|(_, target)| *target).max().unwrap_or(2).max(2).saturating_add(1);
    let lift = |fd: BorrowedFd<'_>| {
        rustix::io::fcntl_dupfd_cloexec(fd, floor).map_err(prepare("duplicating a descriptor"))
    };
    let lifted_executable = lift(executable)?;
    let mut sources = Vec::with_capacity(inherited.len());
    for (fd, target) in inherited {
        sources.push((lift(*fd)?, *target));
    }
    let (report_read, report_write) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(prepare("opening a pipe"))?;
    let lifted_report = lift(report_write.as_fd())?;
    drop(report_write);

    let descriptors: Vec<(RawFd, RawFd)> =
        sources.iter().map(|(fd, target)| (fd.as_raw_fd(), *target)).collect();
    let mut kept_descriptors: Vec<RawFd> = inherited.iter().map(|(_, target)| *target).collect();
    kept_descriptors.extend([lifted_executable.as_raw_fd(), lifted_report.as_raw_fd()]);
    let close = gaps_between(kept_descriptors);
    let argument_pointers = null_terminated(arguments.iter().copied());
    let environment_pointers = null_terminated(environment.iter().map(CString::as_c_str));

    // SAFETY: all-zero bytes are a valid, empty signal set, and a sigaction with SIG_DFL and no flags.
    let (mask, default_action) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let plan = ChildPlan {
        executable: lifted_executable.as_raw_fd(),
        arguments: &argument_pointers,
        environment: &environment_pointers,
        descriptors: &descriptors,
        close: &close,
        report: lifted_report.as_raw_fd(),
        mask: &mask,
        default_action: &default_action,
    };

    let ((pid, pidfd), namespaces_used, protections) =
        with_fallback(namespaces, |namespaces| clone_child(&plan, namespaces.flags()))?;
    drop(lifted_report);
    if let Some(error) = read_report(report_read) {
        // The child exits right after its report, so this wait is short. It reaps only this child.
        let _ = rustix::io::retry_on_intr(|| {
            rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)
        });
        return Err(error);
    }
    Ok(SpawnedRunner { pid, pidfd, namespaces_used, protections })
}

/// Calls `clone` with all wanted namespaces, and if that is refused, with all but the IPC namespace, and then with
/// none, because a container may allow only some. Also returns each wanted namespace as a protection, present or
/// missing.
pub(super) fn with_fallback<T>(
    wanted: Namespaces,
    mut clone: impl FnMut(Namespaces) -> io::Result<T>,
) -> Result<(T, Namespaces, Vec<Protection>), SpawnError> {
    let mut attempts = vec![wanted];
    for weaker in [Namespaces { ipc: false, ..wanted }, Namespaces::NONE] {
        if !attempts.contains(&weaker) {
            attempts.push(weaker);
        }
    }
    let mut refusal = None;
    for (index, namespaces) in attempts.iter().enumerate() {
        match clone(*namespaces) {
            Ok(cloned) => {
                let protections = namespace_protections(wanted, *namespaces, refusal.as_ref());
                return Ok((cloned, *namespaces, protections));
            }
            Err(error) if index + 1 < attempts.len() && is_namespace_refusal(&error) => refusal = Some(error),
            Err(source) => return Err(SpawnError::Clone { source }),
        }
    }
    Err(SpawnError::Clone { source: refusal.unwrap_or_else(|| io::Error::from_raw_os_error(libc::EPERM)) })
}

/// Returns true if an error means that namespaces are refused, and false if it means a lack of processes or memory.
fn is_namespace_refusal(error: &io::Error) -> bool {
    // ENOSPC: there are too many namespaces, or they are nested too deeply. In these cases, older versions of Linux
    // return EUSERS.
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::EACCES | libc::ENOSPC | libc::EUSERS | libc::EINVAL | libc::ENOSYS)
    )
}

fn namespace_protections(
    wanted: Namespaces,
    used: Namespaces,
    refusal: Option<&io::Error>,
) -> Vec<Protection> {
    let protection = |name: &str, wanted: bool, used: bool| {
        wanted.then(|| Protection {
            name: name.to_owned(),
            present: used,
            detail: match (used, refusal) {
                (true, _) if rustix::process::geteuid().is_root() => String::new(),
                (true, _) => "inside a user namespace".to_owned(),
                (false, Some(error)) => format!("clone was refused: {error}"),
                (false, None) => "clone was refused".to_owned(),
            },
        })
    };
    [protection("pid_namespace", wanted.pid, used.pid), protection("ipc_namespace", wanted.ipc, used.ipc)]
        .into_iter()
        .flatten()
        .collect()
}

fn clone_child(plan: &ChildPlan<'_>, namespace_flags: c_int) -> io::Result<(u32, OwnedFd)> {
    let every_signal = full_signal_set();
    let mut previous = every_signal;
    // Signals are blocked during the clone, so that none of our handlers runs in the child.
    // SAFETY: both sets are initialised and live; pthread_sigmask changes only this thread's mask.
    let masked =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const every_signal, &raw mut previous) };
    if masked != 0 {
        return Err(io::Error::from_raw_os_error(masked));
    }
    // SAFETY: the child calls only `run_child`, which never returns. `run_child` allocates nothing, because at the time
    // of the clone another thread may have held the allocator's lock. The child's copy of memory contains `plan`.
    let cloned = unsafe {
        match clone(namespace_flags, std::ptr::null_mut()) {
            Ok(Cloned::Copy) => run_child(plan),
            Ok(Cloned::Original(pid, pidfd)) => Ok((pid, pidfd)),
            Err(error) => Err(error),
        }
    };
    // SAFETY: `previous` was filled by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const previous, std::ptr::null_mut()) };
    cloned
}

/// The process in which `clone` has returned. It returns once in the copy and once in the original.
pub(super) enum Cloned {
    Copy,
    /// The calling process. Contains the pid and the pidfd of the new process.
    Original(u32, OwnedFd),
}

/// Calls `clone` once, with a pidfd and the given flags, and without CLONE_VM. `child_tid` is the location that
/// CLONE_CHILD_SETTID uses.
///
/// # Safety
///
/// The requirements of `fork` apply: only the calling thread continues in the copy, and locks that other threads held
/// at the time stay locked there. `child_tid` must be null, or the location in which the C library keeps this thread's
/// number.
pub(super) unsafe fn clone(flags: c_int, child_tid: *mut c_int) -> io::Result<Cloned> {
    let flags = i64::from(libc::CLONE_PIDFD | libc::SIGCHLD | flags);
    let mut pidfd: c_int = -1;
    // SAFETY: without CLONE_VM, the child has a copy of our memory. Because the stack argument is null, the child
    // continues on its copy of this stack, as after fork. With CLONE_PIDFD, Linux stores the descriptor at the third
    // argument, and `pidfd` outlives the call. The order of the last two arguments depends on the architecture; one of
    // them would set up thread-local storage, which is not requested.
    let result = unsafe {
        #[cfg(target_arch = "x86_64")]
        let result = libc::syscall(libc::SYS_clone, flags, 0_usize, &raw mut pidfd, child_tid, 0_usize);
        #[cfg(not(target_arch = "x86_64"))]
        let result = libc::syscall(libc::SYS_clone, flags, 0_usize, &raw mut pidfd, 0_usize, child_tid);
        result
    };
    match u32::try_from(result) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(0) => Ok(Cloned::Copy),
        // SAFETY: Linux has just stored a new descriptor there, and nothing else owns that descriptor.
        Ok(pid) => Ok(Cloned::Original(pid, unsafe { OwnedFd::from_raw_fd(pidfd) })),
    }
}

fn full_signal_set() -> libc::sigset_t {
    // SAFETY: zero is a valid set, and sigfillset writes only to the set it is given.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        set
    }
}

/// Sets up signals and descriptors in the child, and then executes the program. Does not return.
///
/// # Safety
///
/// Call it only in a new child of `clone` without CLONE_VM. It calls only async-signal-safe functions.
unsafe fn run_child(plan: &ChildPlan<'_>) -> ! {
    // SAFETY: each call gets integers, or pointers into `plan`, which was built before the clone and is
    // null-terminated where Linux expects it. Errors are reported; nothing unwinds.
    unsafe {
        // Exec resets handlers but keeps ignored signals ignored, and Rust's runtime ignores SIGPIPE. For the signals
        // whose action cannot be changed, this call fails, but they need no reset.
        for signal in 1..SIGNAL_END {
            libc::sigaction(signal, plan.default_action, std::ptr::null_mut());
        }
        for (source, target) in plan.descriptors {
            if libc::dup3(*source, *target, 0) < 0 {
                give_up(plan.report, STEP_DUP);
            }
        }
        for (first, last) in plan.close {
            // Linux before 5.9 does not have this call. In that case, exec closes our own descriptors, which are
            // close-on-exec, and the runner closes the others.
            libc::syscall(libc::SYS_close_range, *first, *last, 0_u32);
        }
        libc::sigprocmask(libc::SIG_SETMASK, plan.mask, std::ptr::null_mut());
        libc::syscall(
            libc::SYS_execveat,
            plan.executable,
            c"".as_ptr(),
            plan.arguments.as_ptr(),
            plan.environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
        give_up(plan.report, STEP_EXEC)
    }
}

/// Reports to the parent which step failed and why, and exits.
///
/// # Safety
///
/// The requirements of `run_child` apply.
unsafe fn give_up(report: RawFd, step: u32) -> ! {
    // SAFETY: errno is thread-local and this process has one thread; the message is on this stack.
    unsafe {
        let errno = (*libc::__errno_location()).cast_unsigned();
        let message = (u64::from(step) << 32 | u64::from(errno)).to_ne_bytes();
        libc::write(report, message.as_ptr().cast(), message.len());
        libc::_exit(EXEC_FAILED)
    }
}

/// Waits until the pipe is closed. Eight bytes are the report of a child that failed. No bytes mean that exec
/// succeeded, or that the child was killed before exec. In the latter case, the runner's handle reports the death.
fn read_report(pipe: OwnedFd) -> Option<SpawnError> {
    let mut message = [0; 8];
    match std::fs::File::from(pipe).read_exact(&mut message) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
        Err(source) => Some(SpawnError::Prepare { action: "reading the new process's report", source }),
        Ok(()) => {
            let packed = u64::from_ne_bytes(message);
            let step = usize::try_from(packed >> 32).ok().and_then(|step| CHILD_STEPS.get(step));
            let errno = i32::try_from(packed & u64::from(u32::MAX)).unwrap_or(libc::EIO);
            Some(SpawnError::Child {
                step: step.copied().unwrap_or("an unknown step"),
                source: io::Error::from_raw_os_error(errno),
            })
        }
    }
}

fn null_terminated<'a>(texts: impl Iterator<Item = &'a CStr>) -> Vec<*const c_char> {
    texts.map(CStr::as_ptr).chain([std::ptr::null()]).collect()
}

/// Returns the inclusive ranges of descriptor numbers that contain none of `kept`.
pub(crate) fn gaps_between(mut kept: Vec<RawFd>) -> Vec<(u32, u32)> {
    kept.sort_unstable();
    kept.dedup();
    let mut gaps = Vec::with_capacity(kept.len() + 1);
    let mut next = 0;
    for number in kept.into_iter().filter_map(|fd| u32::try_from(fd).ok()) {
        if number > next {
            gaps.push((next, number - 1));
        }
        next = number + 1;
    }
    gaps.push((next, u32::MAX));
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_contain_every_number_except_the_kept_ones() {
        for (kept, gaps) in [
            (vec![], vec![(0, u32::MAX)]),
            (vec![0, 1, 2], vec![(3, u32::MAX)]),
            (vec![5, 0, 3, 3], vec![(1, 2), (4, 4), (6, u32::MAX)]),
        ] {
            assert_eq!(gaps_between(kept.clone()), gaps, "{kept:?}");
        }
    }
}
