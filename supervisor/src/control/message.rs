//! Parses requests and formats answers of JSON-RPC 2.0, with one message on each line.
//!
//! Parameters are parsed directly into the type that belongs to the method. The rest of a line is not kept.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::methods::{self, Request};
use super::refusal::{Code, Refusal, Reply};

/// The maximum length of an id in JSON, in bytes. It is enough for a UUID in quotes.
const MAX_ID: usize = 128;

/// An event, which is sent to the connections that have asked for events.
#[derive(Clone, Debug, PartialEq)]
pub struct Notification(pub Value);

/// A parsed line, with the id that the answer must have if an answer is expected.
#[derive(Debug)]
pub(super) struct ParsedLine {
    pub(super) id: Option<Box<str>>,
    pub(super) request: Result<Request, Refusal>,
}

/// A request whose parameters have not been parsed yet.
#[derive(Deserialize)]
struct Envelope<'line> {
    #[serde(borrow, default)]
    jsonrpc: Option<Cow<'line, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'line RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'line, str>>,
    #[serde(borrow, default)]
    params: Option<&'line RawValue>,
}

/// Distinguishes `"id": null`, which is a valid id, from a missing id.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Parses a line. This never fails. If the line is malformed, the result contains the error to answer with.
pub(super) fn parse(line: &[u8]) -> ParsedLine {
    let refuse = |code, message: String| ParsedLine {
        id: Some("null".into()),
        request: Err(Refusal { code, message }),
    };
    if line.trim_ascii_start().first() == Some(&b'[') {
        let message = "batches are not supported: send one request per line".to_owned();
        return refuse(Code::BatchRefused, message);
    }
    let envelope: Envelope<'_> = match serde_json::from_slice(line) {
        Ok(envelope) => envelope,
        Err(error) => {
            let code = if error.is_data() { Code::InvalidRequest } else { Code::ParseError };
            return refuse(code, format!("the line is not a request: {error}"));
        }
    };
    let id = match envelope.id.map(RawValue::get) {
        None => None,
        Some(id) if MAX_ID < id.len() => {
            return refuse(Code::InvalidRequest, format!("the id is longer than {MAX_ID} bytes"));
        }
        Some(id) if id.starts_with(['{', '[', 't', 'f']) => {
            return refuse(Code::InvalidRequest, "the id must be a number, a string or null".to_owned());
        }
        Some(id) => Some(Box::from(id)),
    };
    let invalid = |message: &str| Err(Refusal::new(Code::InvalidRequest, message));
    let request = match (envelope.jsonrpc.as_deref(), envelope.method) {
        (Some("2.0"), Some(method)) => methods::parse(&method, envelope.params.map(RawValue::get)),
        (Some("2.0"), None) => invalid("`method` is missing"),
        _ => invalid("`jsonrpc` must be \"2.0\""),
    };
    // A request without an id expects no answer, but gets one if it is an error.
    let id = if id.is_none() && request.is_err() { Some("null".into()) } else { id };
    ParsedLine { id, request }
}

/// Formats an answer as a line, including the newline.
pub(super) fn format_answer(id: &str, reply: &Reply) -> Vec<u8> {
    #[derive(Serialize)]
    struct Error<'a> {
        code: i32,
        message: &'a str,
        data: Data,
    }
    #[derive(Serialize)]
    struct Data {
        code: Code,
    }
    #[derive(Serialize)]
    struct Line<'a> {
        jsonrpc: &'static str,
        id: &'a RawValue,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<&'a Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<Error<'a>>,
    }
    let Ok(id) = serde_json::from_str::<&RawValue>(id) else { return Vec::new() };
    let (result, error) = match reply {
        Ok(value) => (Some(value), None),
        Err(Refusal { code, message }) => {
            (None, Some(Error { code: code.number(), message, data: Data { code: *code } }))
        }
    };
    line(&Line { jsonrpc: "2.0", id, result, error })
}

pub(super) fn format_event(notification: &Notification) -> Vec<u8> {
    #[derive(Serialize)]
    struct Line<'a> {
        jsonrpc: &'static str,
        method: &'static str,
        params: &'a Value,
    }
    line(&Line { jsonrpc: "2.0", method: "event", params: &notification.0 })
}

fn line<T: Serialize>(message: &T) -> Vec<u8> {
    // Messages contain only maps with string keys, so this cannot fail.
    let mut bytes = serde_json::to_vec(message).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}
