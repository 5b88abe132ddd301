//! Ties a runner to its worker: it gets its own session, and dies when the worker dies.

use std::os::fd::BorrowedFd;

use opt_shared::message::Protection;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::{ConfineError, protection};

/// Leaves the terminal's session, because the supervisor handles Ctrl-C.
pub(super) fn leave_session() -> Result<Protection, ConfineError> {
    match rustix::process::setsid() {
        Ok(_) => Ok(protection("session", true, "")),
        // Only a process group leader is refused. It already leads its own session, as intended.
        Err(_) if rustix::process::getsid(None).is_ok_and(|session| session == rustix::process::getpid()) => {
            Ok(protection("session", true, "already its own"))
        }
        Err(errno) => Err(ConfineError::refused("starting a session")(errno)),
    }
}

/// Asks for a signal when the worker's spawning thread ends, then checks that it has not ended already.
///
/// In its own PID namespace getppid returns 0 in any case, so the other end of the socket shows whether the
/// worker is alive.
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
