//! Reads the answers of a run for `top`. Missing values become unknown, surplus rows are dropped, and no text can
//! control the terminal.

use opt_shared::units::Bytes;
use serde_json::Value;

/// The length of the longest text, in characters. Names of candidates are paths, and reasons are sentences.
const MAX_TEXT: usize = 400;
/// The largest number of rows in any list. Further rows are not shown. A run accepts 10,000 submissions.
pub(super) const MAX_ROWS: usize = 20_000;

/// Shortens a text, and replaces control characters and marks of writing direction with spaces. This is necessary
/// because names and details are untrusted.
pub(super) fn clean(text: &str) -> String {
    let harmful = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.chars().take(MAX_TEXT).map(|c| if harmful(c) { ' ' } else { c }).collect()
}

pub(super) fn text(value: &Value) -> String {
    clean(value.as_str().unwrap_or_default())
}

pub(super) fn list(value: &Value) -> &[Value] {
    let all = value.as_array().map_or(&[][..], Vec::as_slice);
    &all[..all.len().min(MAX_ROWS)]
}

pub(super) fn bytes(value: &Value) -> Option<Bytes> {
    value.as_u64().map(Bytes::new)
}

pub(super) fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok())
}

pub(super) fn seconds(value: &Value) -> Option<f64> {
    value.as_f64().filter(|seconds| seconds.is_finite() && 0.0 <= *seconds)
}

/// Returns the figures of a decision as text, such as `worker 3, candidate softmax/fast, owed 1.00 MiB`.
pub(super) fn figures(decision: &Value) -> String {
    let Some(numbers) = decision["numbers"].as_object() else { return String::new() };
    let shown = numbers.iter().map(|(name, value)| match (name.strip_suffix("_bytes"), value.as_u64()) {
        (Some(name), Some(bytes)) => format!("{name} {}", Bytes::new(bytes)),
        _ => match decision["names"][name].as_str() {
            Some(called) => format!("{name} {called}"),
            None => format!("{name} {value}"),
        },
    });
    clean(&shown.collect::<Vec<_>>().join(", "))
}

/// Returns a number of steps with its noun, such as `2 steps`.
pub(super) fn counted_steps(steps: u32) -> String {
    if steps == 1 { "1 step".to_owned() } else { format!("{steps} steps") }
}
