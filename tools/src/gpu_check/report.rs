//! Prints the results as a table on the terminal, and writes them as Markdown and as JSON.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::cuda::Description;
use crate::row::{Judgement, Row};
use crate::steps::{Ended, Step};

const TWIN: &str = "This is a dry run on the twin of a driver, not on a card. It shows that the steps work. Its figures say \
                    nothing about any card, and its answers are those of the emulated device.";
/// The widths of the columns on a terminal, in characters.
const CHECK: usize = 58;
const ANSWER: usize = 46;

pub(crate) struct Report {
    device: Description,
    started: SystemTime,
    steps: Vec<(Step, String, Ended)>,
    pub(crate) took: Duration,
}

impl Report {
    pub(crate) fn new(device: Description) -> Self {
        Self { device, started: SystemTime::now(), steps: Vec::new(), took: Duration::ZERO }
    }

    fn kind(&self) -> &'static str {
        if self.device.is_twin { "twin" } else { "card" }
    }

    fn described(&self) -> String {
        let it = &self.device;
        let memory = it.memory_bytes >> 20;
        format!(
            "{}: {}, {memory} MiB, compute capability {}, CUDA {}, Linux {}, gpu-check {}",
            self.kind(),
            it.name,
            it.compute_capability,
            it.cuda,
            it.linux,
            env!("CARGO_PKG_VERSION")
        )
    }

    pub(crate) fn head(&self) -> String {
        let mut text = self.described() + "\n";
        if self.device.is_twin {
            text.push_str(&wrapped(TWIN));
        }
        let _ = writeln!(
            text,
            "\n{:<9} {:<CHECK$} {:<ANSWER$} {:<ANSWER$} figures",
            "",
            "check",
            format!("on the {}", self.kind()),
            "emulated"
        );
        text
    }

    /// Stores the result of a step, and returns the lines of the table that show it.
    pub(crate) fn add(&mut self, step: Step, title: &str, ended: Ended) -> String {
        let mut text = format!("-- {title} ({}, {:.1} s)\n", step.name(), ended.took.as_secs_f64());
        for row in &ended.rows {
            let emulated = match row.emulated.as_deref() {
                Some(emulated) if emulated == row.answer => "the same",
                emulated => emulated.unwrap_or(""),
            };
            let line = format!(
                "{:<9} {:<CHECK$} {:<ANSWER$} {emulated:<ANSWER$} {}",
                row.judgement.name(),
                row.check,
                row.answer,
                row.figures
            );
            text.push_str(line.trim_end());
            text.push('\n');
        }
        self.steps.push((step, title.to_owned(), ended));
        text
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.steps.iter().flat_map(|(_, _, ended)| &ended.rows)
    }

    pub(crate) fn is_good(&self) -> bool {
        !self.rows().any(|row| row.judgement.is_bad())
    }

    pub(crate) fn last_line(&self) -> String {
        let count = |judgement| self.rows().filter(|row| row.judgement == judgement).count();
        format!(
            "{} checks in {} steps, {:.0} s on a {}: {} passed, {} failed, {} measured, {} skipped, {} without an answer",
            self.rows().count(),
            self.steps.len(),
            self.took.as_secs_f64(),
            self.kind(),
            count(Judgement::Passed),
            count(Judgement::Failed),
            count(Judgement::Measured),
            count(Judgement::Skipped),
            count(Judgement::NoAnswer)
        )
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text =
            format!("# GPU check: {}\n\n", if self.device.is_twin { "dry run" } else { &self.device.name });
        if self.device.is_twin {
            let _ = writeln!(text, "**{TWIN}**\n");
        }
        let _ = writeln!(text, "{}.\n\n{}.\n", self.described(), self.last_line());
        for (step, title, ended) in &self.steps {
            let _ = writeln!(
                text,
                "## {}{}\n\n`{}`, {:.1} s\n",
                title[..1].to_uppercase(),
                &title[1..],
                step.name(),
                ended.took.as_secs_f64()
            );
            let _ = writeln!(text, "| | check | on the {} | emulated | figures |", self.kind());
            text.push_str("| --- | --- | --- | --- | --- |\n");
            for row in &ended.rows {
                let emulated = row.emulated.as_deref().unwrap_or("");
                let cells = [row.judgement.name(), &row.check, &row.answer, emulated, &row.figures];
                for cell in cells {
                    let cell = cell.replace('|', "\\|").replace('\n', " ");
                    let _ = write!(text, "| {cell} ");
                }
                text.push_str("|\n");
            }
            text.push('\n');
        }
        text.truncate(text.trim_end().len());
        text + "\n"
    }

    pub(crate) fn json(&self) -> String {
        let since = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let steps: Vec<Value> = self
            .steps
            .iter()
            .map(|(step, title, ended)| {
                json!({
                    "step": step.name(),
                    "title": title,
                    "seconds": ended.took.as_secs_f64(),
                    "rows": ended.rows,
                })
            })
            .collect();
        let document = json!({
            "gpu_check": env!("CARGO_PKG_VERSION"),
            "kind": self.kind(),
            "device": self.device,
            "started_unix": since.as_secs(),
            "seconds": self.took.as_secs_f64(),
            "is_good": self.is_good(),
            "steps": steps,
        });
        format!("{document:#}\n")
    }
}

fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < 100 => {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n") + "\n"
}
