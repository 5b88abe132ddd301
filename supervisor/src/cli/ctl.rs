//! `opt-supervisor ctl`: controls a run through its control socket.
//!
//! The command finds the run, sends a request and prints the answer, which `ctl_text` formats. `submit --wait` sends a
//! second request, which waits for the result.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use opt_shared::language::Language;
use opt_shared::message::Role;
use opt_shared::mode::Mode;
use serde_json::{Value, json};

use super::{CommandResult, Failure, ctl_text, print_out};
use crate::control::client::{Client, ClientError};
use crate::control::{SubmitParams, socket};
use crate::driver::answer::requests::{is_alive, live_runs};
use crate::exit::Exit;

const EXIT_CODES: &str = "Exit codes: 0 done, or nothing to do; 1 refused; 2 a wrong name or parameter, or no such \
run; 3 the run cannot be reached, or does not answer. The exit code does not depend on a candidate's result.";

#[derive(Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct CtlArguments {
    /// The run's folder [default: your only run on this machine]
    #[arg(long, value_name = "RUN_DIR", global = true, conflicts_with = "socket")]
    run: Option<PathBuf>,
    /// The control socket of the run
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// Print the answer as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Show the run, its jobs, leases and memory
    Status,
    /// Show the workers and their runners
    Workers,
    /// Replace one worker, or all workers with a role
    #[command(visible_alias = "restart")]
    Recycle {
        /// `verifier`, `profiler`, `worker-3` or `3`
        worker: RecycleTarget,
        /// `drain`: after its lease; `now`: at once, and the lease is repeated
        #[arg(long, default_value = "drain")]
        mode: ModeArgument,
    },
    /// Start no new leases; those that are running continue
    Pause,
    /// Continue after a pause
    Resume,
    /// End a job or a candidate as SKIPPED; a candidate that has a verdict keeps it
    Cancel {
        /// JOB or JOB/CANDIDATE
        what: String,
    },
    /// Change the memory ceiling: `host_ceiling=8GiB`, or a share of the memory that the run may use,
    /// `host_ceiling=60%`
    Set {
        /// The new ceiling, which applies at once
        #[arg(value_name = "host_ceiling=VALUE")]
        what: String,
    },
    /// Explain the state of a worker or candidate in a sentence
    Why {
        /// `worker-3`, or JOB/CANDIDATE
        what: String,
    },
    /// Show the latest decisions; with --follow, all events as they happen
    Events {
        /// Print all events as they happen, until the run ends
        #[arg(long)]
        follow: bool,
    },
    /// End the run
    Shutdown {
        /// `drain`: let running leases finish; `now`: end them
        #[arg(long, default_value = "drain")]
        mode: ModeArgument,
    },
    /// Submit a candidate
    Submit {
        /// The candidate's source files, or one prebuilt file (`.so`, `.ptx`, `.cubin`)
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// The candidate's job; required if the plan has several
        #[arg(long)]
        job: Option<String>,
        /// The candidate's name, to which a number is added if it is taken [default: the first file's name without its
        /// suffix]
        #[arg(long)]
        name: Option<String>,
        /// The candidate's language [default: from the suffix]; required for `torch-extension`, `torch-cuda`, `triton` and
        /// `triton-device`
        #[arg(long, value_parser = Language::runnable)]
        language: Option<Language>,
        /// The function to call [default: the language's, `run` or `launch`]
        #[arg(long)]
        symbol: Option<String>,
        /// The candidate whose launches a kernel without host code uses [default: the baseline, else the first that has
        /// launches]
        #[arg(long, value_name = "CANDIDATE")]
        like: Option<String>,
        /// Wait for the result
        #[arg(long)]
        wait: bool,
    },
    /// Show the state or the result of a candidate
    Result {
        /// JOB/CANDIDATE, or just the candidate if only one job has it
        candidate: String,
        /// Wait until the candidate has ended
        #[arg(long)]
        wait: bool,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeArgument {
    Drain,
    Now,
}

impl ModeArgument {
    fn mode(self) -> Mode {
        match self {
            Self::Drain => Mode::Drain,
            Self::Now => Mode::Now,
        }
    }
}

/// The workers to replace: all workers with a role, or the worker with a number.
#[derive(Clone, Copy)]
enum RecycleTarget {
    Role(Role),
    Worker(u32),
}

impl std::str::FromStr for RecycleTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Role::from_name(text)
            .map(Self::Role)
            .or_else(|| worker_number(text).map(Self::Worker))
            .ok_or_else(|| "neither a role (verifier, profiler) nor a worker (worker-3)".to_owned())
    }
}

fn worker_number(text: &str) -> Option<u32> {
    text.strip_prefix("worker-").unwrap_or(text).parse().ok()
}

/// The number of decisions that `ctl events` prints without --follow.
const LATEST: u32 = 20;

pub(super) fn ctl(arguments: &CtlArguments) -> CommandResult {
    let mut client = connect(arguments.run.as_deref(), arguments.socket.as_deref())?;
    if let Verb::Events { follow } = arguments.verb {
        return events(&mut client, follow, arguments.json);
    }
    let (method, params) = request(&arguments.verb)?;
    let waits = matches!(arguments.verb, Verb::Result { wait: true, .. } | Verb::Submit { wait: true, .. });
    if waits {
        client.wait_forever();
    }
    let mut answer = client.call(method, &params).map_err(failure)?;
    let mut answered_method = method;
    if let Verb::Submit { wait: true, .. } = arguments.verb {
        answered_method = "result";
        answer = client
            .call("result", &json!({ "candidate": answer["candidate"], "wait": true }))
            .map_err(failure)?;
    }
    let text =
        if arguments.json { format!("{answer:#}\n") } else { ctl_text::answer(answered_method, &answer) };
    print_out(&text)?;
    Ok(Exit::Good)
}

