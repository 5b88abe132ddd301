//! Writes the candidates as CSV for a spreadsheet, with one row for each.
//!
//! An unknown figure is an empty cell. Foreign text is kept on one line and cannot become a formula.

use std::io::{self, Write};

use opt_shared::nonfinite;

use super::figures::one_line;
use crate::record::{CandidateRecord, JobRecord, Stage};

const COLUMNS: [&str; 24] = [
    "job",
    "candidate",
    "status",
    "blame",
    "failed_stage",
    "rank",
    "speedup",
    "speedup_ci_low",
    "speedup_ci_high",
    "total_time_ms",
    "median_time_ms",
    "ci_low",
    "ci_high",
    "noise",
    "converged",
    "cache_state",
    "entries_timed",
    "entries_passed",
    "max_relative_error",
    "runner_peak_owed_bytes",
    "predicted_bytes",
    "source_path",
    "artifact_digest",
    "detail",
];

pub struct TableWriter<W: Write> {
    rows: csv::Writer<W>,
}

impl<W: Write> TableWriter<W> {
    pub fn new(out: W) -> io::Result<Self> {
        let mut rows = csv::Writer::from_writer(out);
        rows.write_record(COLUMNS).map_err(io_error)?;
        Ok(Self { rows })
    }

    pub fn candidate<Candidates>(
        &mut self,
        job: &JobRecord<Candidates>,
        candidate: &CandidateRecord,
    ) -> io::Result<()> {
        let profile = candidate.profile.as_ref();
        let times = profile.map(|profile| &profile.times);
        let speedup = candidate.speedup;
        let verify = candidate.verify.as_ref();
        let resources = &candidate.resources;
        let cells: [String; COLUMNS.len()] = [
            text(&job.name),
            text(&candidate.name),
            candidate.status.map_or("", |status| status.name()).to_owned(),
            candidate.blame.map_or("", |blame| blame.name()).to_owned(),
            candidate.failed_stage.map_or("", Stage::name).to_owned(),
            known(candidate.rank),
            float(speedup.map(|it| it.value)),
            float(speedup.map(|it| it.ci_low)),
            float(speedup.map(|it| it.ci_high)),
            float(times.and_then(|it| it.total_time_ms)),
            float(times.and_then(|it| it.median_time_ms)),
            float(times.and_then(|it| it.ci_low)),
            float(times.and_then(|it| it.ci_high)),
            float(times.and_then(|it| it.noise)),
            known(times.and_then(|it| it.converged)),
            times
                .and_then(|it| it.cache_state)
                .and_then(|state| Some(serde_json::to_value(state).ok()?.as_str()?.to_owned()))
                .unwrap_or_default(),
            known(profile.map(|profile| profile.entries.len())),
            known(verify.map(|verify| verify.entries_passed)),
            float(verify.map(|verify| verify.max_relative_error)),
            known(resources.runner_peak_owed_bytes.map(opt_shared::units::Bytes::get)),
            known(resources.predicted_bytes.map(opt_shared::units::Bytes::get)),
            text(candidate.source.path.as_deref().unwrap_or_default()),
            candidate.artifact_digest.clone().unwrap_or_default(),
            text(candidate.detail.as_deref().unwrap_or_default()),
        ];
        self.rows.write_record(cells).map_err(io_error)
    }

    pub fn finish(mut self) -> io::Result<()> {
        self.rows.flush()
    }
}

fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        kind => io::Error::other(format!("{kind:?}")),
    }
}

/// Puts an apostrophe before text that begins like a formula. Spreadsheets then read it as plain text.
fn text(text: &str) -> String {
    let line = one_line(text);
    if line.starts_with(['=', '+', '-', '@']) { format!("'{line}") } else { line }
}

fn known(figure: Option<impl ToString>) -> String {
    figure.map_or_else(String::new, |figure| figure.to_string())
}

fn float(figure: Option<f64>) -> String {
    figure.map_or_else(String::new, |figure| {
        nonfinite::text(figure).map_or_else(|| figure.to_string(), str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample::sample;

    #[test]
    fn each_candidate_has_a_row_and_foreign_text_is_not_a_formula() {
        let mut run = sample();
        run.jobs[0].candidates[0].name = "=HYPERLINK(\"http://x\",\"y\"),\n\u{1b}[31m".to_owned();
        let mut text = Vec::new();
        let mut table = TableWriter::new(&mut text).expect("writes");
        for candidate in &run.jobs[0].candidates {
            table.candidate(&run.jobs[0], candidate).expect("writes");
        }
        table.finish().expect("writes");
        let mut reader = csv::Reader::from_reader(text.as_slice());
        let column = |name: &str| COLUMNS.iter().position(|it| *it == name).expect("a column");
        let rows: Vec<_> = reader.records().map(|row| row.expect("reads")).collect();
        assert_eq!(rows.len(), 3);
        assert_eq!(&rows[0][1], "'=HYPERLINK(\"http://x\",\"y\"), \u{fffd}[31m");
        assert_eq!(&rows[0][column("speedup")], "");
        assert_eq!(&rows[2][column("speedup")], "2.31");
        assert_eq!(&rows[2][column("cache_state")], "warm");
        assert_eq!(&rows[2][column("max_relative_error")], "Infinity");
        assert_eq!(&rows[2][column("detail")], "");
    }
}
