//! Answers: a value, or the reason for a refusal.

use serde::Serialize;
use serde_json::Value;

/// Why a request was refused: stable words that programs may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The line is not JSON.
    ParseError,
    /// It is JSON, but not a request.
    InvalidRequest,
    BatchRefused,
    LineTooLong,
    UnknownMethod,
    InvalidParams,
    /// The request was understood, and nothing was changed.
    Refused,
    /// It names a worker, job or candidate that the run does not have.
    NotFound,
    /// More connections, or more requests waiting for a result, than are served.
    Busy,
    /// Another user.
    Forbidden,
}

impl Code {
    /// The number that JSON-RPC asks for.
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

/// An error in an answer.
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
