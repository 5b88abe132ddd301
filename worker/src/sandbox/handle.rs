//! The handle with which the worker stops and continues a runner process, reads its CPU clock, detects its end, and
//! reaps it.
//!
//! Only this module reaps runners, except those whose start fails in `spawn`. Every signal goes through the pidfd,
//! never to a pid. `spawn` starts runners; `session::host::death` derives the verdict from a runner's end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use opt_shared::message::Protection;
use opt_shared::process_text;
use opt_shared::wait::readable;
use rustix::io::Errno;
use rustix::process::{Signal, WaitId, WaitIdOptions, WaitIdStatus, pidfd_send_signal, waitid};

use super::confine::abort::ABORT_STATUS;
use super::spawn::{Namespaces, SpawnedRunner};
use super::timeout::Timeout;

/// How long the worker's thread yields between two checks whether the runner has stopped, which usually takes
/// microseconds. After that, the thread sleeps for `STOP_PAUSE` between two checks.
const STOP_SPIN: Duration = Duration::from_micros(200);
const STOP_PAUSE: Duration = Duration::from_micros(50);
/// The longest time for which one sleep of `STOP_PAUSE` counts towards the timeout. Without this bound, a suspension of
/// the machine would use up the timeout at once.
const MAX_COUNTED_PAUSE: Duration = Duration::from_millis(4);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exited { code: i32 },
    Signalled { signal: i32 },
}

impl End {
    /// Returns the name of the signal, such as `SIGSEGV`, or `None` if the process exited by itself.
    pub fn signal_name(self) -> Option<&'static str> {
        match self {
            Self::Signalled { signal } => Some(
                nix::sys::signal::Signal::try_from(signal)
                    .map_or("an unknown signal", nix::sys::signal::Signal::as_str),
            ),
            Self::Exited { .. } => None,
        }
    }

    pub fn code(self) -> Option<i32> {
        match self {
            Self::Exited { code } => Some(code),
            Self::Signalled { .. } => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Every thread of the runner is stopped.
    Stopped,
    /// The runner had already ended.
    Ended,
}

#[derive(Debug, thiserror::Error)]
pub enum HandleError {
    #[error("sandboxed process {pid}: {action} failed")]
    System {
        pid: u32,
        action: &'static str,
        #[source]
        source: io::Error,
    },
    #[error(
        "sandboxed process {pid}: still running {waited:?} after SIGSTOP (one of its threads may be stuck in a system call)"
    )]
    WouldNotStop { pid: u32, waited: Duration },
}

/// Owns a child process. If it is dropped before the child is reaped, the child is killed and reaped.
#[derive(Debug)]
pub struct RunnerHandle {
    pid: u32,
    pidfd: OwnedFd,
    namespaces: Namespaces,
    protections: Vec<Protection>,
    stopped: bool,
    reaped: Option<End>,
}

impl From<SpawnedRunner> for RunnerHandle {
    fn from(runner: SpawnedRunner) -> Self {
        Self {
            pid: runner.pid,
            pidfd: runner.pidfd,
            namespaces: runner.namespaces_used,
            protections: runner.protections,
            stopped: false,
            reaped: None,
        }
    }
}

impl AsFd for RunnerHandle {
    /// The descriptor is readable once the runner is dead.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl RunnerHandle {
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    pub const fn namespaces(&self) -> Namespaces {
        self.namespaces
    }

    /// The namespaces that the worker requested for the runner, as protections that are present or missing. The runner
    /// reports all other protections itself.
    pub fn protections(&self) -> &[Protection] {
        &self.protections
    }

