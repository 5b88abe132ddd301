//! `opt-supervisor report`: prints the result of a run folder, or compares the results of two.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::Context;
use opt_shared::units::Bytes;

use super::output::Output;
use super::{CommandResult, Failure, ReportArguments, ReportFormat, color_on_stdout, solutions};
use crate::exit::Exit;
use crate::record::CandidateRecord;
use crate::record::timeline::Timeline;
use crate::report::compare::{self, ComparedRun, Comparison, compare};
use crate::report::digest::{Digest, Limits};
use crate::report::table::TableWriter;
use crate::report::text::{self, Detail, Style};
use crate::report::trace::{TraceWriter, Workloads};
use crate::report::{html, markdown};
use crate::store::{Document, Order, Store};

/// The number of steps in the timeline of a drawing. Each column of the drawing has several steps, so that figures
/// which are added up come from nearly the same moment.
const TIMELINE_STEPS: usize = 4096;

/// The size limit of a file of workloads. Ten thousand workloads take a few MiB.
const MAX_WORKLOADS: Bytes = Bytes::mib(256);

pub(super) fn report(arguments: &ReportArguments) -> CommandResult {
    if let Some(folder) = &arguments.solutions {
        solutions::write_solutions(&arguments.run_dir, folder, arguments.candidate.as_deref())?;
        return Ok(Exit::Good);
    }
    let workloads = workloads(arguments)?;
    let mut output = Output::open(arguments.output.as_deref())?;
    match &arguments.other_run_dir {
        Some(other) => {
            let comparison = compare(compared_run(&arguments.run_dir)?, compared_run(other)?);
            let written = write_comparison(&mut output, &comparison, arguments.format)?;
            output.written(written)?;
        }
        None => write_run(&mut output, &arguments.run_dir, arguments.format, workloads)?,
    }
    output.finish()?;
    Ok(Exit::Good)
}

/// Reads the file given with `--workloads`.
fn workloads(arguments: &ReportArguments) -> Result<Workloads, Failure> {
    let Some(path) = &arguments.workloads else { return Ok(Workloads::new()) };
    if arguments.format != ReportFormat::Jsonl || arguments.other_run_dir.is_some() {
        return Err(Failure::usage(anyhow::anyhow!(
            "`--workloads` describes the entries of one run in `--format jsonl` (leave it out otherwise)"
        )));
    }
    let read = || -> anyhow::Result<Workloads> {
        let mut text = Vec::new();
        File::open(path)?.take(MAX_WORKLOADS.get() + 1).read_to_end(&mut text)?;
        anyhow::ensure!(text.len() <= MAX_WORKLOADS.to_usize(), "it is larger than {MAX_WORKLOADS}");
        Ok(serde_json::from_slice(&text)?)
    };
    let help = "`opt-supervisor import flashinfer-trace` writes such a file beside its plan";
    read()
        .with_context(|| format!("cannot read the workloads in `{}` ({help})", path.display()))
        .map_err(Failure::usage)
}

fn write_run(
    output: &mut Output,
    folder: &Path,
    format: ReportFormat,
    workloads: Workloads,
) -> Result<(), Failure> {
    if format == ReportFormat::Text {
        let text = result_text(folder, matches!(output, Output::Standard(_)), Detail::Everything)?;
        let written = output.write_all(text.as_bytes());
        return output.written(written);
    }
    let store = Store::read(folder).map_err(Failure::reading)?;
    let document = store.document().map_err(Failure::host)?;
    let written = match format {
        ReportFormat::Text => Ok(()),
        ReportFormat::Json => serde_json::to_writer_pretty(&mut *output, &document)
            .map_err(|error| if error.is_io() { error.into() } else { io::Error::other(error) })
            .and_then(|()| output.write_all(b"\n")),
        ReportFormat::Jsonl => {
            let run = document.run().map_err(Failure::host)?;
            let writer = TraceWriter::new(&run, &document.host().map_err(Failure::host)?, workloads);
            each_candidate(&document, Order::Plan, |job, candidate| {
                writer.candidate(output, job, &candidate)
            })?
        }
        ReportFormat::Csv => match TableWriter::new(&mut *output) {
            Ok(mut table) => {
                each_candidate(&document, Order::Plan, |job, candidate| table.candidate(job, &candidate))?
                    .and_then(|()| table.finish())
            }
            Err(error) => Err(error),
        },
        ReportFormat::Md => {
            let digest = digest(&store, &document, markdown::LIMITS)?;
            output.write_all(markdown::render(&digest).as_bytes())
        }
        ReportFormat::Html => {
            let digest = digest(&store, &document, html::LIMITS)?;
            output.write_all(html::render(&digest).map_err(Failure::host)?.as_bytes())
        }
    };
    output.written(written)
}