fn request(verb: &Verb) -> Result<(&'static str, Value), Failure> {
    Ok(match verb {
        Verb::Status => ("status", json!({})),
        Verb::Workers => ("workers", json!({})),
        Verb::Recycle { worker: RecycleTarget::Role(role), mode } => {
            ("recycle", json!({ "role": role, "mode": mode.mode() }))
        }
        Verb::Recycle { worker: RecycleTarget::Worker(worker), mode } => {
            ("recycle", json!({ "worker": worker, "mode": mode.mode() }))
        }
        Verb::Pause => ("pause", json!({})),
        Verb::Resume => ("resume", json!({})),
        Verb::Cancel { what } => match what.split_once('/') {
            Some((job, candidate)) => ("cancel", json!({ "job": job, "candidate": candidate })),
            None => ("cancel", json!({ "job": what })),
        },
        Verb::Set { what } => match what.split_once('=') {
            Some(("host_ceiling", value)) => ("set", json!({ "host_ceiling": value })),
            _ => {
                return Err(Failure::usage(anyhow::anyhow!(
                    "cannot set `{what}`: only `host_ceiling=VALUE` can be set"
                )));
            }
        },
        Verb::Why { what } => match worker_number(what) {
            Some(worker) => ("why", json!({ "worker": worker })),
            None => ("why", json!({ "candidate": what })),
        },
        Verb::Events { .. } => ("events", json!({})),
        Verb::Shutdown { mode } => ("shutdown", json!({ "mode": mode.mode() })),
        Verb::Submit { files, job, name, language, symbol, like, .. } => {
            let params = SubmitParams {
                job: job.clone(),
                sources: files.iter().map(|file| absolute(file)).collect::<Result<_, _>>()?,
                name: name.clone(),
                language: *language,
                symbol: symbol.clone(),
                like: like.clone(),
                ..SubmitParams::default()
            };
            ("submit", json!(params))
        }
        Verb::Result { candidate, wait } => ("result", json!({ "candidate": candidate, "wait": wait })),
    })
}

/// Makes a path absolute, because the run can have another working folder.
pub(super) fn absolute(file: &Path) -> Result<String, Failure> {
    let path = std::fs::canonicalize(file).map_err(|error| {
        Failure::usage(anyhow::anyhow!("cannot resolve the path {}: {error}", file.display()))
    })?;
    path.into_os_string()
        .into_string()
        .map_err(|path| Failure::usage(anyhow::anyhow!("the path {} is not UTF-8", path.display())))
}

fn events(client: &mut Client, follow: bool, json: bool) -> CommandResult {
    if follow {
        client.call("events", &json!({})).map_err(failure)?;
        client.wait_forever();
        while let Some(event) = client.event().map_err(failure)? {
            print_out(&if json { format!("{event}\n") } else { ctl_text::event(&event) })?;
        }
        return Ok(Exit::Good);
    }
    let answer = client.call("decisions", &json!({ "most": LATEST })).map_err(failure)?;
    for row in answer["decisions"].as_array().into_iter().flatten() {
        let mut event = row.clone();
        event["kind"] = json!("policy");
        print_out(&if json { format!("{event}\n") } else { ctl_text::event(&event) })?;
    }
    Ok(Exit::Good)
}

fn connect(run: Option<&Path>, socket: Option<&Path>) -> Result<Client, Failure> {
    Client::connect(&socket_path(run, socket)?).map_err(failure)
}

/// Returns the socket of the given run. If none is given, returns that of the only live run.
pub(super) fn socket_path(run: Option<&Path>, socket: Option<&Path>) -> Result<PathBuf, Failure> {
    match (socket, run) {
        (Some(socket), _) => Ok(socket.to_owned()),
        (None, Some(run)) => socket_of(run),
        (None, None) => Ok(only_live_run()?.socket),
    }
}

fn socket_of(run: &Path) -> Result<PathBuf, Failure> {
    let link = run.join(socket::LINK);
    if !is_alive(run) {
        let error = anyhow::anyhow!(
            "there is no live run in {} (`opt-supervisor report` shows how it ended, `run --resume` continues it)",
            run.display()
        );
        return Err(Failure::usage(error));
    }
    // The link is resolved because the link's own path can be too long for a socket address.
    std::fs::read_link(&link).map_err(|error| {
        let why = format!("the run in {} has no control socket (see its log for the reason)", run.display());
        Failure::host(anyhow::Error::new(error).context(why))
    })
}

fn only_live_run() -> Result<socket::Found, Failure> {
    let mut all = live_runs();
    if all.len() == 1 {
        return Ok(all.remove(0));
    }
    if all.is_empty() {
        let error = anyhow::anyhow!(
            "you have no live run on this machine (use --run RUN_DIR for a run that was started with another \
             XDG_RUNTIME_DIR or OPT_SUPERVISOR_RUNTIME_DIR)"
        );
        return Err(Failure::usage(error));
    }
    let list: Vec<String> = all.iter().map(|found| format!("  --run {}", found.run.display())).collect();
    Err(Failure::usage(anyhow::anyhow!("there are {} live runs: name one\n{}", all.len(), list.join("\n"))))
}

/// Returns the failure for an error of a request. Its exit code is 1 if the run refuses the request because of its
/// state, 2 if a name or a parameter is wrong, and 3 otherwise.
pub(super) fn failure(error: ClientError) -> Failure {
    let exit = match error.code() {
        Some("refused") => Exit::NonePassed,
        Some("not_found" | "invalid_params") => Exit::Usage,
        _ => Exit::Host,
    };
    Failure { exit, error: error.into() }
}
