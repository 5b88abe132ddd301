//! The rows of the table, and the format in which a step passes them to the process that prints them.

use std::io::Write;

use anyhow::Result;
use opt_shared::units::Bytes;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Judgement {
    Passed,
    Failed,
    /// The row has a figure or an answer that cannot be right or wrong.
    Measured,
    /// The check is not possible on this device.
    Skipped,
    /// The check failed before there was an answer, or its step ended before.
    NoAnswer,
}

impl Judgement {
    pub(crate) fn of(is_right: bool) -> Self {
        if is_right { Self::Passed } else { Self::Failed }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Measured => "measured",
            Self::Skipped => "skipped",
            Self::NoAnswer => "NO ANSWER",
        }
    }

    pub(crate) fn is_bad(self) -> bool {
        matches!(self, Self::Failed | Self::NoAnswer)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) check: String,
    pub(crate) judgement: Judgement,
    /// The device's answer.
    pub(crate) answer: String,
    /// The emulated device's answer to the same check.
    pub(crate) emulated: Option<String>,
    pub(crate) figures: String,
}

impl Row {
    pub(crate) fn new(
        check: impl Into<String>,
        judgement: Judgement,
        answer: impl Into<String>,
        figures: impl Into<String>,
    ) -> Self {
        Self {
            check: check.into(),
            judgement,
            answer: answer.into(),
            emulated: None,
            figures: figures.into(),
        }
    }

    pub(crate) fn measured(
        check: impl Into<String>,
        answer: impl Into<String>,
        figures: impl Into<String>,
    ) -> Self {
        Self::new(check, Judgement::Measured, answer, figures)
    }

    pub(crate) fn emulated(self, answer: impl Into<String>) -> Self {
        Self { emulated: Some(answer.into()), ..self }
    }

    /// Creates a row from a result, which is either an answer with figures or an error.
    pub(crate) fn of(check: &str, result: Result<(String, String)>) -> Self {
        match result {
            Ok((answer, figures)) => Self::measured(check, answer, figures),
            Err(error) => Self::no_answer(check, format!("{error:#}")),
        }
    }

    pub(crate) fn no_answer(check: &str, why: impl Into<String>) -> Self {
        Self::new(check, Judgement::NoAnswer, "-", why)
    }

    /// Passes the row to the parent at once, so that a later crash does not lose the row.
    pub(crate) fn send(&self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(self)?)?;
        Ok(out.flush()?)
    }

    /// Parses a line of the step's output. Returns `None` if the line is not a row, because a driver may print lines,
    /// too.
    pub(crate) fn received(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", Bytes::new(bytes).as_f64() / f64::from(1 << 20))
}

/// Returns Linux's figures for this process: anonymous, shared and file pages, page tables, locked memory.
pub(crate) fn resident() -> [(&'static str, u64); 5] {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ["RssAnon", "RssShmem", "RssFile", "VmPTE", "VmLck"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib: u64 =
            line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0);
        (name, kib << 10)
    })
}

/// Formats the change from one set of figures to another. Leaves out changes of at most 64 KiB.
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
    fn row_survives_its_way_to_the_parent() {
        let row = Row::measured("does it?", "yes | no", "1\t2\n3").emulated("maybe");
        let line = serde_json::to_string(&row).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(Row::received(&line), Some(row));
        assert_eq!(Row::received("garbage"), None);
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
