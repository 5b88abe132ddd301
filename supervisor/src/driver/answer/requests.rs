//! The control socket and the run: requests become events of the core, its answers go back.
//!
//! Changes nothing by itself: what a request does is the core's decision. Questions are answered in `answers`,
//! candidates taken in by `submissions`.

use std::path::Path;
use std::time::{Duration, Instant};

use opt_shared::ids::{CandidateId, WorkerId};
use opt_shared::message::Role;
use opt_shared::units::Bytes;
use serde_json::json;

use super::notifications;
use crate::control::place::{self, Place};
use crate::control::{
    CancelParams, Code, ControlError, RecycleParams, Refusal, Reply, Request, Server, Token,
};
use crate::core::control::Which;
use crate::core::event::{Answer, Control, Event};
use crate::driver::folder::{RunFolder, clear_if_dead, is_locked};
use crate::driver::{Run, RunError};
use crate::exit::Exit;
use crate::metrics::Standing;
use crate::metrics::http::Responder;
use crate::plan::Amount;

/// For a client to read the last answers.
const FAREWELL: Duration = Duration::from_secs(1);
/// Nothing is due: the loop wakes for samples long before.
const NOT_DUE: Duration = Duration::from_secs(3600);

/// A run can do without its socket, unless it is to stay open for submissions.
pub(crate) fn open(folder: &RunFolder, is_needed: bool) -> Result<Option<Server>, RunError> {
    for found in place::runs() {
        clear_if_dead(&found.run, || place::clear(&found));
    }
    let server = Place::take(folder.path()).map_err(ControlError::from).and_then(Server::open);
    match server {
        Ok(server) => Ok(Some(server)),
        Err(error) if is_needed => Err(error.into()),
        Err(error) => {
            tracing::warn!("there is no control socket: {}", opt_shared::causes::chain(&error));
            Ok(None)
        }
    }
}

/// Runs of this user that go on now, by their locks.
pub fn living() -> Vec<place::Found> {
    place::runs().into_iter().filter(|found| is_locked(&found.run)).collect()
}

/// Whether a supervisor works in this folder now.
pub fn is_alive(run: &Path) -> bool {
    is_locked(run)
}

