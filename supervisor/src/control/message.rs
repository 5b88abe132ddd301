//! JSON-RPC 2.0 with one message per line: parses requests and formats answers.
//!
//! Parameters are parsed straight into the method's type; nothing else of a line is kept.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::methods::{self, Request};
use super::refusal::{Code, Refusal, Reply};

/// Longest id as written: enough for a UUID in quotes.
const MAX_ID: usize = 128;

/// An event for connections that listen.
#[derive(Clone, Debug, PartialEq)]
pub struct Notification(pub Value);

/// A parsed line, and the id to answer to, if an answer is expected.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) id: Option<Box<str>>,
    pub(super) request: Result<Request, Refusal>,
}

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

/// `"id": null` is an id; a missing one is not.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Parses a line. It never fails: a malformed line yields the error to answer with.
pub(super) fn read(line: &[u8]) -> Asked {
    let refuse =
        |code, message: String| Asked { id: Some("null".into()), request: Err(Refusal { code, message }) };
    if line.trim_ascii_start().first() == Some(&b'[') {
        let message = "batches are not served: send one request a line".to_owned();
        return refuse(Code::BatchRefused, message);
    }
    let envelope: Envelope<'_> = match serde_json::from_slice(line) {
        Ok(envelope) => envelope,
        Err(error) => {
            let code = if error.is_data() { Code::InvalidRequest } else { Code::ParseError };
            return refuse(code, format!("the line is no request: {error}"));
        }
    };
    let id = match envelope.id.map(RawValue::get) {
        None => None,
        Some(id) if MAX_ID < id.len() => {
            return refuse(Code::InvalidRequest, format!("the id is longer than {MAX_ID} bytes"));
        }
        Some(id) if id.starts_with(['{', '[', 't', 'f']) => {
            return refuse(Code::InvalidRequest, "an id is a number, a text or null".to_owned());
        }
        Some(id) => Some(Box::from(id)),
    };
    let invalid = |message: &str| Err(Refusal::new(Code::InvalidRequest, message));
    let request = match (envelope.jsonrpc.as_deref(), envelope.method) {
        (Some("2.0"), Some(method)) => methods::read(&method, envelope.params.map(RawValue::get)),
        (Some("2.0"), None) => invalid("`method` is missing"),
        _ => invalid("`jsonrpc` has to be \"2.0\""),
    };
    // A request without an id expects no answer, but an error is reported all the same.
    let id = if id.is_none() && request.is_err() { Some("null".into()) } else { id };
    Asked { id, request }
}

/// An answer as a line, with its newline.
pub(super) fn write(id: &str, reply: &Reply) -> Vec<u8> {
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

pub(super) fn notify(notification: &Notification) -> Vec<u8> {
    #[derive(Serialize)]
    struct Line<'a> {
        jsonrpc: &'static str,
        method: &'static str,
        params: &'a Value,
    }
    line(&Line { jsonrpc: "2.0", method: "event", params: &notification.0 })
}

fn line<T: Serialize>(message: &T) -> Vec<u8> {
    // Our values contain only maps with string keys, so this cannot fail.
    let mut bytes = serde_json::to_vec(message).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}
