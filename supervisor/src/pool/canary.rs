//! Starts canaries, reads their output within limits, and ends them. A canary is a short-lived process of this program
//! that tries to bypass a protection of the sandbox, or answers a question about the machine. Canaries run no untrusted
//! code.
//!
//! The code that a canary runs begins at `opt_worker::canary_main`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use opt_shared::message::CANARY_ARGUMENT;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

use super::dies_within;
use super::spawn::{Executable, driver_variables};

/// The size limit of a canary's output. A canary prints at most one line for each protection, or one line with an
/// answer.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;

/// A canary that has been started. Dropping this value kills and reaps the process.
pub struct Canary {
    pid: u32,
    pidfd: OwnedFd,
    input: Option<File>,
    output: File,
}

impl Canary {
    pub fn start(executable: &Executable, arguments: &[&str]) -> io::Result<Self> {
        Self::start_with(executable, arguments, Vec::new())
    }

    /// Starts a canary with the environment variables that a worker uses to find a card's driver.
    pub fn with_driver(executable: &Executable, arguments: &[&str]) -> io::Result<Self> {
        Self::start_with(executable, arguments, driver_variables())
    }

    fn start_with(
        executable: &Executable,
        arguments: &[&str],
        variables: Vec<(OsString, OsString)>,
    ) -> io::Result<Self> {
        let mut child = Command::new(format!("/proc/self/fd/{}", executable.file.as_raw_fd()))
            .arg(CANARY_ARGUMENT)
            .args(arguments)
            .env_clear()
            .envs(variables)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let pid = child.id();
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        // The pid cannot have been reused, because the child has not been reaped. It is reaped through the pidfd later.
        let pidfd = pidfd_open(raw, PidfdFlags::empty())?;
        let input = child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe)));
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { pid, pidfd, input, output: File::from(OwnedFd::from(output)) })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets a canary begin that waits for a byte on its standard input.
    pub fn go(&mut self) -> io::Result<()> {
        self.input.as_mut().map_or(Ok(()), |input| input.write_all(b"g"))
    }

    /// Returns the canary's output. Fails if the canary does not end within `timeout`.
    pub fn output(&mut self, timeout: Duration) -> io::Result<String> {
        self.input = None;
        if !self.ends_within(timeout) {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the process did not end within {timeout:?}"),
            ));
        }
        let mut output = String::new();
        // Reading does not block, because the canary has ended. The canary could end before its output was read,
        // because the output fits into the pipe's buffer.
        (&self.output).take(MAX_OUTPUT_BYTES).read_to_string(&mut output)?;
        Ok(output)
    }

    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    pub fn ends_within(&self, timeout: Duration) -> bool {
        dies_within(&self.pidfd, timeout)
    }

    /// Returns whether SIGKILL ended the canary, or `None` if the canary is still running or cannot be waited for.
    pub fn was_killed(&self) -> Option<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), options).ok()??;
        Some(status.terminating_signal() == Some(libc::SIGKILL))
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.kill();
        let _ =
            rustix::io::retry_on_intr(|| waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED));
    }
}
