//! Reads a run's database by SQL. It reads a copy, because reading may modify the original.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub stage: String,
    pub number: u32,
    pub status: Option<String>,
    pub superseded: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The names of the candidates that have ended.
    pub finished: BTreeSet<String>,
    pub attempts: BTreeMap<String, Vec<Attempt>>,
}

impl Record {
    /// Reads the database. The record is empty if the run was killed before it had created its tables.
    pub fn read(run: &Path) -> Self {
        let copy = tempfile::tempdir().expect("a folder");
        for name in ["run.sqlite", "run.sqlite-wal"] {
            if run.join(name).is_file() {
                fs::copy(run.join(name), copy.path().join(name)).expect("copied");
            }
        }
        let database = copy.path().join("run.sqlite");
        if !database.is_file() {
            return Self::default();
        }
        let connection = rusqlite::Connection::open(database).expect("a database");
        let tables: u32 = connection
            .query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'attempt'", [], |row| row.get(0))
            .expect("a schema");
        if tables == 0 {
            return Self::default();
        }
        let mut record = Self::default();
        let mut statement =
            connection.prepare("SELECT name FROM candidate WHERE status IS NOT NULL").expect("candidates");
        let names = statement.query_map([], |row| row.get(0)).expect("candidates");
        record.finished = names.map(|name| name.expect("a name")).collect();
        let mut statement = connection
            .prepare(
                "SELECT candidate.name, stage, number, attempt.status, superseded
                 FROM attempt JOIN candidate ON candidate.key = attempt.candidate ORDER BY attempt.key",
            )
            .expect("attempts");
        let mut rows = statement.query([]).expect("attempts");
        while let Some(row) = rows.next().expect("a row") {
            let attempt = Attempt {
                stage: row.get(1).expect("a stage"),
                number: row.get(2).expect("a number"),
                status: row.get(3).expect("a status"),
                superseded: row.get(4).expect("a flag"),
            };
            record.attempts.entry(row.get(0).expect("a name")).or_default().push(attempt);
        }
        record
    }

    /// Checks that no stage of a candidate ended twice with a status other than INFRA_ERROR. Attempts that were
    /// superseded do not count.
    pub fn no_stage_has_two_results(&self) -> Result<(), String> {
        for (name, attempts) in &self.attempts {
            let mut stages_with_result = BTreeSet::new();
            for attempt in attempts.iter().filter(|it| !it.superseded) {
                let has_result = attempt.status.as_deref().is_some_and(|status| status != "INFRA_ERROR");
                if has_result && !stages_with_result.insert(&attempt.stage) {
                    return Err(format!("{name}: {} has two results: {attempts:?}", attempt.stage));
                }
            }
        }
        Ok(())
    }

    /// Checks that the results of candidates that had ended in `before` have not changed.
    pub fn kept_from(&self, before: &Self) -> Result<(), String> {
        for name in &before.finished {
            let (then, now) = (before.attempts.get(name), self.attempts.get(name));
            if !self.finished.contains(name) || then != now {
                return Err(format!("{name} had ended and was evaluated again\n{then:?}\n{now:?}"));
            }
        }
        Ok(())
    }
}
