//! Runs of a plan over generated captures, and the results of each candidate.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use opt_tests::users::User;
use opt_tests::{Outcome, Scenario, Summary, binary, data, summary::list};
use serde_json::Value;

/// The path of a test data file, as plans write it.
pub(super) fn plan_path(below: &str) -> String {
    data(below).display().to_string()
}

/// Generates captures of an op in the folder `captures`.
pub(crate) fn generate(scenario: &Scenario, op: &str, shape: &str, entries: u32) -> PathBuf {
    gen_captures(scenario, &["op", "--name", op, "--shape", shape, "--entries", &entries.to_string()])
}

/// Generates captures of lookups in two tables. Each capture contains a whole table.
pub(super) fn generate_embedding(scenario: &Scenario, entries: u32, total: &str) -> PathBuf {
    gen_captures(scenario, &["embedding", "--entries", &entries.to_string(), "--total", total])
}

fn gen_captures(scenario: &Scenario, arguments: &[&str]) -> PathBuf {
    let program = binary().with_file_name("gen-captures");
    assert!(
        program.is_file(),
        "{} is missing: build it first, with `cargo build --workspace`",
        program.display()
    );
    let folder = scenario.path().join("captures");
    let mut command = Command::new(program);
    command.args(arguments).arg("--out").arg(&folder);
    let output = command.output().expect("gen-captures starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    folder
}

/// Runs a plan with one job until it has ended.
pub(super) fn run(scenario: &Scenario, plan: &str) -> Run {
    run_as(User::Own, scenario, plan)
}

/// Runs a plan as a user, who then owns the scenario.
pub(super) fn run_as(user: User, scenario: &Scenario, plan: &str) -> Run {
    scenario.write("plan.toml", plan);
    let program = user.program(scenario);
    user.take_ownership(scenario);
    let arguments = ["run", "--quiet", "plan.toml"];
    let mut command = scenario.command_of(&program, &arguments);
    user.apply_to(&mut command);
    let before = ipc_objects();
    let child = command.spawn().expect("the program starts");
    let outcome = scenario.finish(child, &arguments);
    let new: Vec<String> = ipc_objects().difference(&before).cloned().collect();
    outcome.expect(new.is_empty(), format_args!("no System V objects may be left behind: {new:?}"));
    Run::of(scenario, outcome)
}

/// Returns the System V shared memory, semaphores and message queues of the machine. Each item has the table, the key
/// and the id of the object.
fn ipc_objects() -> BTreeSet<String> {
    let of_table = |table: &str| {
        let text = std::fs::read_to_string(format!("/proc/sysvipc/{table}")).unwrap_or_default();
        let key_and_id = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        text.lines().skip(1).map(|line| format!("{table} {}", key_and_id(line))).collect::<Vec<_>>()
    };
    ["shm", "sem", "msg"].into_iter().flat_map(of_table).collect()
}

/// Finds shared memory and files with the names that hostile kernels use, and mounts of the scenario's folder.
fn leftovers(scenario: &Scenario) -> Vec<String> {
    let named = |folder: &str| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).filter(|path| path.contains("opt-hostile"))
    };
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("our mounts");
    let folder = scenario.path().display().to_string();
    let mounted = mounts.lines().filter(|mount| mount.contains(&folder)).map(str::to_owned);
    ["/dev/shm", "/dev/mqueue", "/tmp"].into_iter().flat_map(named).chain(mounted).collect()
}

/// A run that has ended.
pub(super) struct Run {
    pub(super) outcome: Outcome,
    pub(super) summary: Summary,
}

impl Run {
    /// Reads the result of a command that ran the scenario's plan.
    pub(super) fn of(scenario: &Scenario, outcome: Outcome) -> Self {
        let summary = Summary::read(&scenario.run_folder(), &outcome);
        outcome.expect_clean(&scenario.run_folder(), &scenario.runtime());
        let remaining = leftovers(scenario);
        outcome.expect(
            remaining.is_empty(),
            format_args!("nothing may be left behind, but there is: {remaining:?}"),
        );
        Self { outcome, summary }
    }

    fn candidates(&self) -> &[Value] {
        self.summary.jobs().first().map_or(&[], |job| list(&job["candidates"]))
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.candidates()
            .iter()
            .filter_map(|candidate| candidate["name"].as_str())
            .map(str::to_owned)
            .collect()
    }

    #[track_caller]
    pub(super) fn candidate(&self, name: &str) -> &Value {
        self.summary.candidate("job", name)
    }

    /// Returns how a candidate's end differs from the expected end, or `None` if it does not differ.
    pub(super) fn mismatch(&self, name: &str, statuses: &[&str], says: &str) -> Option<String> {
        let candidate = self.candidate(name);
        let status = candidate["status"].as_str().unwrap_or("none");
        let blame = if status == "PASSED" { &Value::Null } else { &Value::from("candidate") };
        let texts = format!("{}\n{}", candidate["detail"], candidate["stderr_tail"]);
        if statuses.contains(&status) && candidate["blame"] == *blame && texts.contains(says) {
            return None;
        }
        Some(format!(
            "`{name}` must end as one of {statuses:?} with the text `{says}`, but ended as {status}, blame {}: {texts}",
            candidate["blame"]
        ))
    }

    pub(super) fn has_protection(&self, name: &str) -> bool {
        list(&self.summary.document["host"]["protections"])
            .iter()
            .any(|protection| protection["name"] == name && protection["present"] == true)
    }
}

/// Formats the command, its output and the state of the run, for messages.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}protections: {}", self.outcome, self.summary.document["host"]["protections"])?;
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
