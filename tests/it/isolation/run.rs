//! A folder for a test, the built programs in it, and what a run left behind.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A built program, beside the test executable's folder.
pub(super) fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a path of its own");
    let profile = test.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    let program = profile.join(name);
    assert!(program.exists(), "{} is missing (build it first: cargo build --workspace)", program.display());
    program
}

/// A path of this package as plans and commands name it.
pub(super) fn plan_path(below: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(below).display().to_string()
}

/// A folder of the test's own, gone with it.
pub(super) struct Scratch {
    folder: tempfile::TempDir,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().expect("below the folder")).expect("a folder");
        fs::write(path, text).expect("written");
    }

    /// Captures of one op, in `captures`.
    pub(super) fn generate(&self, op: &str, shape: &str, entries: u32) -> PathBuf {
        self.gen_captures(&["op", "--name", op, "--shape", shape, "--entries", &entries.to_string()])
    }

    pub(super) fn generate_embedding(&self, entries: u32, total: &str) -> PathBuf {
        self.gen_captures(&["embedding", "--entries", &entries.to_string(), "--total", total])
    }

    fn gen_captures(&self, arguments: &[&str]) -> PathBuf {
        let folder = self.folder.path().join("captures");
        let mut command = Command::new(built("gen-captures"));
        command.args(arguments).arg("--out").arg(&folder);
        let output = command.output().expect("gen-captures starts");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        folder
    }

    /// Runs a plan to its end.
    pub(super) fn run(&self, plan: &str) -> Run {
        self.write("plan.toml", plan);
        let mut command = Command::new(built("opt-supervisor"));
        command.args(["run", "--quiet", "plan.toml"]).current_dir(self.folder.path());
        let output = command.output().expect("opt-supervisor starts");
        let path = self.folder.path().join("runs/plan/summary.json");
        let summary = fs::read_to_string(&path).unwrap_or_default();
        let summary = serde_json::from_str(&summary).unwrap_or_else(|error| {
            panic!("{}: {error}\n{command:?}\n{}", path.display(), String::from_utf8_lossy(&output.stderr))
        });
        Run { exit_code: output.status.code(), command: format!("{command:?}"), output, summary }
    }
}

/// A run that has ended.
pub(super) struct Run {
    pub(super) exit_code: Option<i32>,
    command: String,
    output: Output,
    pub(super) summary: Value,
}

impl Run {
    fn candidates(&self) -> impl Iterator<Item = &Value> {
        self.summary["jobs"][0]["candidates"].as_array().into_iter().flatten()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.candidates().filter_map(|candidate| candidate["name"].as_str()).map(str::to_owned).collect()
    }

    pub(super) fn candidate(&self, name: &str) -> &Value {
        self.candidates()
            .find(|candidate| candidate["name"] == name)
            .unwrap_or_else(|| panic!("no candidate `{name}`: {self}"))
    }

    /// Why a candidate did not end as it must; none if it did.
    pub(super) fn astray(&self, name: &str, statuses: &[&str], says: &str) -> Option<String> {
        let candidate = self.candidate(name);
        let status = candidate["status"].as_str().unwrap_or("none");
        let blame = if status == "PASSED" { &Value::Null } else { &Value::from("candidate") };
        let said = format!("{}\n{}", candidate["detail"], candidate["stderr_tail"]);
        if statuses.contains(&status) && candidate["blame"] == *blame && said.contains(says) {
            return None;
        }
        Some(format!(
            "`{name}` is to end as {statuses:?} saying `{says}`, and ended as {status}, blame {}: {said}",
            candidate["blame"]
        ))
    }

    /// Whether the machine gave every protection; a test says aloud what it could not show.
    pub(super) fn has_rung(&self, name: &str) -> bool {
        let rungs = self.summary["host"]["rungs"].as_array();
        rungs.into_iter().flatten().any(|rung| rung["name"] == name && rung["present"] == true)
    }
}

/// For messages: command, output and state.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{} ended with {:?}", self.command, self.exit_code)?;
        writeln!(f, "{}", String::from_utf8_lossy(&self.output.stdout))?;
        writeln!(f, "{}", String::from_utf8_lossy(&self.output.stderr))?;
        writeln!(f, "rungs: {}", self.summary["host"]["rungs"])?;
        for candidate in self.candidates() {
            writeln!(
                f,
                "  {}: {} {} {}",
                candidate["name"], candidate["status"], candidate["detail"], candidate["stderr_tail"]
            )?;
        }
        Ok(())
    }
}
