//! Defines the errors of launch expressions, which point to the part of the text that is wrong.

use std::ops::Range;

/// The error for an expression that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {} of `{text}`: {message}", column(text, at.start))]
pub struct SyntaxError {
    pub text: String,
    /// The byte range of the part that is wrong.
    pub at: Range<usize>,
    pub message: String,
}

/// The error for an expression that cannot be evaluated for an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} {excerpt}: {problem}")]
pub struct LaunchError {
    /// The key of the expression in the plan, such as `launch[0].grid` or `workspace[1].bytes`.
    pub key: String,
    pub excerpt: Excerpt,
    pub problem: Problem,
}

/// The part of an expression that an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    pub text: String,
    pub at: Range<usize>,
}

impl std::fmt::Display for Excerpt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = self.text.get(self.at.clone()).unwrap_or(&self.text);
        if part == self.text { write!(f, "`{part}`") } else { write!(f, "`{part}` in `{}`", self.text) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("no argument, output or workspace has this name{}", suggested(suggestion.as_deref(), known))]
    UnknownName { suggestion: Option<String>, known: Vec<String> },
    #[error("it is {found}, not {wanted}")]
    NotANumber { found: String, wanted: &'static str },
    #[error("{found} has no `{attribute}`")]
    NoAttribute { found: String, attribute: &'static str },
    #[error("index {index} is out of range: the length is {length}")]
    OutOfRange { index: i64, length: usize },
    #[error("it is None in this entry")]
    IsNone,
    #[error("the result does not fit in 64 bits")]
    Overflow,
    #[error("the divisor is {0}; it must be greater than 0")]
    Divisor(i64),
    #[error("it is {value}; it must be {least} to {most}")]
    Limit { value: i64, least: u64, most: u64 },
    #[error("the block has {threads} threads; it must have at most {most}")]
    Threads { threads: u64, most: u32 },
    #[error("{value} is not a value of the type `{wanted}`")]
    DoesNotFit { value: String, wanted: &'static str },
    #[error("it is {found}, which is passed as an address without a type (leave out `:{wanted}`)")]
    TypedAddress { found: String, wanted: &'static str },
    #[error("it is {found}, which cannot be passed to a kernel{advice}")]
    CannotPass { found: String, advice: &'static str },
}

impl Problem {
    /// True if the mistake is in the plan and does not depend on the entry.
    pub fn is_of_plan(&self) -> bool {
        matches!(self, Self::UnknownName { .. } | Self::TypedAddress { .. } | Self::NoAttribute { .. })
    }
}

/// The column of a byte offset, in characters, counted from 1.
fn column(text: &str, at: usize) -> usize {
    text.get(..at).map_or(at, |before| before.chars().count()) + 1
}

fn suggested(suggestion: Option<&str>, known: &[String]) -> String {
    match suggestion {
        Some(name) => format!(" (did you mean `{name}`?)"),
        None => format!(" (known: {})", known.join(", ")),
    }
}
