//! Runs the loop of the view: updates, keys, signals and the passing of time change the state of the view, which is
//! then drawn.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use crossbeam_channel::TryRecvError;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use super::draw::{Theme, draw};
use super::keys::press;
use super::link::Link;
use super::model::{Command, Model, Update};
use super::screen::Screen;
use crate::control::client::ClientError;
use crate::signal::Signals;

/// The time between two checks for updates. A key is handled at once.
const TURN: Duration = Duration::from_millis(100);
/// If no answer or event has arrived for this long, the view reports that the run is silent.
const SILENT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum TopError {
    #[error(
        "`top` needs a terminal, but standard {stream} is not one (`ctl status` prints the state once, and `ctl events --follow` prints all events)"
    )]
    NoTerminal { stream: &'static str },
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("using the terminal")]
    Terminal(#[source] io::Error),
}

/// How the view has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The user has left the view.
    Left,
    /// The view was ended by one of the signals that [`Signals`] delivers.
    Interrupted,
}

/// Checks that there is a terminal to draw on and to read keys from.
pub fn is_possible() -> Result<(), TopError> {
    let streams = [("output", io::stdout().is_terminal()), ("input", io::stdin().is_terminal())];
    match streams.into_iter().find(|(_, is_terminal)| !is_terminal) {
        Some((stream, _)) => Err(TopError::NoTerminal { stream }),
        None => Ok(()),
    }
}

/// Shows the view until the user leaves or a signal arrives. Call it with the signals blocked, and before any thread is
/// started.
pub fn watch(socket: &Path, signals: &Signals, color: bool) -> Result<Watched, TopError> {
    let link = Link::open(socket)?;
    let mut screen = Screen::take().map_err(TopError::Terminal)?;
    let theme = Theme { color };
    let mut model = Model::default();
    let mut heard = Instant::now();
    let mut is_new = true;
    loop {
        loop {
            match link.updates.try_recv() {
                Ok(update) => {
                    model.receive(update);
                    heard = Instant::now();
                    is_new = true;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    if model.over.is_none() {
                        model.receive(Update::Lost("the connection to the run is lost".to_owned()));
                        is_new = true;
                    }
                    break;
                }
            }
        }
        let silent = if model.over.is_some() { Duration::ZERO } else { heard.elapsed() };
        let silent = if silent < SILENT { Duration::ZERO } else { Duration::from_secs(silent.as_secs()) };
        is_new |= model.silent != silent;
        model.silent = silent;
        if std::mem::take(&mut is_new) {
            screen.draw(|frame| draw(frame, &model, theme)).map_err(TopError::Terminal)?;
        }
        if 0 < signals.take() {
            return Ok(Watched::Interrupted);
        }
        if !event::poll(TURN).map_err(TopError::Terminal)? {
            continue;
        }
        is_new = true;
        let Event::Key(key) = event::read().map_err(TopError::Terminal)? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match press(&mut model, key) {
            Some(Command::Quit) => return Ok(Watched::Left),
            // A full queue means that the run does not answer, which `silent` reports.
            Some(command) => drop(link.commands.try_send(command)),
            None => {}
        }
    }
}
