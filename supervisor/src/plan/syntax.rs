//! From text to a TOML tree with places. Turns what the parser has to say into mistakes of the plan.

use toml::de::DeTable;

use super::error::{Findings, Spot};

/// Mistakes after which the parser still knows where it is: all of them are reported, and the values are looked at.
const MILD: [&str; 3] = ["duplicate key", "string values must be quoted", "invalid boolean"];

/// `None` if the text is broken in such a way that its keys mean nothing.
pub(super) fn parse<'t>(text: &'t str, source: usize, findings: &mut Findings) -> Option<DeTable<'t>> {
    let (tree, mut errors) = DeTable::parse_recoverable(text);
    errors.sort_by_key(|error| error.span().map_or(0, |span| span.start));
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        let said = error.message().split(", expected literal string").next().unwrap_or_default();
        let mild = MILD.iter().any(|mild| said.starts_with(mild));
        let message = match said {
            "string values must be quoted" if span.is_empty() => "a key without a value",
            "string values must be quoted" => "a string must be quoted",
            // A word that begins like one.
            said if said.starts_with("invalid boolean") => {
                "a string must be quoted, a boolean is `true` or `false`"
            }
            "duplicate key" => "this key appears twice",
            other => other,
        };
        findings.report_syntax(&Spot { source, span, key: String::new() }, message);
        if !mild {
            // What follows is most often an echo.
            return None;
        }
    }
    Some(tree.into_inner())
}