    /// Sends SIGSTOP, waits until Linux reports that the last thread has stopped, and then waits until the runner's CPU
    /// clock no longer advances.
    ///
    /// Afterwards, the runner executes none of its own code. But Linux reports a stop just before it switches away from
    /// the thread. If that switch is preempted, the clock may still advance by the microseconds that the switch takes.
    ///
    /// The stop is delayed while a thread is in a system call that only SIGKILL can interrupt. If the runner has not
    /// stopped after `timeout`, returns `WouldNotStop`. The time for which the machine was suspended does not count
    /// towards the timeout. The time for which the runner waited for a CPU extends the timeout, up to a bound.
    pub fn stop(&mut self, timeout: Duration) -> Result<Stop, HandleError> {
        if self.stopped {
            return Ok(if self.peek_end()?.is_some() { Stop::Ended } else { Stop::Stopped });
        }
        if self.reaped.is_some() || !self.signal(Signal::STOP, "sending SIGSTOP")? {
            return Ok(Stop::Ended);
        }
        let mut pause = Pause::new(self.pid, timeout);
        // This loop polls, because a wait with a time limit would need a SIGCHLD handler. Polling is cheap, because a
        // stop takes only microseconds.
        loop {
            // A process that has ended can still be signalled, but a wait for its stop would fail with ECHILD. So check
            // first whether it has ended.
            if self.peek_end()?.is_some() {
                return Ok(Stop::Ended);
            }
            match waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG) {
                Ok(looked) if looked.is_some_and(|status| status.stopped()) => {
                    self.stopped = true;
                    break;
                }
                // The runner may have ended in between. The next round notices that.
                Ok(_) | Err(Errno::CHILD | Errno::INTR) => {}
                Err(errno) => {
                    return Err(HandleError::System {
                        pid: self.pid,
                        action: "waiting for the stop",
                        source: errno.into(),
                    });
                }
            }
            pause.wait()?;
        }
        let mut clock = self.cpu_time()?;
        loop {
            pause.wait()?;
            let now = self.cpu_time()?;
            if now == clock {
                return Ok(Stop::Stopped);
            }
            clock = now;
        }
    }

    pub fn cont(&mut self) -> Result<(), HandleError> {
        self.stopped = false;
        if self.reaped.is_none() {
            self.signal(Signal::CONT, "sending SIGCONT")?;
        }
        Ok(())
    }

    /// Sends SIGKILL. The caller must still wait until the runner is dead, and then reap it.
    pub fn kill(&self) -> Result<(), HandleError> {
        if self.reaped.is_none() {
            self.signal(Signal::KILL, "sending SIGKILL")?;
        }
        Ok(())
    }

    /// Returns how the runner ended, or `None` if it is still alive. Does not reap it: the zombie stays.
    pub fn peek_end(&self) -> Result<Option<End>, HandleError> {
        if self.reaped.is_some() {
            return Ok(self.reaped);
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(self.wait(options, "looking for its end")?.and_then(|status| self.end(&status)))
    }

    /// Waits until the runner is dead, for at most `limit`. Returns false if it is still alive after that. Does not
    /// reap it: the zombie stays.
    pub fn wait_dead(&self, limit: Duration) -> Result<bool, HandleError> {
        readable(self, limit).map_err(|errno| HandleError::System {
            pid: self.pid,
            action: "waiting for its end",
            source: errno.into(),
        })
    }

    pub fn reap(&mut self) -> Result<End, HandleError> {
        if let Some(end) = self.reaped {
            return Ok(end);
        }
        loop {
            let status = self.wait(WaitIdOptions::EXITED, "reaping it")?;
            if let Some(end) = status.and_then(|status| self.end(&status)) {
                self.reaped = Some(end);
                return Ok(end);
            }
        }
    }

    /// The user and system time of all threads of the runner, including threads that have ended.
    ///
    /// Exact while the runner is stopped. While it runs, up to one scheduler tick per running thread is missing.
    pub fn cpu_time(&self) -> Result<Duration, HandleError> {
        let system = |source| HandleError::System { pid: self.pid, action: "reading its CPU clock", source };
        let pid =
            libc::pid_t::try_from(self.pid).map_err(|_| system(io::Error::from_raw_os_error(libc::ESRCH)))?;
        if self.reaped.is_some() {
            return Err(system(io::Error::from_raw_os_error(libc::ESRCH)));
        }
        // The pid cannot be reused before this process is reaped.
        let mut clock: libc::clockid_t = 0;
        // SAFETY: writes one clock id to the given location.
        let result = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
        if result != 0 {
            return Err(system(io::Error::from_raw_os_error(result)));
        }
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes one timespec to the given location.
        if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
            return Err(system(io::Error::last_os_error()));
        }
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
        Ok(Duration::new(seconds, nanoseconds))
    }

    /// The start time, in clock ticks since boot; together with the pid, it identifies the process.
    pub fn start_time(&self) -> Result<u64, HandleError> {
        let system = |source| HandleError::System { pid: self.pid, action: "reading its start time", source };
        if self.reaped.is_some() {
            return Err(system(io::Error::from_raw_os_error(libc::ESRCH)));
        }
        let stat = process_text::read(self.pid, "stat").map_err(system)?;
        start_time_in(&stat).ok_or_else(|| system(io::ErrorKind::InvalidData.into()))
    }

    /// Sends a signal. Returns false if there is no process left to signal.
    fn signal(&self, signal: Signal, action: &'static str) -> Result<bool, HandleError> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(errno) => Err(HandleError::System { pid: self.pid, action, source: errno.into() }),
        }
    }

    fn wait(
        &self,
        options: WaitIdOptions,
        action: &'static str,
    ) -> Result<Option<WaitIdStatus>, HandleError> {
        rustix::io::retry_on_intr(|| waitid(WaitId::PidFd(self.pidfd.as_fd()), options))
            .map_err(|errno| HandleError::System { pid: self.pid, action, source: errno.into() })
    }

    fn end(&self, status: &WaitIdStatus) -> Option<End> {
        if let Some(signal) = status.terminating_signal() {
            return Some(End::Signalled { signal });
        }
        let code = status.exit_status()?;
        // Pid 1 of a namespace cannot die of a signal that it sends itself, so its handler turns an abort into
        // this status.
        if self.namespaces.pid && code == ABORT_STATUS {
            return Some(End::Signalled { signal: libc::SIGABRT });
        }
        Some(End::Exited { code })
    }
}

