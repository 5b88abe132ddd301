//! The client side of the control socket, for `ctl` and for Rust programs that control a run. Calls block, with a
//! timeout for each answer unless `wait_forever` was called.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

/// The timeout for an answer. The server answers at once, but can be slow if it is swapped out.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum length of an answer, in bytes. It is larger than any queue of the server.
const MAX_ANSWER: u64 = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("connecting to the control socket {path}")]
    Connect { path: PathBuf, source: io::Error },
    #[error("communicating with the run")]
    Io(#[from] io::Error),
    #[error("the run closed the connection (the run has ended, or this client exceeded a limit)")]
    Closed,
    #[error("the run's answer is not JSON-RPC")]
    Garbled(#[source] Option<serde_json::Error>),
    /// The run refused the request; the message is the run's.
    #[error("{message} ({code})")]
    Refused { code: String, message: String },
}

impl ClientError {
    /// Returns the code of a refusal; `None` for other errors.
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
}

impl Client {
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let socket = UnixStream::connect(path)
            .map_err(|source| ClientError::Connect { path: path.to_owned(), source })?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { reader: BufReader::new(socket), next: 1 })
    }

    /// Removes the timeout of all later answers, because they can take arbitrarily long.
    pub fn wait_forever(&mut self) -> Result<(), ClientError> {
        Ok(self.reader.get_ref().set_read_timeout(None)?)
    }

    /// Sends a request and reads its answer.
    pub fn call(&mut self, method: &str, params: &Value) -> Result<Value, ClientError> {
        let id = self.next;
        self.next += 1;
        let mut line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
        line.push('\n');
        // A server that refuses the connection may have closed it already, but its message can still be read.
        let written = self.reader.get_mut().write_all(line.as_bytes());
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

    /// Waits for the next event of the run. `None` when the run has closed the connection, as it does when it ends. The
    /// method `events` must be called first.
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
        let count = (&mut self.reader).take(MAX_ANSWER).read_until(b'\n', &mut line);
        match count {
            Ok(0) => return Err(ClientError::Closed),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(ClientError::Closed),
            other => other?,
        };
        if line.last() != Some(&b'\n') {
            return Err(ClientError::Garbled(None));
        }
        serde_json::from_slice(&line).map_err(|error| ClientError::Garbled(Some(error)))
    }
}
