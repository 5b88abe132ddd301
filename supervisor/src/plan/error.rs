//! Collects the mistakes in a plan with their positions. All modules of `plan` report to this collector.
//!
//! The other modules find the mistakes, and `render` formats them.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The maximum length of a name or value that a message quotes, in characters. A longer one would fill the terminal.
const MAX_QUOTE_CHARS: usize = 80;

/// One mistake. Its message begins in lower case, because it is shown after the file and the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// The text that contains the mistake: the plan's path, `configs/default.toml`, or the `--set` argument.
    pub file: String,
    /// The line, counted from 1. 0 means the whole file.
    pub line: usize,
    /// The column in characters, counted from 1. It is 0 if `line` is 0.
    pub column: usize,
    /// The key, such as `job.verify.repeats`. It is empty if the mistake is not about a key.
    pub key: String,
    /// The text at that position, shortened by `quote`.
    pub text: String,
    pub message: String,
    pub expected: Option<String>,
    /// A suggestion for correcting the mistake.
    pub help: Option<String>,
    /// The index in `PlanErrors::sources` of the text that contains the mistake.
    pub(super) source: usize,
    /// The byte range of the mistake in that text.
    pub(super) span: Range<usize>,
    /// Whether this is a TOML syntax error. If it is, other errors about the same range are not reported.
    syntax: bool,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        write!(f, ": {}", self.title())?;
        if let Some(expected) = &self.expected {
            write!(f, ": {expected}")?;
        }
        if let Some(help) = &self.help {
            write!(f, " ({help})")?;
        }
        Ok(())
    }
}

impl PlanError {
    pub(super) fn title(&self) -> String {
        if self.key.is_empty() { self.message.clone() } else { format!("`{}`: {}", self.key, self.message) }
    }
}

/// A text that was read, with an index that converts byte offsets to lines and columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) label: String,
    pub(super) text: Arc<str>,
    /// The offset of each line, which makes it fast to find the positions of many mistakes.
    line_starts: Vec<usize>,
}

impl Source {
    /// Returns the line and the column of a byte offset, both counted from 1.
    fn position(&self, byte: usize) -> (usize, usize) {
        let mut byte = byte.min(self.text.len());
        while !self.text.is_char_boundary(byte) {
            byte -= 1;
        }
        let line = self.line_starts.partition_point(|&start| start <= byte).max(1);
        let start = self.line_starts.get(line - 1).copied().unwrap_or_default();
        (line, self.text[start..byte].chars().count() + 1)
    }
}

/// All mistakes that were found in a plan, sorted by source and position. They lead to exit code 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanErrors {
    /// The mistakes, of which there is at least one.
    pub errors: Vec<PlanError>,
    pub(super) sources: Vec<Source>,
}

impl fmt::Display for PlanErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for PlanErrors {}

impl PlanErrors {
    /// Returns an error about a file as a whole, without a position in the file.
    pub(super) fn of_file(label: String, message: String, help: Option<String>) -> Self {
        let error = PlanError {
            file: label,
            line: 0,
            column: 0,
            key: String::new(),
            text: String::new(),
            message,
            expected: None,
            help,
            source: 0,
            span: 0..0,
            syntax: false,
        };
        Self { errors: vec![error], sources: Vec::new() }
    }
}

/// A range in one of the texts, and the key that it belongs to.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    pub(super) source: usize,
    pub(super) span: Range<usize>,
    pub(super) key: String,
}

impl Spot {
    /// Returns a spot for the same key with another range, such as an element of an array, or the key instead of its
    /// value.
    pub(super) fn at(&self, span: Range<usize>) -> Self {
        Self { source: self.source, span, key: self.key.clone() }
    }
}

/// A value with its position, for checks that come later.
#[derive(Clone, Debug)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) spot: Spot,
}

/// Collects mistakes, so that all of them are reported at once.
#[derive(Debug)]
pub(super) struct Findings {
    base_dir: PathBuf,
    sources: Vec<Source>,
    errors: Vec<PlanError>,
}

impl Findings {
    pub(super) fn new(base_dir: &Path) -> Self {
        Self { base_dir: base_dir.to_owned(), sources: Vec::new(), errors: Vec::new() }
    }

    pub(super) fn add_source(&mut self, label: &str, text: &str) -> usize {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        self.sources.push(Source { label: label.to_owned(), text: text.into(), line_starts });
        self.sources.len() - 1
    }

    pub(super) fn count(&self) -> usize {
        self.errors.len()
    }

