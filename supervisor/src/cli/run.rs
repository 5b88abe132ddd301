//! `opt-supervisor run`: sets up a run and prints its result.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{CommandResult, Failure, RunArguments, load_plan, log, print_out};
use crate::driver::folder::TemporaryFolder;
use crate::driver::{self, RunOptions};
use crate::exit::Exit;
use crate::outlet::{ItemWriter, Outlet, QueueLimits};
use crate::plan::Plan;
use crate::report::text::Detail;
use crate::signal::Signals;

/// Limits on the results that are waiting to be written to standard output: their count and their total size in bytes.
/// They are part of the supervisor's own memory, which should be at most 20 MiB.
const QUEUE: QueueLimits = QueueLimits { items: 4096, weight: 4 << 20 };
/// The timeout for writing the last results after the run. An interrupt ends the wait.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// The timeout for writing the last results if the run was interrupted.
const INTERRUPTED_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) fn run(arguments: RunArguments) -> CommandResult {
    log::start();
    let plan = load_plan(&arguments.plan, &arguments.set)?;
    if let Some(least) = arguments.min_speedup
        && !(least.is_finite() && 0.0 < least)
    {
        return Err(Failure::usage(anyhow::anyhow!(
            "--min-speedup {least} is not a positive, finite number"
        )));
    }
    let (json, quiet) = (arguments.json, arguments.quiet || arguments.jsonl);
    let progress = !quiet && std::io::stderr().is_terminal();
    let options = RunOptions {
        dir: arguments.dir,
        resume: arguments.resume,
        only: arguments.only,
        min_speedup: arguments.min_speedup,
        progress,
        keep_open: arguments.keep_open,
        metrics: arguments.metrics,
        ..plain(plan)
    };
    let (exit, folder) = supervise(options, arguments.jsonl)?;
    if json {
        let path = folder.join("summary.json");
        let summary = std::fs::read_to_string(&path).map_err(|error| {
            Failure::host(anyhow::Error::new(error).context(format!("reading {}", path.display())))
        })?;
        print_out(&summary)?;
    } else if !quiet {
        let detail = if arguments.verbose { Detail::Everything } else { Detail::Answer };
        print_out(&super::report::result_text(&folder, true, detail)?)?;
    }
    Ok(exit)
}

/// Returns the options for running a whole plan, with a new folder for the run. Such a run prints no progress, and ends
/// when its work is done.
pub(super) fn plain(plan: Plan) -> RunOptions {
    RunOptions {
        plan,
        dir: None,
        resume: false,
        only: Vec::new(),
        min_speedup: None,
        progress: false,
        keep_open: false,
        each_candidate: None,
        metrics: None,
        before_each_sample: super::log::report_omitted,
    }
}

/// Prints a line for each candidate when it ends. Neither a closed pipe (`| head`) nor a full disk ends the run.
#[derive(Clone, Default)]
struct ResultLines {
    /// The first error from printing. After an error nothing more is printed, because the last line may have been cut
    /// off.
    failure: Arc<Mutex<Option<Failure>>>,
}

impl ResultLines {
    /// Returns and removes the first error. Call this after the flush.
    fn failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ItemWriter<String> for ResultLines {
    fn write(&mut self, line: String) {
        // The lock is not held while a line is printed, because a slow reader can delay printing for any length of
        // time.
        let failure = || self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if failure().is_none()
            && let Err(error) = print_out(&line)
        {
            let error = &error.error;
            tracing::warn!("no more results are printed: {error:#} (`report --format json` has them)");
            *failure() =
                Some(Failure::host(anyhow::anyhow!("printing the results: {error:#} (`report` has them)")));
        }
    }

    fn lost(&mut self, lines: u64) {
        tracing::warn!(
            "{lines} results were not printed, because standard output was blocked (`report --format json` has them)"
        );
    }
}

/// Runs a plan with signals blocked and with a separate temporary folder. This must be called before any thread is
/// started. If `lines` is set, a line is printed for each candidate that ends.
pub(super) fn supervise(mut options: RunOptions, lines: bool) -> Result<(Exit, std::path::PathBuf), Failure> {
    // The limit on processes is checked before the first thread is started. Otherwise, the error would say that a
    // thread cannot be started, and would not name the limit.
    crate::driver::run::room::check_processes().map_err(Failure::host)?;
    let temporary = TemporaryFolder::create().map_err(Failure::host)?;
    // SAFETY: no thread has been started yet, so no other thread reads the environment. ipc-channel puts its
    // sockets below TMPDIR, whose path must be short.
    unsafe { std::env::set_var("TMPDIR", temporary.path()) };
    let signals = Signals::block().map_err(Failure::host)?;
    log::write_in_background().map_err(Failure::host)?;
    let printed = ResultLines::default();
    let results = lines.then(|| Outlet::open("results", QUEUE, printed.clone())).transpose();
    let results = results.map_err(Failure::host)?.map(std::rc::Rc::new);
    if let Some(results) = results.clone() {
        options.each_candidate = Some(Box::new(move |record| {
            let line = format!("{record}\n");
            let weight = line.len();
            results.put(line, weight);
        }));
    }
    let is_open = options.keep_open;
    let ended = driver::run(options, &signals, &|folder| {
        if is_open {
            let folder = folder.display();
            log::print_line(&format!(
                "the run stays open: `opt-supervisor ctl --run {folder} submit FILE` submits a candidate, `… shutdown` \
                 ends the run"
            ));
        }
        if let Err(error) = log::write_to(folder) {
            tracing::warn!("cannot open log.jsonl in {}: {error}", folder.display());
        }
    })
    .map_err(|error| Failure { exit: error.exit(), error: error.into() });
    drop(temporary);
    if ended.is_err() {
        // Signals that arrived before the failure were only requests to end the run. They must not prevent the error
        // from being printed.
        signals.take();
    }
    // The only thing left is to print the result, which a slow reader can delay. From now on, a signal ends the
    // process.
    let exit = ended.as_ref().map_or_else(|failure: &Failure| failure.exit, |ended| ended.exit);
    signals.end_with(exit.code());
    if let Some(results) = results {
        results.flush(if exit == Exit::Interrupted { INTERRUPTED_FLUSH_TIMEOUT } else { FLUSH_TIMEOUT });
    }
    log::report_all_omitted();
    let ended = ended?;
    match printed.failure() {
        Some(failure) if ended.exit != Exit::Interrupted => Err(failure),
        _ => Ok((ended.exit, ended.folder)),
    }
}
