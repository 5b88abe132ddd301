//! `opt-supervisor top`: finds a run in the same way as `ctl`, and shows it live in the terminal.

use std::path::PathBuf;

use clap::Args;

use super::{CommandResult, Failure, color_on_stdout, ctl};
use crate::exit::Exit;
use crate::signal::Signals;
use crate::top::{TopError, Watched, watch};

#[derive(Args)]
pub(super) struct TopArguments {
    /// The run's folder [default: your only run on this machine]
    #[arg(long, value_name = "RUN_DIR", conflicts_with = "socket")]
    run: Option<PathBuf>,
    /// The control socket of the run
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

pub(super) fn top(arguments: &TopArguments) -> CommandResult {
    let signals = Signals::block().map_err(Failure::host)?;
    let socket = || ctl::socket_path(arguments.run.as_deref(), arguments.socket.as_deref());
    let watched = match crate::top::is_possible() {
        Ok(()) => watch(&socket()?, &signals, color_on_stdout()),
        Err(error) => Err(error),
    };
    match watched {
        Ok(Watched::Left) => Ok(Exit::Good),
        Ok(Watched::Interrupted) => Ok(Exit::Interrupted),
        Err(TopError::Client(error)) => Err(ctl::failure(error)),
        Err(error @ TopError::NoTerminal { .. }) => Err(Failure::usage(error)),
        Err(error @ TopError::Terminal(_)) => Err(Failure::host(error)),
    }
}
