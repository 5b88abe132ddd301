//! Renders the mistakes in a plan in the style of rustc: the line, a mark under the faulty part, and a help text.

use std::path::Path;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use super::error::{PlanError, PlanErrors, Source, printable};
use super::names::is_printable;

/// The maximum number of mistakes that are shown. More are not useful, and a plan can have a mistake in every byte.
const MAX_SHOWN: usize = 100;

/// The maximum length of a line that is shown, in bytes. If a line is longer, only the position of the mistake is
/// given.
const MAX_LINE_BYTES: usize = 400;

/// The maximum length of a path in a message, in characters. This is the system's own limit (`PATH_MAX`).
const MAX_PATH_CHARS: usize = 4096;

impl PlanErrors {
    /// Renders the mistakes for standard error, in colour if `color` is set.
    pub fn render(&self, color: bool) -> String {
        let renderer = if color { Renderer::styled() } else { Renderer::plain() };
        let mut text = String::new();
        for error in self.errors.iter().take(MAX_SHOWN) {
            let group = draw(error, self.sources.get(error.source));
            text.push_str(&renderer.render(&[group]));
            text.push_str("\n\n");
        }
        let hidden = self.errors.len().saturating_sub(MAX_SHOWN);
        if hidden > 0 {
            let noun = if hidden == 1 { "mistake" } else { "mistakes" };
            text.push_str(&format!("… and {hidden} more {noun}\n"));
        }
        text
    }
}

fn draw<'a>(error: &'a PlanError, source: Option<&'a Source>) -> Group<'a> {
    let title = Level::ERROR.primary_title(error.title());
    let window = source.filter(|_| error.line > 0).and_then(|source| window(error, &source.text));
    let mut group = if let Some((line, start, end)) = window {
        let mut mark = AnnotationKind::Primary.span(start..end);
        if let Some(expected) = &error.expected {
            mark = mark.label(expected.as_str());
        }
        let snippet = Snippet::source(line)
            .line_start(error.line)
            .path(error.file.as_str())
            .fold(false)
            .annotation(mark);
        title.element(snippet)
    } else {
        let mut origin = Origin::path(error.file.as_str());
        if error.line > 0 {
            origin = origin.line(error.line).char_column(error.column);
        }
        let mut group = title.element(origin);
        if let Some(expected) = &error.expected {
            group = group.element(Level::NOTE.message(expected.as_str()));
        }
        group
    };
    if let Some(help) = &error.help {
        group = group.element(Level::HELP.message(help.as_str()));
    }
    group
}

/// Returns the line in which a mistake begins, and the range to mark in this line.
fn window<'t>(error: &PlanError, text: &'t str) -> Option<(&'t str, usize, usize)> {
    let before = text.get(..error.span.start)?;
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let rest = &text[line_start..];
    let line = rest.split('\n').next().unwrap_or_default().trim_end_matches('\r');
    let start = error.span.start - line_start;
    // A mistake that spans several lines is marked up to the end of its first line.
    let end = error.span.end.saturating_sub(line_start).min(line.len());
    let drawable =
        line.len() <= MAX_LINE_BYTES && start <= line.len() && line.is_char_boundary(end.max(start));
    // A line with control characters could confuse a terminal, so only its position is given.
    let plain = line.chars().all(|c| c == '\t' || is_printable(c));
    (drawable && plain).then_some((line, start, end.max(start)))
}

/// Returns a path as it is shown in messages. Unprintable characters are escaped, because a file system accepts any
/// name.
pub(super) fn label(path: &Path) -> String {
    printable(&path.to_string_lossy(), MAX_PATH_CHARS)
}
