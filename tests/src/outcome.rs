//! The outcome of a command, and checks of it. If a check fails, it prints everything that is known about the outcome.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::paths::files_below;
use crate::processes;

/// The maximum number of lines of a listing or a log that are printed.
const MAX_LINES: usize = 120;

pub struct Outcome {
    pub command: Vec<String>,
    /// The folder of the scenario in which the command ran.
    pub folder: PathBuf,
    pub pid: u32,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// False if the command was killed because it did not end in time.
    pub in_time: bool,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// Fails the test and prints the outcome.
    #[track_caller]
    pub fn fail(&self, why: impl fmt::Display) -> ! {
        panic!("{why}\n{self}")
    }

    #[track_caller]
    pub fn expect(&self, holds: bool, what: impl fmt::Display) {
        if !holds {
            self.fail(format_args!("check failed: {what}"));
        }
    }

    #[track_caller]
    pub fn expect_equal<T: PartialEq + fmt::Debug>(&self, found: T, expected: T, what: impl fmt::Display) {
        if found != expected {
            self.fail(format_args!("{what}: found {found:?}, expected {expected:?}"));
        }
    }

    #[track_caller]
    pub fn expect_exit(self, code: i32) -> Self {
        if self.code != Some(code) {
            self.fail(format_args!("expected exit code {code}"));
        }
        self
    }

    /// Checks that standard output contains each of `parts`.
    #[track_caller]
    pub fn expect_stdout(&self, parts: &[&str]) {
        expect_parts(self, "standard output", &self.stdout, parts);
    }

    #[track_caller]
    pub fn expect_stderr(&self, parts: &[&str]) {
        expect_parts(self, "standard error", &self.stderr, parts);
    }

    /// Parses standard output as one JSON document.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| {
            self.fail(format_args!("standard output is not one JSON document: {error}"))
        })
    }

    /// Checks that a run left only its folder behind: no process, no incomplete file, no socket.
    #[track_caller]
    pub fn expect_clean(&self, run_folder: &Path, runtime: &Path) {
        let remaining = processes::left(self.pid, run_folder);
        self.expect(
            remaining.is_empty(),
            format_args!("no process may be left, but these are: {remaining:#?}"),
        );
        let scratch: Vec<PathBuf> = files_below(run_folder)
            .into_iter()
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                path.components().any(|part| part.as_os_str() == "scratch")
                    || name.starts_with(".part-")
                    || name == ".summary.json.new"
            })
            .collect();
        self.expect(
            scratch.is_empty(),
            format_args!("no scratch file may be left, but these are: {scratch:#?}"),
        );
        self.expect(!run_folder.join("scratch").exists(), "the scratch folder is gone");
        let sockets = files_below(runtime);
        self.expect(sockets.is_empty(), format_args!("no socket may be left, but these are: {sockets:#?}"));
    }
}

#[track_caller]
fn expect_parts(outcome: &Outcome, stream: &str, text: &str, parts: &[&str]) {
    // Line breaks do not matter, because messages are wrapped to the width of the terminal.
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in parts {
        if !flat.contains(part) {
            outcome.fail(format_args!("{stream} does not contain {part:?}"));
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "command: {}", self.command.join(" "))?;
        writeln!(out, "in:      {}", self.folder.display())?;
        let late = if self.in_time { "" } else { " (killed: it did not end in time)" };
        writeln!(out, "ended:   code {:?}, signal {:?}{late}", self.code, self.signal)?;
        writeln!(out, "--- standard output\n{}", self.stdout)?;
        writeln!(out, "--- standard error\n{}", self.stderr)?;
        writeln!(out, "--- files")?;
        let files = files_below(&self.folder);
        for path in files.iter().take(MAX_LINES) {
            let bytes = std::fs::symlink_metadata(path).map_or(0, |metadata| metadata.len());
            writeln!(out, "{bytes:>10} {}", path.strip_prefix(&self.folder).unwrap_or(path).display())?;
        }
        for log in files.iter().filter(|path| path.ends_with("log.jsonl")) {
            writeln!(out, "--- end of {}", log.display())?;
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(MAX_LINES)..] {
                writeln!(out, "{line}")?;
            }
        }
        Ok(())
    }
}
