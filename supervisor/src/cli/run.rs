//! `opt-supervisor run`: the edge of a run.

use std::io::IsTerminal;

use super::{Answer, Failure, RunArguments, load_plan, log, print_out};
use crate::driver::folder::TemporaryFolder;
use crate::driver::{self, RunOptions};
use crate::exit::Exit;
use crate::report::text::Detail;
use crate::signal::Signals;

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
    let (exit, folder) = supervise(RunOptions {
        plan,
        dir: arguments.dir,
        resume: arguments.resume,
        only: arguments.only,
        min_speedup: arguments.min_speedup,
        progress,
        keep_open: arguments.keep_open,
        each_candidate: arguments.jsonl.then_some(print_line as fn(&serde_json::Value)),
        metrics: arguments.metrics,
        each_look: super::log::tell_left_out,
    })?;
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

/// A closed pipe (`| head`) does not end the run.
fn print_line(record: &serde_json::Value) {
    let _ = print_out(&format!("{record}\n"));
}

/// Runs with signals blocked and a temporary folder of its own. Call before any thread is started.
pub(super) fn supervise(options: RunOptions) -> Result<(Exit, std::path::PathBuf), Failure> {
    let temporary = TemporaryFolder::create().map_err(Failure::host)?;
    // SAFETY: no thread has been started yet, so nobody reads the environment meanwhile. ipc-channel puts its sockets
    // below TMPDIR, whose path has to be short.
    unsafe { std::env::set_var("TMPDIR", temporary.path()) };
    let signals = Signals::block().map_err(Failure::host)?;
    let is_open = options.keep_open;
    let ended = driver::run(options, &signals, &|folder| {
        if is_open {
            let folder = folder.display();
            eprintln!("open: `opt-supervisor ctl --run {folder} submit FILE` hands in a candidate, `… shutdown` ends it");
        }
        if let Err(error) = log::write_to(folder) {
            tracing::warn!("cannot write log.jsonl: {error}");
        }
    })
    .map_err(|error| Failure { exit: error.exit(), error: error.into() });
    log::tell_rest();
    let ended = ended?;
    drop(temporary);
    Ok((ended.exit, ended.folder))
}
