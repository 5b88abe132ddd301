//! Defines the answers to a request: a value, or a refusal with its reason.

use serde::Serialize;
use serde_json::Value;

/// The reason for a refusal, as a word that clients can rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The line is not JSON.
    ParseError,
    /// The line is JSON, but not a request.
    InvalidRequest,
    BatchRefused,
    LineTooLong,
    UnknownMethod,
    InvalidParams,
    /// The request was understood but refused, and nothing was changed.
    Refused,
    /// The request names a worker, job or candidate that the run does not have.
    NotFound,
    /// There are too many connections, too many unanswered requests on one connection, or too many waiting submissions.
    Busy,
    /// The client belongs to another user.
    Forbidden,
}

impl Code {
    /// Returns the number of this error in JSON-RPC.
    pub(super) const fn number(self) -> i32 {
        match self {
            Self::ParseError => -32_700,
            Self::InvalidRequest | Self::BatchRefused | Self::LineTooLong => -32_600,
            Self::UnknownMethod => -32_601,
            Self::InvalidParams => -32_602,
            Self::Refused => -32_000,
            Self::NotFound => -32_001,
            Self::Busy => -32_002,
            Self::Forbidden => -32_003,
        }
    }
}

/// A refusal, in the form in which it is sent to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: Code,
    pub message: String,
}

impl Refusal {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

pub type Reply = Result<Value, Refusal>;
