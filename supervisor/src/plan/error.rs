//! What is wrong with a plan: every mistake with its place, and the collector that all modules of the plan report to.
//!
//! How a mistake is drawn for people belongs to `render`; which mistakes there are, to the rest.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most characters of a name or value quoted in a message; more says nothing and may fill a terminal.
const LONGEST_QUOTE: usize = 80;

/// One mistake. Messages are lowercase fragments without the key, which stands in front when they are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// The plan's path, `configs/default.toml`, or the `--set` argument.
    pub file: String,
    /// From 1; 0 where the file as a whole is meant.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// `job.verify.repeats`; empty where no key is at fault.
    pub key: String,
    /// What stands at that place.
    pub text: String,
    pub message: String,
    pub expected: Option<String>,
    /// What to do about it.
    pub help: Option<String>,
    pub(super) source: usize,
    pub(super) span: Range<usize>,
    /// The text is not even TOML there; what its value then seems to be is no second mistake.
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

/// A text that mistakes can stand in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) label: String,
    pub(super) text: Arc<str>,
    /// Where each line begins, so that a plan full of mistakes is still read in one pass.
    line_starts: Vec<usize>,
}

impl Source {
    /// Line and column, both from 1, of a byte of the text.
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

/// All mistakes of a plan, in the order in which they stand there. Exit code 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanErrors {
    /// Never empty.
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
    /// A file that could not even be read.
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

/// A place in one of the texts, and the key it belongs to.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    pub(super) source: usize,
    pub(super) span: Range<usize>,
    pub(super) key: String,
}

impl Spot {
    /// The same key elsewhere: an element of an array, or the key itself instead of its value.
    pub(super) fn at(&self, span: Range<usize>) -> Self {
        Self { source: self.source, span, key: self.key.clone() }
    }
}

/// Something read from a plan that may turn out wrong later.
#[derive(Clone, Debug)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) spot: Spot,
}

/// Collects mistakes, so that one look at a plan finds them all.
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

    /// Takes back what was reported since `count` was as given.
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

    /// A path of the plan, seen from the plan's folder.
    pub(super) fn absolute(&self, path: &str) -> PathBuf {
        // Collecting the components drops `.` and doubled slashes; `..` stays, for a link may stand before it.
        self.base_dir.join(path).components().collect()
    }

    pub(super) fn base_dir(&self) -> &Path {
        &self.base_dir
    }

    /// `value`, unless something was reported.
    pub(super) fn finish<T>(mut self, value: Option<T>) -> Result<T, PlanErrors> {
        if self.errors.is_empty() {
            if let Some(value) = value {
                return Ok(value);
            }
            // A value is only ever missing because of something reported; this keeps `errors` from being empty.
            return Err(PlanErrors::of_file(
                self.sources.last().map(|source| source.label.clone()).unwrap_or_default(),
                "the plan could not be settled".to_owned(),
                None,
            ));
        }
        // Stable: two mistakes in one place keep the order in which they were found.
        self.errors.sort_by_key(|error| (error.source, error.span.start));
        self.errors.dedup_by(|later, first| {
            first.syntax && !later.syntax && (first.source, &first.span) == (later.source, &later.span)
        });
        Err(PlanErrors { errors: self.errors, sources: self.sources })
    }
}

/// The mistake just reported, for saying more about it.
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

/// Foreign text fit for a message: bounded, one line, nothing a terminal would obey.
pub(super) fn quote(text: &str) -> String {
    printable(text, LONGEST_QUOTE)
}

/// At most `most` characters of a text, those that do not print escaped.
pub(super) fn printable(text: &str, most: usize) -> String {
    let mut quoted = String::new();
    for (index, c) in text.chars().enumerate() {
        if index == most {
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

/// The known word that `word` most likely was meant to be.
pub(super) fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    // A third of the letters may be wrong: more finds words that nobody meant. Long ones are not compared at all,
    // for the comparison costs the product of the lengths.
    const LONGEST: usize = 64;
    if word.len() > LONGEST {
        return None;
    }
    let lowered = word.to_ascii_lowercase().replace('-', "_");
    known
        .into_iter()
        .filter(|candidate| candidate.len() <= LONGEST)
        .map(|candidate| (strsim::damerau_levenshtein(&lowered, &candidate.to_ascii_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// "did you mean …", or the whole list if nothing is near.
pub(super) fn suggest(word: &str, known: &[&str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known: {}", list(known)),
    }
}

pub(super) fn list(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}
