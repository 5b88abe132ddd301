//! A runner's process before its setup, and the descriptors with which it starts.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use opt_shared::units::Bytes;
use opt_shared::wait::readable;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::error::RunnerError;
use crate::link::Link;
use crate::runner::control::ControlMap;
use crate::runner::frame::{receive_frame, send_frame};
use crate::runner::serve::CONTROL_FD;
use crate::runner::zygote::{Ahead, RUNNER_DESCRIPTORS};
use crate::sandbox::handle::RunnerHandle;
use crate::sandbox::spawn::{SOCKET_FD, spawn_runner};
use crate::sandbox::streams::Stream;
use crate::sandbox::timeout::Timeout;

const WAIT_SLICE: Duration = Duration::from_millis(100);

/// A runner's process, which runs our own code and waits for its setup. Dropping it kills and reaps the process.
pub(crate) struct Process {
    pub(super) handle: RunnerHandle,
    /// The memory that it owes before its candidate runs.
    pub(super) base: Bytes,
    /// The memory that it shares with the zygote from which it was copied.
    pub(super) inherited: Bytes,
    pub(super) control: ControlMap,
    pub(super) socket: OwnedFd,
    pub(super) stdout: Stream,
    pub(super) stderr: Stream,
}

impl Process {
    /// Reports the process to the supervisor, which moves the process into its control group while this worker
    /// continues.
    pub(super) fn report_ahead(self, link: &Link) -> Result<Self, RunnerError> {
        link.runner_ahead(self.handle.pid(), self.handle.start_time()?)?;
        Ok(self)
    }

    /// Wakes a copy that was made ahead. Returns false if it has ended, or does not answer in time.
    pub(super) fn wake(&self, timeout: Duration) -> bool {
        let mut limit = Timeout::of(self.handle.pid(), timeout);
        if send_frame(self.socket.as_fd(), &Ahead::Wake, &[]).is_err() {
            return false;
        }
        while !readable(&self.socket, WAIT_SLICE).unwrap_or(true) {
            if limit.ends_after(WAIT_SLICE) {
                return false;
            }
        }
        matches!(receive_frame(self.socket.as_fd()), Ok((Ahead::Awake, _)))
    }
}

/// The descriptors with which a runner's process starts, and the worker's ends of them.
pub(super) struct Parts {
    null: OwnedFd,
    stdout: Stream,
    stderr: Stream,
    theirs: OwnedFd,
    control: ControlMap,
    ours: OwnedFd,
}

impl Parts {
    /// Creates the descriptors. `output` is the number of bytes of each standard stream that are kept.
    pub(super) fn create(output: Bytes) -> Result<Self, RunnerError> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(RunnerError::Descriptors)?;
        Ok(Self {
            null: null()?,
            stdout: Stream::create(output).map_err(RunnerError::Descriptors)?,
            stderr: Stream::create(output).map_err(RunnerError::Descriptors)?,
            theirs,
            control: ControlMap::create().map_err(RunnerError::Descriptors)?,
            ours,
        })
    }

    /// Returns the runner's descriptors, in the order of their numbers.
    pub(super) fn descriptors(&self) -> Result<[BorrowedFd<'_>; RUNNER_DESCRIPTORS], RunnerError> {
        let control = self.control.descriptor().ok_or(RunnerError::Descriptors(rustix::io::Errno::BADF))?;
        Ok([
            self.null.as_fd(),
            self.stdout.descriptor(),
            self.stderr.descriptor(),
            self.theirs.as_fd(),
            control,
        ])
    }

    /// Starts a process with these descriptors. `base` is the memory that it will owe before its candidate runs.
    pub(super) fn start(
        self,
        link: &Link,
        environment: &[CString],
        base: Bytes,
    ) -> Result<Process, RunnerError> {
        let [null, stdout, stderr, socket, control] = self.descriptors()?;
        let spawned = spawn_runner(
            link.executable(),
            &[c"opt-runner", crate::RUNNER_ARGUMENT],
            environment,
            &[(null, 0), (stdout, 1), (stderr, 2), (socket, SOCKET_FD), (control, CONTROL_FD)],
            link.namespaces(),
        )
        .map_err(RunnerError::Spawn)?;
        Ok(self.with(spawned.into(), base, Bytes::ZERO))
    }

    /// Wraps a process that has these descriptors already.
    pub(super) fn with(self, handle: RunnerHandle, base: Bytes, inherited: Bytes) -> Process {
        let Self { stdout, stderr, control, ours, .. } = self;
        Process { handle, base, inherited, control, socket: ours, stdout, stderr }
    }
}

pub(super) fn null() -> Result<OwnedFd, RunnerError> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()).map_err(RunnerError::Descriptors)
}
