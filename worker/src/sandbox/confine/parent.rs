//! Ties a runner to its worker: the runner gets its own session, and dies when the worker dies.

use std::os::fd::BorrowedFd;

use opt_shared::message::Protection;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::{ConfineError, protection};

/// Leaves the terminal's session, because only the supervisor handles Ctrl-C.
pub(super) fn leave_session() -> Result<Protection, ConfineError> {
    match rustix::process::setsid() {
        Ok(_) => Ok(protection("session", true, "")),
        // Linux refuses this only if the process leads a process group. If it also leads its own session already,
        // nothing is missing.
        Err(_) if rustix::process::getsid(None).is_ok_and(|session| session == rustix::process::getpid()) => {
            Ok(protection("session", true, "already its own"))
        }
        Err(errno) => Err(ConfineError::refused("starting a session")(errno)),
    }
}

/// Makes Linux kill this process when the worker's thread that started it ends. Then checks that the worker has not
/// already ended.
///
/// The check looks for a hang-up of the socket, because `getppid` always returns 0 in a separate PID namespace.
pub(super) fn die_with_the_worker(worker: BorrowedFd<'_>) -> Result<Protection, ConfineError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(ConfineError::refused("asking to die with the worker"))?;
    let mut sockets = [PollFd::from_borrowed_fd(worker, PollFlags::empty())];
    rustix::io::retry_on_intr(|| poll(&mut sockets, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })))
        .map_err(ConfineError::refused("looking for the worker"))?;
    if sockets.iter().any(|socket| !socket.revents().is_empty()) {
        return Err(ConfineError::WorkerGone);
    }
    Ok(protection("dies_with_worker", true, ""))
}
