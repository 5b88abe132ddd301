//! Everybody who watches a run from outside: clients of the control socket, readers of metrics, a terminal. Owns who is
//! connected and who waits for what; what they are told is made elsewhere.

use std::time::{Duration, Instant};

use opt_shared::ids::CandidateId;
use rustix::event::PollFd;
use serde_json::{Value, json};

use super::forecast::Forecast;
use crate::control::{Notification, Reply, Server, Token};
use crate::driver::EachCandidate;
use crate::metrics::Metrics;
use crate::metrics::http::Responder;
use crate::progress::Progress;
use crate::record::UtcTime;

/// Nothing is due: the loop wakes for samples long before.
const NOT_DUE: Duration = Duration::from_secs(3600);

pub(crate) struct Desk {
    pub(crate) control: Option<Server>,
    /// Who waits for the end of which candidate.
    pub(crate) awaited: Vec<(Token, CandidateId)>,
    pub(crate) metrics: Metrics,
    /// Where they are served.
    pub(crate) responder: Option<Responder>,
    pub(crate) progress: Progress,
    pub(crate) forecast: Forecast,
    /// Is given each candidate's record as it ends.
    pub(crate) each_candidate: Option<EachCandidate>,
}

impl Desk {
    /// Until somebody wants to be served without having said anything new.
    pub(crate) fn due(&self) -> Duration {
        let next = self.control.as_ref().and_then(Server::next_moment);
        let next = next.into_iter().chain(self.responder.as_ref().and_then(Responder::next_moment)).min();
        next.map_or(NOT_DUE, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Readable when somebody wants something.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = PollFd<'_>> {
        let metrics = self.responder.iter().flat_map(Responder::descriptors);
        metrics.chain(self.control.iter().flat_map(Server::descriptors))
    }

    /// Everything that can be reached is there now.
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

    /// To all who listen on the control socket. Composed only while somebody does.
    pub(crate) fn tell(&mut self, what: impl FnOnce() -> Value) {
        if let Some(server) = &mut self.control
            && server.has_listeners()
        {
            let mut what = what();
            if what["t"].is_null() {
                what["t"] = json!(UtcTime::now());
            }
            server.tell(&Notification(what), Instant::now());
        }
    }

    pub(crate) fn reply(&mut self, token: &Token, reply: &Reply) {
        if let Some(server) = &mut self.control {
            server.answer(token, reply, Instant::now());
        }
    }

    /// Whether anybody is to be told of this candidate's end.
    pub(crate) fn minds_the_end_of(&self, id: CandidateId) -> bool {
        self.each_candidate.is_some()
            || self.control.as_ref().is_some_and(Server::has_listeners)
            || self.awaited.iter().any(|(_, awaited)| *awaited == id)
    }

    /// Those who waited for this candidate.
    pub(crate) fn take_awaiting(&mut self, id: CandidateId) -> Vec<Token> {
        let (ready, still): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.awaited).into_iter().partition(|(_, awaited)| *awaited == id);
        self.awaited = still;
        ready.into_iter().map(|(token, _)| token).collect()
    }

    /// Nobody waits who has gone.
    pub(crate) fn forget_the_gone(&mut self) {
        if let Some(server) = &self.control {
            self.awaited.retain(|(token, _)| server.is_there(token));
        }
    }
}
