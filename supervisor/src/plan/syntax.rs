//! Parses TOML text into a tree with positions, and rewords the parser's errors as mistakes in the plan.

use toml::de::DeTable;

use super::error::{Findings, Spot};

/// Errors after which the parser continues. All of them are reported, and the values are still checked.
const RECOVERABLE: [&str; 3] = ["duplicate key", "string values must be quoted", "invalid boolean"];

/// Parses TOML text. Returns `None` if the text has an error that makes its keys meaningless.
pub(super) fn parse<'t>(text: &'t str, source: usize, findings: &mut Findings) -> Option<DeTable<'t>> {
    let (tree, mut errors) = DeTable::parse_recoverable(text);
    errors.sort_by_key(|error| error.span().map_or(0, |span| span.start));
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        let parser_message = error.message().split(", expected literal string").next().unwrap_or_default();
        let recoverable = RECOVERABLE.iter().any(|recoverable| parser_message.starts_with(recoverable));
        let message = match parser_message {
            "string values must be quoted" if span.is_empty() => "this key has no value",
            "string values must be quoted" => "a string must be quoted",
            // The parser takes any word that begins with `t` or `f` for a boolean.
            parser_message if parser_message.starts_with("invalid boolean") => {
                "a string must be quoted, and a boolean is `true` or `false`"
            }
            "duplicate key" => "this key appears twice",
            other => other,
        };
        findings.report_syntax(&Spot { source, span, key: String::new() }, message);
        if !recoverable {
            // Later errors are usually consequences of this one.
            return None;
        }
    }
    Some(tree.into_inner())
}
