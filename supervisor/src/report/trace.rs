//! Writes the results of candidates in the format of a FlashInfer trace (definition, workload, solution, evaluation).
//! Each timed or failed entry of a candidate gets a line. A candidate without such an entry gets a line for each
//! workload, or a single line if the workloads are unknown.
//!
//! That format has seven statuses and forbids times for failures. Information that does not fit into it, such as the
//! status in this project's words, the weight of the entry and intervals, is written to `correctness.extra` or to the
//! start of the `log`. A candidate without a verdict has no evaluation.

use std::collections::BTreeMap;
use std::io::{self, Write};

use opt_shared::nonfinite;
use opt_shared::outcome::{Blame, EntryFailure, Status};
use serde_json::{Map, Value, json};

use crate::record::{
    CandidateRecord, EntryTimingRecord, HostRecord, JobRecord, RunInfo, UtcTime, VerifyRecord,
};

/// The workloads of an imported data set, by job and entry.
pub type Workloads = BTreeMap<String, BTreeMap<String, Value>>;

/// The name in a line that is about all entries. There is such a line if the candidate failed without a failing entry,
/// was not timed, or has no verdict.
const ALL_ENTRIES: &str = "all";

#[derive(Debug)]
pub struct TraceWriter {
    environment: Value,
    started: UtcTime,
    workloads: Workloads,
}

impl TraceWriter {
    /// Starts a writer. `workloads` may be empty. If an entry has no workload, the line names the entry but does not
    /// describe it.
    pub fn new(run: &RunInfo, host: &HostRecord, workloads: Workloads) -> Self {
        let hardware = host.cpu.as_deref().filter(|cpu| !cpu.is_empty()).unwrap_or("unknown");
        let mut libraries = Map::new();
        libraries.insert("opt-supervisor".to_owned(), run.version.clone().into());
        if let Some(kernel) = &host.kernel {
            libraries.insert("kernel".to_owned(), kernel.clone().into());
        }
        Self {
            environment: json!({ "hardware": hardware, "libs": libraries }),
            started: run.started,
            workloads,
        }
    }

    /// Writes all lines of one candidate.
    pub fn candidate<Candidates>(
        &self,
        out: &mut impl Write,
        job: &JobRecord<Candidates>,
        candidate: &CandidateRecord,
    ) -> io::Result<()> {
        let workloads = self.workloads.get(&job.name);
        let write = |out: &mut dyn Write, workload: Value, evaluation: &Value| {
            let line = json!({
                "definition": job.name,
                "workload": workload,
                "solution": candidate.name,
                "evaluation": evaluation,
            });
            serde_json::to_writer(&mut *out, &line)?;
            out.write_all(b"\n")
        };
        let line = |out: &mut dyn Write, entry: &str, evaluation: Value| match workloads {
            // The format has no line for all workloads together.
            Some(workloads) if entry == ALL_ENTRIES => {
                workloads.values().try_for_each(|workload| write(out, workload.clone(), &evaluation))
            }
            _ => {
                let named = || json!({ "axes": {}, "inputs": {}, "uuid": entry });
                let workload =
                    workloads.and_then(|workloads| workloads.get(entry)).cloned().unwrap_or_else(named);
                write(out, workload, &evaluation)
            }
        };
        let Some((status, word)) =
            candidate.status.and_then(|it| Some((it, trace_status(it, candidate.blame)?)))
        else {
            return line(out, ALL_ENTRIES, Value::Null);
        };
        if status == Status::Passed {
            let entries = candidate.profile.as_ref().map_or(&[][..], |profile| &profile.entries);
            for entry in entries {
                line(out, &entry.entry, self.passed(candidate, Some(entry)))?;
            }
            if entries.is_empty() {
                line(out, ALL_ENTRIES, self.passed(candidate, None))?;
            }
            return Ok(());
        }
        for failure in &candidate.failures {
            let word = trace_status(failure.status, Some(Blame::Candidate)).unwrap_or(word);
            line(out, &failure.entry, self.failed(candidate, failure.status, word, Some(failure)))?;
        }
        if candidate.failures.is_empty() {
            line(out, ALL_ENTRIES, self.failed(candidate, status, word, None))?;
        }
        Ok(())
    }

