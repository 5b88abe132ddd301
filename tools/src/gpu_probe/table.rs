//! Rows of the table, and the format in which a section passes them to the process that prints them.

use std::fmt;

use opt_shared::units::Bytes;

pub(crate) const HEAD: &str = "| question | answer | figures |\n| --- | --- | --- |";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    question: String,
    answer: String,
    figures: String,
}

impl Row {
    pub(crate) fn new(
        question: impl Into<String>,
        answer: impl Into<String>,
        figures: impl Into<String>,
    ) -> Self {
        Self { question: question.into(), answer: answer.into(), figures: figures.into() }
    }

    /// Creates a row from a result: its figures, or the error.
    pub(crate) fn of(question: &str, result: anyhow::Result<(String, String)>) -> Self {
        match result {
            Ok((answer, figures)) => Self::new(question, answer, figures),
            Err(error) => Self::new(question, "no answer", format!("{error:#}")),
        }
    }

    pub(crate) fn line(&self) -> String {
        [&self.question, &self.answer, &self.figures].map(|cell| cell.replace(['\t', '\n'], " ")).join("\t")
    }

    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let mut cells = line.split('\t');
        Some(Self::new(cells.next()?, cells.next()?, cells.next()?))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [question, answer, figures] =
            [&self.question, &self.answer, &self.figures].map(|cell| cell.replace('|', "\\|"));
        write!(f, "| {question} | {answer} | {figures} |")
    }
}

/// Formats bytes as MiB, for a cell.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", Bytes::new(bytes).as_f64() / f64::from(1 << 20))
}

/// The kernel's figures for this process: anonymous, shared and file pages, page tables, locked memory.
pub(crate) fn resident() -> [(&'static str, u64); 5] {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ["RssAnon", "RssShmem", "RssFile", "VmPTE", "VmLck"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib: u64 =
            line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0);
        (name, kib << 10)
    })
}

/// Formats the change between two sets of figures.
pub(crate) fn change(before: &[(&'static str, u64)], after: &[(&'static str, u64)]) -> String {
    let parts: Vec<String> = before
        .iter()
        .zip(after)
        .filter(|(before, after)| before.1.abs_diff(after.1) > 1 << 16)
        .map(|((name, before), (_, after))| {
            let sign = if after < before { '-' } else { '+' };
            format!("{name} {sign}{}", mib(after.abs_diff(*before)))
        })
        .collect();
    if parts.is_empty() { "no change".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_round_trips() {
        let row = Row::new("does it?", "yes | no", "1\t2\n3");
        let back = Row::from_line(&row.line()).unwrap();
        assert_eq!(back.to_string(), "| does it? | yes \\| no | 1 2 3 |");
        assert_eq!(Row::from_line("garbage"), None);
    }

    #[test]
    fn changes_name_what_grew_and_what_shrank() {
        let before = [("RssAnon", 10 << 20), ("RssFile", 4 << 20), ("VmPTE", 100)];
        let after = [("RssAnon", 12 << 20), ("RssFile", 1 << 20), ("VmPTE", 200)];
        assert_eq!(change(&before, &after), "RssAnon +2.0 MiB, RssFile -3.0 MiB");
        assert_eq!(change(&before, &before), "no change");
        assert!(resident()[0].1 > 0);
    }
}
