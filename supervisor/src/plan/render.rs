//! Draws the mistakes of a plan as rustc would: the line, a mark under the culprit, and what to do.

use std::path::Path;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use super::error::{PlanError, PlanErrors, Source, printable};
use super::names::is_printable;

/// Nobody reads more, and a plan can hold a mistake in each of its bytes.
const MOST_SHOWN: usize = 100;

/// Longest line of the plan that is drawn; of a longer one only its place is given.
const LONGEST_LINE: usize = 400;

/// What the system itself allows (PATH_MAX).
const LONGEST_PATH: usize = 4096;

impl PlanErrors {
    /// For standard error. `color` is the caller's to decide: a terminal, and no `NO_COLOR`.
    pub fn render(&self, color: bool) -> String {
        let renderer = if color { Renderer::styled() } else { Renderer::plain() };
        let mut text = String::new();
        for error in self.errors.iter().take(MOST_SHOWN) {
            let group = draw(error, self.sources.get(error.source));
            text.push_str(&renderer.render(&[group]));
            text.push_str("\n\n");
        }
        let left = self.errors.len().saturating_sub(MOST_SHOWN);
        if left > 0 {
            text.push_str(&format!("… and {left} more mistakes\n"));
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

/// The line a mistake begins in, and the part of it that is marked.
fn window<'t>(error: &PlanError, text: &'t str) -> Option<(&'t str, usize, usize)> {
    let before = text.get(..error.span.start)?;
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let rest = &text[line_start..];
    let line = rest.split('\n').next().unwrap_or_default().trim_end_matches('\r');
    let start = error.span.start - line_start;
    // A mistake that spans lines is marked to the end of its first one.
    let end = error.span.end.saturating_sub(line_start).min(line.len());
    let drawable = line.len() <= LONGEST_LINE && start <= line.len() && line.is_char_boundary(end.max(start));
    // A line that would play tricks on a terminal is named by its place only.
    let plain = line.chars().all(|c| c == '\t' || is_printable(c));
    (drawable && plain).then_some((line, start, end.max(start)))
}

/// A path as messages name it; the file system lets it hold anything.
pub(super) fn label(path: &Path) -> String {
    printable(&path.to_string_lossy(), LONGEST_PATH)
}
