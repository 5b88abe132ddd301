//! Parses one argument of a launch: an address, a number or an expression, with the type that the kernel expects.

use serde::{Deserialize, Serialize};

use super::node::Node;
use super::scalar::{ScalarType, TYPES};
use super::{SyntaxError, parse};

/// An argument such as `weight`, `indices.numel`, `1e-5:f32` or `64:i32`. It is serialized as its text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LaunchArg {
    text: String,
    pub(super) value: LaunchValue,
    pub(super) kind: Option<ScalarType>,
}

// A parsed float is never NaN, because `nan` is parsed as a name.
impl Eq for LaunchArg {}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum LaunchValue {
    /// A literal with a point or an exponent.
    Float(f64),
    Expression(Node),
}

impl LaunchArg {
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        let (end, kind) = match text.rfind(':') {
            None => (text.len(), None),
            Some(colon) => (colon, Some(type_at(text, colon + 1)?)),
        };
        let value = match float(&text[..end]) {
            Some(value) => LaunchValue::Float(value),
            None => LaunchValue::Expression(parse::part(text, end)?),
        };
        Ok(Self { text: text.to_owned(), value, kind })
    }

    pub fn text(&self) -> &str {
        &self.text
    }
}

fn type_at(text: &str, start: usize) -> Result<ScalarType, SyntaxError> {
    let name = text[start..].trim();
    TYPES.into_iter().find(|(known, _)| *known == name).map(|(_, kind)| kind).ok_or_else(|| {
        let type_names: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
        let message = format!("`{name}` is not a type (known: {})", type_names.join(", "));
        SyntaxError { text: text.to_owned(), at: start..text.len(), message }
    })
}

/// Parses a number with a point or an exponent, in the syntax of C and Python.
fn float(text: &str) -> Option<f64> {
    let text = text.trim();
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_float = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && digits.contains(['.', 'e', 'E'])
        && digits.chars().all(|c| c.is_ascii_digit() || ".eE+-".contains(c));
    if is_float { text.parse().ok() } else { None }
}

impl TryFrom<String> for LaunchArg {
    type Error = SyntaxError;

    fn try_from(text: String) -> Result<Self, SyntaxError> {
        Self::parse(&text)
    }
}

impl From<LaunchArg> for String {
    fn from(argument: LaunchArg) -> Self {
        argument.text
    }
}
