//! Connects to the control socket of a run, for `ctl` and for Rust programs that control a run. Calls block until the
//! answer arrives. Each answer has a timeout, unless `wait_forever` was called.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::{Value, json};

/// The timeout for an answer. Most answers come at once, but a submission can take 20 s, and a supervisor that is
/// swapped out is slow.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The interval at which a client checks whether a supervisor that does not answer has been stopped by a signal.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The time for which a supervisor must be stopped before a client gives up, unless the client waits forever.
const STOPPED_FOR: Duration = Duration::from_secs(3);
/// The maximum length of an answer, in bytes. It is larger than any queue of the server.
const MAX_ANSWER: u64 = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("connecting to the control socket {path}")]
    Connect { path: PathBuf, source: io::Error },
    #[error("communicating with the run through its control socket")]
    Io(#[from] io::Error),
    #[error("the run did not answer within {timeout:?} (its machine may be short of memory: try again)")]
    Silent { timeout: Duration },
    #[error(
        "the run does not answer, because its supervisor is stopped (continue it with `kill -CONT {pid}`)"
    )]
    Stopped { pid: i32 },
    #[error("the run closed the connection (the run has ended, or this client exceeded a limit)")]
    Closed,
    #[error("the run's answer is incomplete, or is not JSON-RPC")]
    Garbled(#[source] Option<serde_json::Error>),
    /// The run refused the request. `code` and `message` give the reason.
    #[error("{message} ({code})")]
    Refused { code: String, message: String },
}

impl ClientError {
    /// Returns the code of a refusal, or `None` for any other error.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            _ => None,
        }
    }
}

/// A connection to a run.
pub struct Client {
    reader: BufReader<UnixStream>,
    /// The id of the next request.
    next: u64,
    timeout: Duration,
    /// Whether the timeout is ignored while the supervisor is not stopped.
    waits: bool,
}

impl Client {
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::connect_within(path, TIMEOUT)
    }

    fn connect_within(path: &Path, timeout: Duration) -> Result<Self, ClientError> {
        let socket = socket_within(path, timeout).map_err(|errno| match errno {
            Errno::AGAIN => ClientError::Silent { timeout },
            other => ClientError::Connect { path: path.to_owned(), source: other.into() },
        })?;
        let socket = UnixStream::from(socket);
        socket.set_read_timeout(Some(timeout.min(CHECK_INTERVAL)))?;
        Ok(Self { reader: BufReader::new(socket), next: 1, timeout, waits: false })
    }

    /// Removes the timeout of all later answers, which may then take any time. If the supervisor is stopped, a wait
    /// still ends after the timeout.
    pub fn wait_forever(&mut self) {
        self.waits = true;
    }

    /// Sends a request and reads its answer.
    pub fn call(&mut self, method: &str, params: &Value) -> Result<Value, ClientError> {
        let id = self.next;
        self.next += 1;
        let mut line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
        line.push('\n');
        // If the server has refused the connection, it may have closed it already. Its message can still be read.
        let written = match self.reader.get_mut().write_all(line.as_bytes()) {
            Err(error) if is_timeout(&error) => return Err(self.silence()),
            written => written,
        };
        loop {
            let mut answer = match self.message() {
                Err(ClientError::Closed) => {
                    return Err(written.map_or_else(Into::into, |()| ClientError::Closed));
                }
                other => other?,
            };
            if let Some(error) = answer.get("error") {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                return Err(ClientError::Refused {
                    code: text(&error["data"]["code"]),
                    message: text(&error["message"]),
                });
            }
            if answer["id"] == json!(id) {
                return Ok(answer["result"].take());
            }
        }
    }

    /// Waits for the next event of the run. Returns `None` if the run has closed the connection, which it does when it
    /// ends. Call the method `events` first.
    pub fn event(&mut self) -> Result<Option<Value>, ClientError> {
        loop {
            match self.message() {
                Ok(mut message) if message["method"] == "event" => return Ok(Some(message["params"].take())),
                Ok(_) => {}
                Err(ClientError::Closed) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn message(&mut self) -> Result<Value, ClientError> {
        let mut line = Vec::new();
        let (began, mut stopped_at) = (Instant::now(), None);
        loop {
            let most = MAX_ANSWER.saturating_sub(line.len() as u64);
            match (&mut self.reader).take(most).read_until(b'\n', &mut line) {
                Ok(0) if line.is_empty() => return Err(ClientError::Closed),
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(ClientError::Closed);
                }
                // What was read so far stays in `line`.
                Err(error) if is_timeout(&error) => self.check_silence(began, &mut stopped_at)?,
                Err(error) => return Err(error.into()),
            }
        }
        if line.last() != Some(&b'\n') {
            return Err(ClientError::Garbled(None));
        }
        serde_json::from_slice(&line).map_err(|error| ClientError::Garbled(Some(error)))
    }
}

impl Client {
    /// Fails if the answer has been missing for too long since `began`, or if the supervisor has been stopped for long
    /// enough. `stopped_at` is the time at which it was first found to be stopped.
    fn check_silence(&self, began: Instant, stopped_at: &mut Option<Instant>) -> Result<(), ClientError> {
        let stopped_for = match self.silence() {
            ClientError::Stopped { .. } => stopped_at.get_or_insert_with(Instant::now).elapsed(),
            _ => {
                *stopped_at = None;
                Duration::ZERO
            }
        };
        let limit = if self.waits { self.timeout } else { STOPPED_FOR };
        if limit <= stopped_for || !self.waits && self.timeout <= began.elapsed() {
            return Err(self.silence());
        }
        Ok(())
    }

    /// Returns the error for an answer that did not come in time.
    fn silence(&self) -> ClientError {
        // This is the pid of the process that listens on the socket, or 0 if that process is in another namespace.
        match getsockopt(self.reader.get_ref(), PeerCredentials).map(|peer| peer.pid()) {
            Ok(pid) if is_stopped(pid) => ClientError::Stopped { pid },
            _ => ClientError::Silent { timeout: self.timeout },
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Connects a socket. The timeout applies to connecting and to all later writes. Connecting can block, because a
/// supervisor that is stopped accepts no connections, and the queue of connections that are waiting for it is limited.
fn socket_within(path: &Path, timeout: Duration) -> rustix::io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Returns whether a process was stopped by a signal. A stop by a debugger does not count, because it may last only a
/// moment.
fn is_stopped(pid: i32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses.
    text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn run_that_does_not_answer_is_reported() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("s");
        let _listener = UnixListener::bind(&path).expect("bound");
        let mut client = Client::connect_within(&path, SHORT).expect("connected");
        let error = client.call("status", &json!({})).expect_err("nobody answers");
        assert!(matches!(error, ClientError::Silent { timeout } if timeout == SHORT), "{error}");
        let missing = Client::connect_within(&folder.path().join("t"), SHORT);
        assert!(matches!(missing, Err(ClientError::Connect { .. })));
    }

    #[test]
    fn stopped_process_is_recognised() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("started");
        let pid = Pid::from_child(&child);
        let raw = pid.as_raw_nonzero().get();
        assert!(!is_stopped(raw) && !is_stopped(i32::MAX));
        kill_process(pid, Signal::STOP).expect("stopped");
        // The stop takes effect when the process is scheduled.
        let began = std::time::Instant::now();
        while !is_stopped(raw) && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let seen = is_stopped(raw);
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert!(seen);
    }
}
