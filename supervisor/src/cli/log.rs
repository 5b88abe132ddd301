//! The `tracing` log: readable lines on standard error, JSON lines in the run folder.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// Where the JSON lines go, once the run folder is known.
static RUN_LOG: OnceLock<File> = OnceLock::new();

/// `RUST_LOG` filters what is shown (`debug`, or `opt_supervisor=trace`); the file gets debug and above.
pub(super) fn start() {
    let shown = std::env::var("RUST_LOG")
        .ok()
        .and_then(|text| text.parse::<Targets>().ok())
        .unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    let people = fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(super::color_on_stderr())
        .with_target(false)
        .without_time()
        .with_filter(shown);
    let file = fmt::layer().json().with_writer(RunLog).with_filter(
        Targets::new().with_default(LevelFilter::INFO).with_target("opt_supervisor", LevelFilter::DEBUG),
    );
    // A second start in one process (tests) keeps the first.
    let _ = tracing_subscriber::registry().with(people).with(file).try_init();
}

/// From now on the log is also written to `log.jsonl` in the folder.
pub(super) fn write_to(folder: &Path) -> io::Result<()> {
    let file = File::options().create(true).append(true).open(folder.join("log.jsonl"))?;
    let _ = RUN_LOG.set(file);
    Ok(())
}

struct RunLog;

impl<'a> MakeWriter<'a> for RunLog {
    type Writer = RunLogWriter;

    fn make_writer(&'a self) -> RunLogWriter {
        RunLogWriter
    }
}

struct RunLogWriter;

impl io::Write for RunLogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match RUN_LOG.get() {
            Some(mut file) => file.write(bytes),
            None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
