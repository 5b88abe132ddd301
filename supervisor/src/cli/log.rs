//! Writes the `tracing` log: readable lines to standard error, and JSON lines to the run folder. Each output has its
//! own filter, and its own limit on the number of lines from one call site.

mod limit;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt};

use self::limit::{LeftOut, Limit};
use crate::outlet::{ItemWriter, Outlet, QueueLimits};
use crate::record::UtcTime;

/// The period to which the two limits below apply.
const PERIOD: Duration = Duration::from_secs(10);
/// The maximum number of lines from one call site that standard error gets in a period. The report of missing
/// protections alone takes a dozen.
const MAX_SHOWN: u32 = 20;
/// The maximum number of lines from one call site that the file gets in a period. Each decision and each attempt is a
/// line, and a run can have dozens of them per second.
const MAX_KEPT: u32 = 1000;
/// The maximum length, in characters, of the excerpt in a line that reports omitted lines.
const MAX_EXCERPT_CHARS: usize = 120;

/// Limits on the lines that are waiting for a blocked terminal or disk: their count and their total size in bytes.
const QUEUE: QueueLimits = QueueLimits { items: 4096, weight: 512 << 10 };
/// The timeout for writing the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The file for the JSON lines. It is set once the run folder is known. Earlier lines are not written to it.
static RUN_LOG: OnceLock<File> = OnceLock::new();
static LOG: OnceLock<Arc<Log>> = OnceLock::new();
/// The outputs for standard error and for the file, each with its own thread. They are set when the threads have
/// started.
static BACKGROUND: OnceLock<[Outlet<Vec<u8>>; 2]> = OnceLock::new();
/// The indices of the outputs in `BACKGROUND`.
const STDERR: usize = 0;
const RUN_FILE: usize = 1;

/// Starts the log. `RUST_LOG` (such as `debug`, or `opt_supervisor=trace`) filters the lines on standard error. If it
/// is not set or not valid, standard error gets lines from level warn up. The file gets this crate's lines from level
/// debug up, and all others from level info up.
pub(super) fn start() {
    let shown = std::env::var("RUST_LOG")
        .ok()
        .and_then(|text| text.parse::<Targets>().ok())
        .unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    let stderr = Sink(Arc::new(|line| put(STDERR, line)));
    let file = Sink(Arc::new(|line| put(RUN_FILE, line)));
    let log = Arc::new(Log::new(shown, stderr, file, super::color_on_stderr()));
    // If the log is started twice in the same process, as in tests, the first log is kept.
    if tracing_subscriber::registry().with(Shared(Arc::clone(&log))).try_init().is_ok() {
        let _ = LOG.set(log);
    }
}

/// Also writes the log to `log.jsonl` in this folder from now on.
pub(super) fn write_to(folder: &Path) -> io::Result<()> {
    let file = crate::driver::folder::open_own(&folder.join("log.jsonl"))?;
    let _ = RUN_LOG.set(file);
    Ok(())
}

/// Starts threads that write the lines from now on, so that a blocked terminal or disk delays nothing else. Signals
/// must be blocked, because otherwise the threads would receive them.
pub(super) fn write_in_background() -> io::Result<()> {
    let outlets =
        [Outlet::open("log-shown", QUEUE, Lines(STDERR))?, Outlet::open("log-kept", QUEUE, Lines(RUN_FILE))?];
    let _ = BACKGROUND.set(outlets);
    Ok(())
}

/// Writes a line to standard error regardless of the filter.
pub(super) fn print_line(line: &str) {
    put(STDERR, format!("{line}\n").as_bytes());
}

fn put(output: usize, line: &[u8]) {
    match BACKGROUND.get() {
        Some(outlets) => drop(outlets[output].put(line.to_owned(), line.len())),
        None => write(output, line),
    }
}

fn write(output: usize, line: &[u8]) {
    if output == STDERR {
        let _ = io::stderr().lock().write_all(line);
    } else if let Some(mut file) = RUN_LOG.get() {
        let _ = file.write_all(line);
    }
}

/// Writes lines to the output that has this index.
struct Lines(usize);

impl ItemWriter<Vec<u8>> for Lines {
    fn write(&mut self, line: Vec<u8>) {
        write(self.0, &line);
    }

    fn lost(&mut self, lines: u64) {
        let what = format!("{lines} log lines were dropped here, because writing them blocked");
        let line = if self.0 == STDERR {
            format!(" WARN {what}\n")
        } else {
            let line = json!({
                "timestamp": UtcTime::now(), "level": "WARN", "fields": { "message": what, "dropped": lines },
                "target": module_path!(),
            });
            format!("{line}\n")
        };
        write(self.0, line.as_bytes());
    }
}

/// Reports omitted lines whose period has ended. This must be called regularly, because a call site may never log
/// another line.
pub(super) fn report_omitted() {
    if let Some(log) = LOG.get() {
        log.report_omitted(Some(Instant::now()));
    }
}