    fn evaluation(&self, candidate: &CandidateRecord, word: &str, log: String) -> Map<String, Value> {
        let when = candidate.attempts.last().map_or(self.started, |attempt| attempt.started);
        let mut evaluation = Map::new();
        evaluation.insert("status".to_owned(), word.into());
        evaluation.insert("environment".to_owned(), self.environment.clone());
        evaluation.insert("timestamp".to_owned(), when.to_string().into());
        evaluation.insert("log".to_owned(), log.into());
        evaluation
    }

    fn passed(&self, candidate: &CandidateRecord, entry: Option<&EntryTimingRecord>) -> Value {
        let mut evaluation = self.evaluation(candidate, Status::Passed.name(), String::new());
        let mut extra =
            json!({ "status": Status::Passed.name(), "artifact_digest": candidate.artifact_digest });
        let mut performance = Map::new();
        if let Some(entry) = entry {
            extra["weight"] = entry.weight.into();
            extra["converged"] = entry.converged.into();
            extra["latency_ms_interval"] =
                [entry.times.ci_low, entry.times.ci_high].map(number).to_vec().into();
            performance.insert("latency_ms".to_owned(), number(entry.times.median_time_ms));
            if let Some(baseline) = &entry.baseline {
                performance.insert("reference_latency_ms".to_owned(), number(baseline.median_time_ms));
            }
            if let Some(speedup) = &entry.speedup {
                performance.insert("speedup_factor".to_owned(), number(speedup.value));
                extra["speedup_factor_interval"] =
                    [speedup.ci_low, speedup.ci_high].map(number).to_vec().into();
            }
        }
        let errors = |pick: fn(&VerifyRecord) -> f64| candidate.verify.as_ref().map_or(0.0, pick);
        evaluation.insert(
            "correctness".to_owned(),
            json!({
                "max_relative_error": number(errors(|verify| verify.max_relative_error)),
                "max_absolute_error": number(errors(|verify| verify.max_absolute_error)),
                "extra": extra,
            }),
        );
        evaluation.insert("performance".to_owned(), performance.into());
        Value::Object(evaluation)
    }

    fn failed(
        &self,
        candidate: &CandidateRecord,
        status: Status,
        word: &'static str,
        failure: Option<&EntryFailure>,
    ) -> Value {
        let detail = failure.map(|it| it.detail.as_str()).or(candidate.detail.as_deref()).unwrap_or_default();
        let mut evaluation = self.evaluation(candidate, word, format!("{status}: {detail}"));
        if word == Status::IncorrectNumerical.name() {
            let mismatch = failure.and_then(|failure| failure.mismatch.as_ref());
            // If nothing could be compared, the error is unknown and is written as NaN.
            let error = |value: Option<f64>| number(value.map_or(f64::NAN, f64::abs));
            evaluation.insert(
                "correctness".to_owned(),
                json!({
                    "max_relative_error": error(mismatch.map(|it| it.relative_error)),
                    "max_absolute_error": error(mismatch.map(|it| it.absolute_error)),
                    "extra": { "status": status.name() },
                }),
            );
        }
        Value::Object(evaluation)
    }
}

/// Returns the closest of the seven statuses. `None` if the status is not a verdict on the candidate.
fn trace_status(status: Status, blame: Option<Blame>) -> Option<&'static str> {
    if status != Status::Passed && blame != Some(Blame::Candidate) {
        return None;
    }
    Some(match status {
        Status::Passed
        | Status::IncorrectShape
        | Status::IncorrectDtype
        | Status::IncorrectNumerical
        | Status::RuntimeError
        | Status::CompileError
        | Status::Timeout => status.name(),
        Status::CompileTimeout => Status::CompileError.name(),
        Status::UnwrittenOutput | Status::Nondeterministic => Status::IncorrectNumerical.name(),
        _ => Status::RuntimeError.name(),
    })
}

