//! `opt-supervisor run`: sets up a run and prints its result.

use std::io::IsTerminal;
use std::time::Duration;

use super::{Answer, Failure, RunArguments, load_plan, log, print_out};
use crate::driver::folder::TemporaryFolder;
use crate::driver::{self, RunOptions};
use crate::exit::Exit;
use crate::outlet::{Drain, Outlet, Room};
use crate::plan::Plan;
use crate::report::text::Detail;
use crate::signal::Signals;

/// Limits for results that wait for a reader of standard output: their number and their bytes, part of the 20 MiB
/// that the supervisor may owe.
const ROOM: Room = Room { items: 4096, weight: 4 << 20 };
/// How long a reader may take when the run is over; an interrupt ends the wait …
const FAREWELL: Duration = Duration::from_secs(24 * 3600);
/// … and if there was one before, this is the limit.
const SHORT_FAREWELL: Duration = Duration::from_secs(2);

pub(super) fn run(arguments: RunArguments) -> Answer {
    log::start();
    let plan = load_plan(&arguments.plan, &arguments.set)?;
    if let Some(least) = arguments.min_speedup
        && !(least.is_finite() && 0.0 < least)
    {
        return Err(Failure::usage(anyhow::anyhow!("--min-speedup {least} is not a positive number")));
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
        let summary = std::fs::read_to_string(folder.join("summary.json"))
            .map_err(|error| Failure::host(anyhow::Error::new(error).context("reading the summary back")))?;
        print_out(&summary)?;
    } else if !quiet {
        let detail = if arguments.verbose { Detail::Everything } else { Detail::Answer };
        print_out(&super::report::result_text(&folder, true, detail)?)?;
    }
    Ok(exit)
}

/// Options for a run of a whole plan in its own folder that shows nothing and ends when its work is done.
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
        each_look: super::log::tell_left_out,
    }
}

/// Prints a line for each candidate that ends. A closed pipe (`| head`) does not end the run.
struct ResultLines;

impl Drain<String> for ResultLines {
    fn write(&mut self, line: String) {
        let _ = print_out(&line);
    }

    fn lost(&mut self, lines: u64) {
        tracing::warn!(
            "{lines} results were not printed, because nobody read them for a while (`report --format jsonl` has them)"
        );
    }
}

/// Runs with signals blocked and with its own temporary folder. Call before any thread is started. `lines`: print
/// a line for each candidate that ends.
pub(super) fn supervise(mut options: RunOptions, lines: bool) -> Result<(Exit, std::path::PathBuf), Failure> {
    let temporary = TemporaryFolder::create().map_err(Failure::host)?;
    // SAFETY: no thread has been started yet, so no other thread reads the environment. ipc-channel puts its
    // sockets below TMPDIR, whose path has to be short.
    unsafe { std::env::set_var("TMPDIR", temporary.path()) };
    let signals = Signals::block().map_err(Failure::host)?;
    log::write_in_background().map_err(Failure::host)?;
    let results = lines.then(|| Outlet::open("results", ROOM, ResultLines)).transpose();
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
            log::say(&format!(
                "open: `opt-supervisor ctl --run {folder} submit FILE` hands in a candidate, `… shutdown` ends it"
            ));
        }
        if let Err(error) = log::write_to(folder) {
            tracing::warn!("cannot write log.jsonl: {error}");
        }
    })
    .map_err(|error| Failure { exit: error.exit(), error: error.into() });
    drop(temporary);
    // Only printing is left, and a reader may delay that for as long as it likes.
    let exit = ended.as_ref().map_or_else(|failure: &Failure| failure.exit, |ended| ended.exit);
    signals.end_with(exit.code());
    if let Some(results) = results {
        results.flush(if exit == Exit::Interrupted { SHORT_FAREWELL } else { FAREWELL });
    }
    log::tell_rest();
    let ended = ended?;
    Ok((ended.exit, ended.folder))
}