/// Reports all omitted lines, and waits until they are written, but only for a short time.
pub(super) fn report_all_omitted() {
    if let Some(log) = LOG.get() {
        log.report_omitted(None);
    }
    for outlet in BACKGROUND.get().into_iter().flatten() {
        outlet.flush(FLUSH_TIMEOUT);
    }
}

type WriteLine = dyn Fn(&[u8]) + Send + Sync;

/// A writer that passes whole lines to a function.
#[derive(Clone)]
struct Sink(Arc<WriteLine>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.0)(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = Sink;

    fn make_writer(&'a self) -> Sink {
        self.clone()
    }
}

/// A call site in the code, for which lines are counted.
#[derive(Clone, Copy, Debug)]
struct Site(&'static Metadata<'static>);

impl PartialEq for Site {
    fn eq(&self, other: &Self) -> bool {
        self.0.callsite() == other.0.callsite()
    }
}

impl Eq for Site {}

impl Hash for Site {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.callsite().hash(state);
    }
}

/// One output of the log. It gets the lines that pass its filter and are within its limits.
struct Output {
    filter: Targets,
    lines: Box<dyn Layer<Registry> + Send + Sync>,
    limit: Mutex<Limit<Site>>,
    sink: Sink,
    /// Formats the line that reports omitted lines.
    report: fn(&LeftOut<Site>, Duration) -> String,
}

impl Output {
    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        self.filter.would_enable(metadata.target(), metadata.level())
    }

    fn event(&self, event: &Event<'_>, context: Context<'_, Registry>) {
        if !self.wants(event.metadata()) {
            return;
        }
        self.report_omitted(Some(Instant::now()));
        let site = Site(event.metadata());
        if self.limit().admits(site, Instant::now(), || message(event)) {
            self.lines.on_event(event, context);
        }
    }

    fn limit(&self) -> MutexGuard<'_, Limit<Site>> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports the omitted lines whose period has ended. If no time is given, reports all of them.
    fn report_omitted(&self, now: Option<Instant>) {
        let mut limit = self.limit();
        let left_out = match now {
            Some(now) => limit.take_expired(now),
            None => limit.take_all(),
        };
        for it in &left_out {
            (self.sink.0)((self.report)(it, limit.period()).as_bytes());
        }
    }
}

/// Both outputs: standard error and the file.
struct Log {
    outputs: [Output; 2],
}

impl Log {
    fn new(shown: Targets, stderr: Sink, file: Sink, color: bool) -> Self {
        let file_filter =
            Targets::new().with_default(LevelFilter::INFO).with_target("opt_supervisor", LevelFilter::DEBUG);
        let readable =
            fmt::layer().with_writer(stderr.clone()).with_ansi(color).with_target(false).without_time();
        let output = |filter, lines, max, sink, report| Output {
            filter,
            lines,
            limit: Mutex::new(Limit::new(max, PERIOD)),
            sink,
            report,
        };
        let json = fmt::layer().json().with_writer(file.clone());
        Self {
            outputs: [
                output(shown, readable.boxed(), MAX_SHOWN, stderr, omission_text as fn(&_, _) -> _),
                output(file_filter, json.boxed(), MAX_KEPT, file, omission_json as fn(&_, _) -> _),
            ],
        }
    }

    fn report_omitted(&self, now: Option<Instant>) {
        for output in &self.outputs {
            output.report_omitted(now);
        }
    }
}

/// The log as a `tracing` layer.
struct Shared(Arc<Log>);

impl Layer<Registry> for Shared {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.0.outputs.iter().any(|output| output.wants(metadata)) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, Registry>) -> bool {
        self.0.outputs.iter().any(|output| output.wants(metadata))
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, Registry>) {
        for output in &self.0.outputs {
            output.event(event, context.clone());
        }
    }
}

/// Returns the message of an event without its fields, shortened.
fn message(event: &Event<'_>) -> String {
    struct Message(String);
    impl Visit for Message {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            if field.name() == "message" {
                self.0 = format!("{value:?}");
            }
        }
    }
    let mut message = Message(String::new());
    event.record(&mut message);
    // The message can contain untrusted text.
    message.0.chars().take(MAX_EXCERPT_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn omission_text(it: &LeftOut<Site>, period: Duration) -> String {
    let level = it.site.0.level().as_str();
    format!("{level:>5} {}\n", omission_message(it, period))
}

fn omission_json(it: &LeftOut<Site>, period: Duration) -> String {
    let metadata = it.site.0;
    let site = metadata.file().map(|file| format!("{file}:{}", metadata.line().unwrap_or_default()));
    let line = json!({
        "timestamp": UtcTime::now(),
        "level": metadata.level().as_str(),
        "fields": { "message": omission_message(it, period), "left_out": it.count, "site": site },
        "target": metadata.target(),
    });
    format!("{line}\n")
}

fn omission_message(it: &LeftOut<Site>, period: Duration) -> String {
    let lines = if it.count == 1 { "line like this was" } else { "lines like this were" };
    format!("{} more {lines} left out within {} s: {}", it.count, period.as_secs(), it.last)
}