impl Drop for RunnerHandle {
    fn drop(&mut self) {
        if self.reaped.is_none() {
            // A failure cannot be reported in `drop`. A runner that survives it dies with the worker.
            let _ = self.kill();
            let _ = self.reap();
        }
    }
}

/// Pauses between two checks whether the runner has stopped. Pausing fails once the time limit is used up.
struct Pause {
    pid: u32,
    started: Instant,
    limit: Duration,
    /// Counts the time that was spent asleep. `None` before the first sleep.
    asleep: Option<Timeout>,
}

impl Pause {
    fn new(pid: u32, limit: Duration) -> Self {
        Self { pid, started: Instant::now(), limit, asleep: None }
    }

    fn wait(&mut self) -> Result<(), HandleError> {
        if self.asleep.is_none() && self.started.elapsed() <= STOP_SPIN {
            std::thread::yield_now();
            return Ok(());
        }
        let asleep = self.asleep.get_or_insert_with(|| Timeout::of(self.pid, self.limit));
        std::thread::sleep(STOP_PAUSE);
        if asleep.ends_after(MAX_COUNTED_PAUSE) {
            return Err(HandleError::WouldNotStop { pid: self.pid, waited: self.limit });
        }
        Ok(())
    }
}

/// Reads the start time, which is field 22, from the text of `/proc/PID/stat`. Field 2 is a name in parentheses, which
/// may contain any characters.
fn start_time_in(stat: &str) -> Option<u64> {
    const FIELDS_AFTER_NAME_BEFORE_START: usize = 19;
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(FIELDS_AFTER_NAME_BEFORE_START)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_end_at_their_limit() {
        let mut pause = Pause::new(std::process::id(), Duration::from_millis(1));
        let ended = (0..1_000_000).find_map(|_| pause.wait().err());
        assert!(matches!(ended, Some(HandleError::WouldNotStop { .. })), "{ended:?}");
    }

    #[test]
    fn start_time_is_found_after_any_name() {
        let rest = "S 1 2 2 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 0 0";
        for name in ["cat", "a b", ") 7 (", ""] {
            assert_eq!(start_time_in(&format!("12 ({name}) {rest}")), Some(98765), "{name}");
        }
        assert_eq!(start_time_in("12 (cat) S 1"), None);
        assert_eq!(start_time_in(""), None);
    }
}