fn number(value: f64) -> Value {
    match nonfinite::text(value) {
        Some(text) => text.into(),
        None => value.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample::sample;

    fn lines(change: impl Fn(&mut CandidateRecord)) -> Vec<Value> {
        lines_with(Workloads::new(), change)
    }

    fn lines_with(workloads: Workloads, change: impl Fn(&mut CandidateRecord)) -> Vec<Value> {
        let mut run = sample();
        let writer = TraceWriter::new(&run.run, &run.host, workloads);
        let mut text = Vec::new();
        let mut candidates = std::mem::take(&mut run.jobs[0].candidates);
        for candidate in &mut candidates {
            change(candidate);
            writer.candidate(&mut text, &run.jobs[0], candidate).expect("writes");
        }
        let text = String::from_utf8(text).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("a line is a document")).collect()
    }

    #[test]
    fn each_timed_or_failed_entry_of_a_candidate_has_a_line() {
        let lines = lines(|_| {});
        let rows: Vec<[&str; 3]> = lines
            .iter()
            .map(|line| {
                ["/solution", "/workload/uuid", "/evaluation/status"]
                    .map(|place| line.pointer(place).and_then(Value::as_str).unwrap_or("-"))
            })
            .collect();
        assert_eq!(
            rows,
            [
                ["bad.c", "entry_000003", "INCORRECT_NUMERICAL"],
                ["naive.c", "entry_000000", "PASSED"],
                ["fast.c", "entry_000000", "PASSED"],
            ]
        );
        assert_eq!(lines[2].pointer("/evaluation/performance/speedup_factor"), Some(&json!(2.31)));
        assert_eq!(lines[2].pointer("/evaluation/correctness/max_relative_error"), Some(&json!("Infinity")));
        assert_eq!(lines[0].pointer("/evaluation/performance"), None);
        assert_eq!(lines[0].pointer("/evaluation/log"), Some(&json!("INCORRECT_NUMERICAL: output differs")));
    }

    #[test]
    fn workloads_of_an_imported_data_set_fill_the_lines() {
        let workload = |uuid: &str| json!({ "uuid": uuid, "axes": { "rows": 7 }, "inputs": { "x": { "type": "random" } } });
        let of_entries = [("entry_000000", "one"), ("entry_000003", "two")]
            .map(|(entry, uuid)| (entry.to_owned(), workload(uuid)));
        let workloads = Workloads::from([(sample().jobs[0].name.clone(), BTreeMap::from(of_entries))]);
        let lines = lines_with(workloads.clone(), |_| {});
        let workloads_of =
            |lines: &[Value]| -> Vec<Value> { lines.iter().map(|line| line["workload"].clone()).collect() };
        assert_eq!(workloads_of(&lines), [workload("two"), workload("one"), workload("one")]);
        // A candidate that could not be built has failed on every workload.
        let lines = lines_with(workloads, |candidate| {
            (candidate.status, candidate.blame) = (Some(Status::CompileError), Some(Blame::Candidate));
            candidate.failures.clear();
        });
        assert_eq!(workloads_of(&lines[..2]), [workload("one"), workload("two")]);
        assert_eq!(lines.len(), 6);
    }

    /// The format requires times for candidates that passed and forbids them for all others. Without a verdict, there
    /// is no evaluation.
    #[test]
    fn every_status_fits_the_format() {
        for &status in Status::ALL {
            let lines = lines(|candidate| {
                (candidate.status, candidate.blame) = (Some(status), status.blame());
                candidate.failures.clear();
            });
            for line in lines {
                let evaluation = &line["evaluation"];
                if status.blame().is_some_and(|blame| blame != Blame::Candidate)
                    || status == Status::InfraError
                {
                    assert_eq!(*evaluation, Value::Null, "{status}");
                    continue;
                }
                let word = evaluation["status"].as_str().expect("a word");
                assert_eq!(evaluation.get("performance").is_some(), word == "PASSED", "{status}");
                let compared = ["PASSED", "INCORRECT_NUMERICAL"].contains(&word);
                assert_eq!(evaluation.get("correctness").is_some(), compared, "{status}");
            }
        }
    }
}