/// Calls `visit` with each candidate. Only one candidate is in memory at a time. The inner result comes from `visit`.
fn each_candidate(
    document: &Document<'_>,
    order: Order,
    mut visit: impl FnMut(&crate::record::JobRecord<()>, CandidateRecord) -> io::Result<()>,
) -> Result<io::Result<()>, Failure> {
    for (key, job) in document.jobs().map_err(Failure::host)? {
        let written = document.each_candidate(key, order, |candidate| visit(&job, candidate));
        if let Err(error) = written.map_err(Failure::host)? {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

/// Collects those parts of a run that a page shows, within the limits of the page's format.
fn digest(store: &Store, document: &Document<'_>, limits: Limits) -> Result<Digest, Failure> {
    let fill = || -> Result<Digest, crate::store::StoreError> {
        let mut digest = Digest::new(document.run()?, document.host()?, document.memory_totals()?, limits);
        for (key, job) in document.jobs()? {
            digest.job(job);
            let Ok(()) =
                document.each_candidate(key, Order::Rank, |candidate| digest.candidate(candidate))?;
        }
        let Ok(()) = document.each_worker(|worker| digest.worker(worker))?;
        let Ok(()) = document.each_phase(|phase| digest.phase(phase))?;
        let Ok(()) = document.each_policy(|row| digest.decision(row))?;
        digest.replays = document.replays()?;
        Ok(digest)
    };
    let mut digest = fill().map_err(Failure::host)?;
    digest.timeline = timeline(store);
    Ok(digest)
}

/// Returns the result of a run folder as text. It has colour only on a terminal.
pub(super) fn result_text(folder: &Path, on_terminal: bool, detail: Detail) -> Result<String, Failure> {
    let store = Store::read(folder).map_err(Failure::reading)?;
    let record = store.load().map_err(Failure::host)?;
    let timeline = timeline(&store);
    let style = Style { color: on_terminal && color_on_stdout(), detail, ..Style::default() };
    Ok(text::render(&record, &timeline, folder, style))
}

/// Loads the timeline. If samples are damaged, reports this and returns an empty timeline, because the results are
/// useful even without a drawing.
fn timeline(store: &Store) -> Timeline {
    store.timeline(TIMELINE_STEPS).unwrap_or_else(|error| {
        super::print_err(format_args!("warning: memory over time is not shown: {error}"));
        Timeline::default()
    })
}

fn compared_run(folder: &Path) -> Result<ComparedRun, Failure> {
    let store = Store::read(folder).map_err(Failure::reading)?;
    let document = store.document().map_err(Failure::host)?;
    let mut run =
        ComparedRun::new(document.run().map_err(Failure::host)?, document.host().map_err(Failure::host)?);
    for (key, job) in document.jobs().map_err(Failure::host)? {
        run.job(job);
        let Ok(()) = document
            .each_candidate(key, Order::Plan, |candidate| {
                run.candidate(&candidate);
                Ok::<(), std::convert::Infallible>(())
            })
            .map_err(Failure::host)?;
    }
    run.replays = document.replays().map_err(Failure::host)?;
    Ok(run)
}

fn write_comparison(
    output: &mut Output,
    comparison: &Comparison,
    format: ReportFormat,
) -> Result<io::Result<()>, Failure> {
    Ok(match format {
        ReportFormat::Text => output.write_all(compare::text(comparison).as_bytes()),
        ReportFormat::Md => output.write_all(compare::markdown(comparison).as_bytes()),
        ReportFormat::Json => {
            let mut text = serde_json::to_string_pretty(comparison).map_err(Failure::host)?;
            text.push('\n');
            output.write_all(text.as_bytes())
        }
        ReportFormat::Jsonl | ReportFormat::Csv | ReportFormat::Html => {
            return Err(Failure::usage(anyhow::anyhow!(
                "two runs can be compared only as text, md or json (report each run for other formats)"
            )));
        }
    })
}
