//! Serves everyone who watches the run: clients of the control socket, readers of the metrics, and the terminal. This
//! module owns the connections, and the list of clients that are waiting for a candidate to end. Other modules compose
//! the answers.

use std::time::{Duration, Instant};

use opt_shared::ids::CandidateId;
use rustix::event::{PollFd, PollFlags};
use serde_json::{Value, json};

use super::forecast::Forecast;
use super::submissions::Submissions;
use crate::control::{Notification, Reply, Server, Token};
use crate::driver::EachCandidate;
use crate::metrics::Metrics;
use crate::metrics::http::Responder;
use crate::progress::Progress;
use crate::record::UtcTime;

/// The time until the next wake-up if no client is due to be served.
const NOT_DUE: Duration = Duration::from_secs(3600);

pub(crate) struct Endpoints {
    pub(crate) control: Option<Server>,
    /// The clients that are waiting for a candidate to end. Each is listed with its candidate.
    pub(crate) awaited: Vec<(Token, CandidateId)>,
    pub(crate) metrics: Metrics,
    pub(crate) responder: Option<Responder>,
    pub(crate) progress: Progress,
    pub(crate) forecast: Forecast,
    /// A callback that receives each candidate's record when the candidate ends.
    pub(crate) each_candidate: Option<EachCandidate>,
    pub(crate) submissions: Submissions,
}

impl Endpoints {
    /// Returns how long the main loop may sleep before it must serve a client, even if nothing arrives.
    pub(crate) fn until_due(&self) -> Duration {
        let next = self.control.as_ref().and_then(Server::next_moment);
        let next = next.into_iter().chain(self.responder.as_ref().and_then(Responder::next_moment));
        let next = next.chain(self.submissions.deadline()).min();
        next.map_or(NOT_DUE, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns the descriptors to poll for clients, for copied submissions, and for readers of the metrics.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = PollFd<'_>> {
        let metrics = self.responder.iter().flat_map(Responder::descriptors);
        let copied = self.submissions.descriptor().into_iter();
        let copied = copied.map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN));
        metrics.chain(copied).chain(self.control.iter().flat_map(Server::descriptors))
    }

    /// Reports that the run is ready and where its metrics are.
    pub(crate) fn announce(&self, run: &str) {
        if let Some(responder) = &self.responder {
            let address = responder.address();
            if !address.ip().is_loopback() {
                tracing::warn!("metrics at {address}: anyone who can reach this address can read them");
            }
            tracing::info!("metrics at http://{address}/metrics");
        }
        crate::notify::ready(run);
    }

    /// Sends an event to all subscribed clients. `compose` is called only if there are any.
    pub(crate) fn notify(&mut self, compose: impl FnOnce() -> Value) {
        if let Some(server) = &mut self.control
            && server.has_listeners()
        {
            let mut event = compose();
            if event["t"].is_null() {
                event["t"] = json!(UtcTime::now());
            }
            server.broadcast(&Notification(event), Instant::now());
        }
    }

    pub(crate) fn reply(&mut self, token: &Token, reply: &Reply) {
        if let Some(server) = &mut self.control {
            server.answer(token, reply, Instant::now());
        }
    }

    /// Returns whether anybody must be told when this candidate ends: a waiting client, or the callback.
    pub(crate) fn is_awaited(&self, id: CandidateId) -> bool {
        self.each_candidate.is_some()
            || self.control.as_ref().is_some_and(Server::has_listeners)
            || self.awaited.iter().any(|(_, awaited)| *awaited == id)
    }

    /// Removes from the list the clients that are waiting for this candidate, and returns them.
    pub(crate) fn take_awaiting(&mut self, id: CandidateId) -> Vec<Token> {
        let (ready, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.awaited).into_iter().partition(|(_, awaited)| *awaited == id);
        self.awaited = others;
        ready.into_iter().map(|(token, _)| token).collect()
    }

    /// Removes clients that have disconnected from the list of waiting clients.
    pub(crate) fn drop_disconnected(&mut self) {
        if let Some(server) = &self.control {
            self.awaited.retain(|(token, _)| server.is_connected(token));
        }
    }
}