    /// Removes and returns all mistakes after the first `count`.
    pub(super) fn split_off(&mut self, count: usize) -> Vec<PlanError> {
        self.errors.split_off(count.min(self.errors.len()))
    }

    pub(super) fn put_back(&mut self, errors: Vec<PlanError>) {
        self.errors.extend(errors);
    }

    pub(super) fn report(&mut self, spot: &Spot, message: impl Into<String>) -> Report<'_> {
        let source = &self.sources[spot.source];
        let text = source.text.get(spot.span.clone()).unwrap_or_default();
        let (line, column) = source.position(spot.span.start);
        self.errors.push(PlanError {
            file: source.label.clone(),
            line,
            column,
            key: spot.key.clone(),
            text: quote(text),
            message: message.into(),
            expected: None,
            help: None,
            source: spot.source,
            span: spot.span.clone(),
            syntax: false,
        });
        Report { findings: self }
    }

    pub(super) fn report_syntax(&mut self, spot: &Spot, message: &str) {
        self.report(spot, format!("not TOML: {message}"));
        if let Some(error) = self.errors.last_mut() {
            error.syntax = true;
        }
    }

    /// Resolves a path against the plan's folder.
    pub(super) fn absolute(&self, path: &str) -> PathBuf {
        // Collecting the components drops `.` and doubled slashes. It keeps `..`, which may come after a symbolic link.
        self.base_dir.join(path).components().collect()
    }

    pub(super) fn base_dir(&self) -> &Path {
        &self.base_dir
    }

    /// Returns the mistakes if any were reported, and `value` otherwise.
    pub(super) fn finish<T>(mut self, value: Option<T>) -> Result<T, PlanErrors> {
        if self.errors.is_empty() {
            if let Some(value) = value {
                return Ok(value);
            }
            // A value should be missing only if a mistake was reported. If none was, this error ensures that the list
            // is not empty.
            return Err(PlanErrors::of_file(
                self.sources.last().map(|source| source.label.clone()).unwrap_or_default(),
                "the plan could not be resolved".to_owned(),
                None,
            ));
        }
        // The sort is stable, so mistakes at the same position keep the order in which they were found.
        self.errors.sort_by_key(|error| (error.source, error.span.start));
        self.errors.dedup_by(|later, first| {
            first.syntax && !later.syntax && (first.source, &first.span) == (later.source, &later.span)
        });
        Err(PlanErrors { errors: self.errors, sources: self.sources })
    }
}

/// The mistake that was just reported. The caller can add details to it.
pub(super) struct Report<'f> {
    findings: &'f mut Findings,
}

impl Report<'_> {
    pub(super) fn expected(self, what: impl Into<String>) -> Self {
        if let Some(error) = self.findings.errors.last_mut() {
            error.expected = Some(format!("expected {}", what.into()));
        }
        self
    }

    pub(super) fn help(self, help: impl Into<String>) -> Self {
        self.help_if(Some(help.into()))
    }

    pub(super) fn help_if(self, help: Option<String>) -> Self {
        if let (Some(error), Some(help)) = (self.findings.errors.last_mut(), help) {
            error.help = Some(help);
        }
        self
    }
}

/// Makes untrusted text safe for a message: short, on one line, and without control characters.
pub(super) fn quote(text: &str) -> String {
    printable(text, MAX_QUOTE_CHARS)
}

/// Returns the first `max` characters of a text. Unprintable characters are escaped.
pub(super) fn printable(text: &str, max: usize) -> String {
    let mut quoted = String::new();
    for (index, c) in text.chars().enumerate() {
        if index == max {
            quoted.push('…');
            break;
        }
        if super::names::is_printable(c) {
            quoted.push(c);
        } else {
            quoted.extend(c.escape_default());
        }
    }
    quoted
}

/// Returns the known word that the user most likely meant by `word`, or `None` if no known word is near.
pub(super) fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    // Up to a third of the letters may be wrong, or one letter of a short word. If more were allowed, unrelated words
    // would be suggested. Long words are not compared, because the cost is the product of the lengths.
    const MAX_WORD_BYTES: usize = 64;
    if word.len() > MAX_WORD_BYTES {
        return None;
    }
    let lowered = word.to_ascii_lowercase().replace('-', "_");
    known
        .into_iter()
        .filter(|candidate| candidate.len() <= MAX_WORD_BYTES)
        .map(|candidate| (strsim::damerau_levenshtein(&lowered, &candidate.to_ascii_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Suggests the nearest known word, or lists all of them if none is near.
pub(super) fn suggest(word: &str, known: &[&str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known: {}", list(known)),
    }
}

pub(super) fn list(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}