impl Run<'_> {
    /// Until the socket wants to be served of itself.
    pub(crate) fn control_due(&self) -> Duration {
        let next = self.control.as_ref().and_then(Server::next_moment);
        let next = next.into_iter().chain(self.scraped.as_ref().and_then(Responder::next_moment)).min();
        next.map_or(NOT_DUE, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Everything that can be reached is there now.
    pub(crate) fn announce(&self) {
        if let Some(responder) = &self.scraped {
            let address = responder.address();
            if !address.ip().is_loopback() {
                tracing::warn!("metrics at {address}: whoever reaches this address can read them");
            }
            tracing::info!("metrics at http://{address}/metrics");
        }
        crate::notify::ready(&format!("run {} in {}", self.plan.run.name, self.folder.path().display()));
    }

    fn scrape(&mut self) {
        let Some(mut responder) = self.scraped.take() else { return };
        responder.serve(Instant::now(), &|| self.metrics.page(&self.standing()).ok());
        self.scraped = Some(responder);
    }

    fn standing(&self) -> Standing {
        let (view, workers) = (self.core.run_view(), self.core.worker_views(self.now()));
        Standing {
            workers: workers.iter().map(|it| (it.role.name(), it.state)).collect(),
            leases: workers.iter().filter_map(|it| Some(it.lease?.stage.name())).collect(),
            owed: view.owed,
            charged: view.charged,
            ceiling: view.ceiling,
            reclaimable: self.sampler.look.reclaimable,
            available: self.sampler.look.available.unwrap_or_default(),
        }
    }

    pub(crate) fn serve(&mut self) -> Result<(), RunError> {
        self.scrape();
        let Some(server) = &mut self.control else { return Ok(()) };
        let requests = server.serve(Instant::now());
        for (token, request) in requests {
            if let Some(reply) = self.requested(&token, request)? {
                self.reply(&token, &reply);
            }
        }
        if let Some(server) = &self.control {
            self.awaited.retain(|(token, _)| server.is_there(token));
        }
        Ok(())
    }

    fn reply(&mut self, token: &Token, reply: &Reply) {
        if let Some(server) = &mut self.control {
            server.answer(token, reply, Instant::now());
        }
    }

    /// None where the answer comes later.
    fn requested(&mut self, token: &Token, request: Request) -> Result<Option<Reply>, RunError> {
        let reply = match request {
            Request::Status => Ok(self.status()),
            Request::Workers => Ok(self.workers()),
            Request::Why(params) => self.why(&params)?,
            Request::Candidates(params) => Ok(self.candidates(params.from)),
            Request::History(params) => self.history(params.since_s),
            Request::Decisions(params) => Ok(self.decisions(params.most)?),
            // The server's own affair.
            Request::Events => Ok(json!({ "outcome": "done" })),
            Request::Recycle(params) => self.ask(recycle(&params))?,
            Request::Pause => self.ask(Control::Pause)?,
            Request::Resume => self.ask(Control::Resume)?,
            Request::Shutdown { mode } => self.ask(Control::Shutdown { mode })?,
            Request::Cancel(params) => match self.cancel(&params) {
                Ok(request) => self.ask(request)?,
                Err(refusal) => Err(refusal),
            },
            Request::Set(params) => match ceiling(&params.host_ceiling, self.whole) {
                Ok(ceiling) => {
                    let reply = self.ask(Control::SetCeiling { ceiling })?;
                    if reply.is_ok() {
                        self.sampler.totals.host_ceiling_bytes = Some(ceiling);
                    }
                    reply
                }
                Err(refusal) => Err(refusal),
            },
            Request::Submit(params) => self.submit(params)?,
            Request::Result(params) => match self.candidate_named(&params.candidate) {
                Ok(id) => {
                    let done = self.known.get(id.index()).is_some_and(|it| it.status.is_some());
                    if params.wait && !done {
                        self.awaited.push((token.clone(), id));
                        return Ok(None);
                    }
                    Ok(self.result(id)?)
                }
                Err(refusal) => Err(refusal),
            },
        };
        Ok(Some(reply))
    }

    /// Puts a request to the core, and its answer into words.
    pub(crate) fn ask(&mut self, request: Control) -> Result<Reply, RunError> {
        self.answered = None;
        self.feed(Event::Control(request))?;
        Ok(match self.answered.take() {
            Some(Answer::Done(message)) => Ok(json!({ "outcome": "done", "message": message })),
            Some(Answer::Already(message)) => Ok(json!({ "outcome": "already", "message": message })),
            Some(Answer::Refused(message)) => Err(Refusal::new(Code::Refused, message)),
            Some(Answer::Unknown(message)) => Err(Refusal::new(Code::NotFound, message)),
            // The request before it, or a happening of this very moment, was the end.
            None if self.stop.is_some() => Err(Refusal::new(Code::Refused, "the run has ended")),
            None => return Err(RunError::Law { law: "a request was not answered".to_owned() }),
        })
    }

    fn cancel(&self, params: &CancelParams) -> Result<Control, Refusal> {
        let Some(job) = self.plan.jobs.iter().find(|job| job.name == params.job) else {
            return Err(Refusal::new(Code::NotFound, format!("the run has no job `{}`", params.job)));
        };
        let candidate = match &params.candidate {
            None => None,
            Some(name) => match job.candidates.iter().find(|it| it.name == *name) {
                Some(candidate) => Some(candidate.id),
                None => {
                    let why = format!("the job `{}` has no candidate `{name}`", job.name);
                    return Err(Refusal::new(Code::NotFound, why));
                }
            },
        };
        Ok(Control::Cancel { job: job.id, candidate })
    }

    /// A candidate has ended: who waits for it, listens or reads lines is told.
    pub(crate) fn told_of_end(&mut self, id: CandidateId) -> Result<(), RunError> {
        let is_awaited = self.awaited.iter().any(|(_, awaited)| *awaited == id);
        let listened = self.control.as_ref().is_some_and(Server::has_listeners);
        if !is_awaited && !listened && self.each_candidate.is_none() {
            return Ok(());
        }
        if let Some(job) = self.plan.candidate(id).map(|it| it.job) {
            self.score_so_far(job)?;
        }
        let result = self.result(id)?;
        if let Some(each_candidate) = self.each_candidate {
            each_candidate(&result);
        }
        self.tell(|| notifications::candidate(&result));
        let (ready, still): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.awaited).into_iter().partition(|(_, awaited)| *awaited == id);
        self.awaited = still;
        for (token, _) in ready {
            self.reply(&token, &Ok(result.clone()));
        }
        Ok(())
    }

    /// Nobody is left without an answer.
    pub(crate) fn close_control(&mut self, exit: Exit) {
        for (token, id) in std::mem::take(&mut self.awaited) {
            let why = format!("the run ended before {} did", self.full_name(id));
            self.reply(&token, &Err(Refusal::new(Code::Refused, why)));
        }
        self.tell(|| notifications::run_ended(exit.code()));
        if let Some(server) = self.control.take() {
            server.close(FAREWELL);
        }
    }
}

fn recycle(params: &RecycleParams) -> Control {
    let role = params.role.unwrap_or(Role::Verifier);
    let which = params.worker.map_or(Which::Role(role), |worker| Which::Worker(WorkerId(worker)));
    Control::Recycle { which, mode: params.mode }
}

/// As a plan writes it.
fn ceiling(text: &str, whole: Bytes) -> Result<Bytes, Refusal> {
    let amount = Amount::parse(text).ok_or_else(|| {
        let why = format!("`{text}` is neither a size (\"8GiB\") nor a share (\"60%\")");
        Refusal::new(Code::InvalidParams, why)
    })?;
    let ceiling = amount.of(whole);
    if whole < ceiling {
        return Err(Refusal::new(Code::Refused, format!("{ceiling} is more than there is for us ({whole})")));
    }
    Ok(ceiling)
}
