//! Reads `summary.json` and finds jobs and candidates by name.

use std::path::Path;

use serde_json::Value;

use crate::outcome::Outcome;

pub struct Summary {
    pub document: Value,
}

impl Summary {
    #[track_caller]
    pub fn read(run_folder: &Path, outcome: &Outcome) -> Self {
        let path = run_folder.join("summary.json");
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| outcome.fail(format_args!("{}: {error}", path.display())));
        let document = serde_json::from_str(&text)
            .unwrap_or_else(|error| outcome.fail(format_args!("{}: {error}", path.display())));
        Self { document }
    }

    pub fn jobs(&self) -> &[Value] {
        list(&self.document["jobs"])
    }

    #[track_caller]
    pub fn job(&self, name: &str) -> &Value {
        named(self.jobs(), name)
    }

    #[track_caller]
    pub fn candidate(&self, job: &str, name: &str) -> &Value {
        named(list(&self.job(job)["candidates"]), name)
    }

    /// Returns the status and the blame of a candidate.
    #[track_caller]
    pub fn verdict(&self, job: &str, candidate: &str) -> (Option<&str>, Option<&str>) {
        let candidate = self.candidate(job, candidate);
        (candidate["status"].as_str(), candidate["blame"].as_str())
    }

    /// Returns the number of attempts that count. Attempts that failed because of the machine are repeated and do not
    /// count.
    #[track_caller]
    pub fn attempts_that_count(&self, job: &str, candidate: &str) -> usize {
        let attempts = list(&self.candidate(job, candidate)["attempts"]);
        attempts.iter().filter(|attempt| attempt["status"] != "INFRA_ERROR").count()
    }

    pub fn policy(&self, decision: &str) -> Vec<&Value> {
        list(&self.document["policy"]).iter().filter(|row| row["decision"] == decision).collect()
    }
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[track_caller]
fn named<'v>(rows: &'v [Value], name: &str) -> &'v Value {
    let names: Vec<&Value> = rows.iter().map(|row| &row["name"]).collect();
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no `{name}` among {names:?}"))
}
