//! Communicates with the run on two threads, so that the terminal never waits for the run. One thread polls once a
//! second and sends requests, and the other listens for events.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use opt_shared::causes::chain;
use serde_json::{Value, json};

use super::model::{Command, Update};
use crate::control::client::{Client, ClientError};

/// The interval between two polls. Each poll asks for four short answers.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The number of decisions that are loaded at the start.
const DECISIONS: u32 = 100;
/// The capacity of the queue of updates for the view. If the queue is full, the threads wait. The run then closes the
/// connection when its own queue reaches its limit, so neither queue grows without bound.
const MAX_UPDATES: usize = 1024;

pub(super) struct Link {
    pub(super) commands: Sender<Command>,
    pub(super) updates: Receiver<Update>,
}

impl Link {
    pub(super) fn open(socket: &Path) -> Result<Self, ClientError> {
        let mut listener = Client::connect(socket)?;
        // Events are requested before the past is read. Otherwise, events that happen in between would be lost.
        listener.call("events", &json!({}))?;
        listener.wait_forever();
        let mut poller = Poller { client: Client::connect(socket)?, page: 0, since: 0.0 };
        let (to_view, updates) = bounded(MAX_UPDATES);
        let (commands, from_view) = bounded(16);
        let lost = to_view.clone();
        let from_listener = to_view.clone();
        thread::Builder::new()
            .name("top-listen".to_owned())
            .spawn(move || listen(listener, &from_listener))?;
        thread::Builder::new().name("top-ask".to_owned()).spawn(move || {
            if let Err(error) = poller.go(&to_view, &from_view) {
                // Sending fails only if the view has ended, and then the message is not needed.
                let _ = lost.send(Update::Lost(chain(&error)));
            }
        })?;
        Ok(Self { commands, updates })
    }
}

fn listen(mut client: Client, to_view: &Sender<Update>) {
    loop {
        let update = match client.event() {
            Ok(Some(event)) => Update::Event(event),
            Ok(None) => Update::Lost(
                "the run closed the connection (it has ended, or this view read too slowly)".to_owned(),
            ),
            Err(error) => Update::Lost(chain(&error)),
        };
        let is_last = matches!(update, Update::Lost(_));
        if to_view.send(update).is_err() || is_last {
            return;
        }
    }
}

struct Poller {
    client: Client,
    /// The position of the first candidate on the page that is loaded next.
    page: u64,
    /// The start of the latest slot of the history that is loaded, in seconds since the supervisor was started.
    since: f64,
}

impl Poller {
    fn go(&mut self, updates: &Sender<Update>, commands: &Receiver<Command>) -> Result<(), ClientError> {
        let decisions = self.call("decisions", &json!({ "most": DECISIONS }))?;
        let mut is_open = updates.send(Update::Decisions(decisions)).is_ok();
        let mut due = Instant::now();
        while is_open {
            match commands.recv_deadline(due) {
                Ok(command) => is_open = updates.send(self.command(&command)?).is_ok(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            // A new poll follows at once, so that the effect of a request is shown without delay.
            for answer in self.ask()? {
                is_open &= updates.send(answer).is_ok();
            }
            due = Instant::now() + POLL_INTERVAL;
        }
        Ok(())
    }

    fn ask(&mut self) -> Result<[Update; 4], ClientError> {
        let status = self.call("status", &json!({}))?;
        let workers = self.call("workers", &json!({}))?;
        let history = self.call("history", &json!({ "since_s": self.since }))?;
        if let Some(at) = history["slots"].as_array().and_then(|slots| slots.last()?[0].as_f64()) {
            self.since = at;
        }
        let candidates = self.call("candidates", &json!({ "from": self.page }))?;
        let count = candidates["candidates"].as_array().map_or(0, Vec::len) as u64;
        let total = candidates["total"].as_u64().unwrap_or_default();
        self.page = if 0 < count && self.page + count < total { self.page + count } else { 0 };
        Ok([
            Update::Status(status),
            Update::Workers(workers),
            Update::History(history),
            Update::Candidates(candidates),
        ])
    }

    /// Calls a method. Returns null if the run refuses the call, which an older run does if it does not have the
    /// method.
    fn call(&mut self, method: &str, params: &Value) -> Result<Value, ClientError> {
        match self.client.call(method, params) {
            Err(ClientError::Refused { .. }) => Ok(Value::Null),
            other => other,
        }
    }

    fn command(&mut self, command: &Command) -> Result<Update, ClientError> {
        let Some((method, params)) = request(command) else { return Ok(Update::Message(String::new())) };
        match self.client.call(method, &params) {
            Ok(answer) if method == "why" => {
                Ok(Update::Why(answer["why"].as_str().unwrap_or_default().to_owned()))
            }
            Ok(answer) => {
                let word = if answer["outcome"] == "already" { "nothing to do" } else { "done" };
                Ok(Update::Message(format!("{word}: {}", answer["message"].as_str().unwrap_or_default())))
            }
            Err(ClientError::Refused { code, message }) => Ok(Update::Message(format!("{code}: {message}"))),
            Err(error) => Err(error),
        }
    }
}

pub(super) fn request(command: &Command) -> Option<(&'static str, Value)> {
    Some(match command {
        Command::Quit => return None,
        Command::Pause => ("pause", json!({})),
        Command::Resume => ("resume", json!({})),
        Command::Recycle { worker, now } => {
            ("recycle", json!({ "worker": worker, "mode": if *now { "now" } else { "drain" } }))
        }
        Command::Cancel { job, candidate } => ("cancel", json!({ "job": job, "candidate": candidate })),
        Command::WhyWorker(worker) => ("why", json!({ "worker": worker })),
        Command::WhyCandidate(candidate) => ("why", json!({ "candidate": candidate })),
    })
}
