//! Connects the control socket to the run: passes requests to the core as events, and sends its answers back.
//!
//! The core decides what a request does. `status` and `overview` answer questions, and `submissions` accepts
//! candidates.

use std::path::Path;
use std::time::{Duration, Instant};

use opt_shared::ids::{CandidateId, WorkerId};
use opt_shared::message::Role;
use opt_shared::units::Bytes;
use serde_json::json;

use super::questions::Question;
use super::{View, notifications};
use crate::control::socket::{self, RunSocket};
use crate::control::{
    CancelParams, Code, ControlError, RecycleParams, Refusal, Reply, Request, Server, Token,
};
use crate::core::control::Which;
use crate::core::event::{Answer, Control, Event};
use crate::driver::RunError;
use crate::driver::folder::writer::FollowUp;
use crate::driver::folder::{RunFolder, clear_if_dead, is_locked};
use crate::driver::run::Run;
use crate::exit::Exit;
use crate::metrics::GaugeValues;
use crate::plan::Amount;
use crate::record::CandidateRecord;

/// The time that clients have to read the last answers.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(1);

/// Removes the sockets that dead runs of this user have left, and opens the socket of this run. If the socket cannot be
/// opened, the run continues without it, unless it `is_needed` for submissions.
pub(crate) fn open(folder: &RunFolder, is_needed: bool) -> Result<Option<Server>, RunError> {
    for found in socket::runs() {
        clear_if_dead(&found.run, || socket::clear(&found));
    }
    let server = RunSocket::take(folder.path()).map_err(ControlError::from).and_then(Server::open);
    match server {
        Ok(server) => Ok(Some(server)),
        Err(error) if is_needed => Err(error.into()),
        Err(error) => {
            tracing::warn!(
                "the run continues without a control socket: {}",
                opt_shared::causes::chain(&error)
            );
            Ok(None)
        }
    }
}

/// Returns this user's live runs. A run is live while its supervisor holds the lock of the run's folder.
pub fn live_runs() -> Vec<socket::Found> {
    socket::runs().into_iter().filter(|found| is_locked(&found.run)).collect()
}

pub fn is_alive(run: &Path) -> bool {
    is_locked(run)
}

impl Run<'_> {
    /// Serves the readers of the metrics and the clients of the control socket.
    pub(crate) fn serve(&mut self) -> Result<(), RunError> {
        self.serve_metrics();
        self.continue_submissions()?;
        let Some(server) = &mut self.endpoints.control else { return Ok(()) };
        for (token, request) in server.serve(Instant::now()) {
            if let Some(reply) = self.handle_request(&token, request)? {
                self.endpoints.reply(&token, &reply);
            }
        }
        self.endpoints.drop_disconnected();
        Ok(())
    }

    fn serve_metrics(&mut self) {
        let Some(mut responder) = self.endpoints.responder.take() else { return };
        responder.serve(Instant::now(), &|| self.endpoints.metrics.page(&self.view().gauges()).ok());
        self.endpoints.responder = Some(responder);
    }

    /// Handles a request. Returns `None` if the answer is sent later.
    fn handle_request(&mut self, token: &Token, request: Request) -> Result<Option<Reply>, RunError> {
        let needs_database = !matches!(
            request,
            Request::Status
                | Request::Workers
                | Request::Candidates(_)
                | Request::History(_)
                | Request::Events
                | Request::Shutdown { .. }
        );
        if needs_database && self.records.writer.is_full() {
            let why = format!("the run's database does not answer: {}", self.records.writer.last_error());
            return Ok(Some(Err(Refusal::new(Code::Refused, why))));
        }
        let reply = match request {
            Request::Status => Ok(self.view().status()),
            Request::Workers => Ok(self.view().workers()),
            Request::Why(params) => match self.view().why(&params) {
                Ok(question) => return Ok(self.look_up(token, question)),
                Err(refusal) => Err(refusal),
            },
            Request::Candidates(params) => Ok(self.view().candidates(params.from)),
            Request::History(params) => self.view().history(params.since_s),
            Request::Decisions(params) => {
                return Ok(self.look_up(token, Question::Decisions(params.most)));
            }
            // The server has already subscribed the client.
            Request::Events => Ok(json!({ "outcome": "done" })),
            Request::Recycle(params) => self.ask(recycle(&params))?,
            Request::Pause => self.ask(Control::Pause)?,
            Request::Resume => self.ask(Control::Resume)?,
            Request::Shutdown { mode } => self.ask(Control::Shutdown { mode })?,
            Request::Cancel(params) => match self.view().cancel(&params) {
                Ok(request) => self.ask(request)?,
                Err(refusal) => Err(refusal),
            },
            Request::Set(params) => match ceiling(&params.host_ceiling, self.machine.whole) {
                Ok(ceiling) => {
                    let reply = self.ask(Control::SetCeiling { ceiling })?;
                    if reply.is_ok() {
                        self.machine.sampler.totals.host_ceiling_bytes = Some(ceiling);
                    }
                    reply
                }
                Err(refusal) => Err(refusal),
            },
            Request::Submit(params) => match self.submit(token, params) {
                Ok(()) => return Ok(None),
                Err(refusal) => Err(refusal),
            },
            Request::Result(params) => match self.view().candidate_named(&params.candidate) {
                Ok(id) => {
                    let done =
                        self.agenda.candidate_facts.get(id.index()).is_some_and(|it| it.status.is_some());
                    if params.wait && !done {
                        self.endpoints.awaited.push((token.clone(), id));
                        return Ok(None);
                    }
                    return Ok(self.look_up(token, Question::Result(id)));
                }
                Err(refusal) => Err(refusal),
            },
        };
        Ok(Some(reply))
    }

    /// Starts to look up rows. The answer is sent when they arrive. If the database is not responding, the function
    /// looks up nothing and returns a refusal.
    fn look_up(&mut self, token: &Token, question: Question) -> Option<Reply> {
        if self.store_is_behind() {
            let why = format!("the run's database does not answer: {}", self.records.writer.last_error());
            return Some(Err(Refusal::new(Code::Refused, why)));
        }
        let token = token.clone();
        self.records
            .writer
            .write_then(move |store| Ok(FollowUp::Answer(token.clone(), question, question.look_up(store)?)));
        None
    }

    /// Passes a request to the core, and returns its answer as a reply.
    pub(crate) fn ask(&mut self, request: Control) -> Result<Reply, RunError> {
        self.decisions.answer = None;
        self.feed(Event::Control(request))?;
        Ok(match self.decisions.answer.take() {
            Some(answer) => to_reply(answer),
            // An earlier request or another event has just ended the run.
            None if self.decisions.stop.is_some() => Err(Refusal::new(Code::Refused, "the run has ended")),
            None => return Err(RunError::Law { law: "a request was not answered".to_owned() }),
        })
    }

    /// Reports a candidate's end to the clients that are waiting for it, to subscribed clients, and to the callback.
    /// Call this once the end has been written to disk.
    pub(crate) fn announce_end(&mut self, id: CandidateId, record: Option<Box<CandidateRecord>>) {
        if !self.endpoints.is_awaited(id) {
            return;
        }
        let result = self.view().result(id, record);
        if let Some(each_candidate) = &self.endpoints.each_candidate {
            each_candidate(&result);
        }
        self.endpoints.notify(|| notifications::candidate(&result));
        for token in self.endpoints.take_awaiting(id) {
            self.endpoints.reply(&token, &Ok(result.clone()));
        }
    }

    /// Refuses the requests that are still waiting for a submission or a candidate, announces the end of the run, and
    /// closes the socket.
    pub(crate) fn close_control(&mut self, exit: Exit) {
        for token in self.endpoints.submissions.close() {
            let why = "the run ended before the submission was accepted";
            self.endpoints.reply(&token, &Err(Refusal::new(Code::Refused, why)));
        }
        for (token, id) in std::mem::take(&mut self.endpoints.awaited) {
            let why = format!("the run ended before {} did", self.agenda.full_name(id));
            self.endpoints.reply(&token, &Err(Refusal::new(Code::Refused, why)));
        }
        self.endpoints.notify(|| notifications::run_ended(exit.code()));
        if let Some(server) = self.endpoints.control.take() {
            server.close(CLOSING_TIMEOUT);
        }
    }
}

impl View<'_> {
    /// Returns the current state of the run, for a reader of the metrics.
    fn gauges(&self) -> GaugeValues {
        let core = &self.decisions.core;
        let (view, workers) = (core.run_view(), core.worker_views(self.decisions.now()));
        let latest = &self.machine.sampler.latest;
        let device = self.machine.device.as_ref();
        GaugeValues {
            workers: workers.iter().map(|it| (it.role.name(), it.state)).collect(),
            leases: workers.iter().filter_map(|it| Some(it.lease?.stage.name())).collect(),
            owed: view.owed,
            charged: view.charged,
            ceiling: view.ceiling,
            reclaimable: latest.reclaimable,
            available: latest.available.unwrap_or_default(),
            device: device.and_then(|device| device.latest.ours),
            device_peak: device.and_then(|device| device.latest.peak),
            device_ceiling: device.map(|_| core.ceilings().device),
            device_utilisation: device.and_then(|device| device.latest.utilisation),
            peak: self.machine.sampler.totals.peak_owed_bytes,
        }
    }

    fn cancel(&self, params: &CancelParams) -> Result<Control, Refusal> {
        let Some(job) = self.agenda.plan.jobs.iter().find(|job| job.name == params.job) else {
            return Err(Refusal::new(Code::NotFound, format!("the run has no job `{}`", params.job)));
        };
        let unit = match &params.candidate {
            None => None,
            Some(name) => {
                let candidate = job.candidates.iter().find(|it| it.name == *name);
                let unit = candidate.and_then(|it| self.agenda.units.of_candidate(it.id));
                let why = || format!("the job `{}` has no candidate `{name}`", job.name);
                Some(unit.ok_or_else(|| Refusal::new(Code::NotFound, why()))?)
            }
        };
        Ok(Control::Cancel { job: job.id, unit })
    }
}

pub(super) fn to_reply(answer: Answer) -> Reply {
    match answer {
        Answer::Done(message) => Ok(json!({ "outcome": "done", "message": message })),
        Answer::Already(message) => Ok(json!({ "outcome": "already", "message": message })),
        Answer::Refused(message) => Err(Refusal::new(Code::Refused, message)),
        Answer::Unknown(message) => Err(Refusal::new(Code::NotFound, message)),
    }
}

fn recycle(params: &RecycleParams) -> Control {
    let role = params.role.unwrap_or(Role::Verifier);
    let which = params.worker.map_or(Which::Role(role), |worker| Which::Worker(WorkerId(worker)));
    Control::Recycle { which, mode: params.mode }
}

/// Parses a ceiling that is written as in plans.
fn ceiling(text: &str, whole: Bytes) -> Result<Bytes, Refusal> {
    let amount = Amount::parse(text).ok_or_else(|| {
        let why = format!("`{text}` is neither a size (\"8GiB\") nor a share (\"60%\")");
        Refusal::new(Code::InvalidParams, why)
    })?;
    let ceiling = amount.of(whole);
    if whole < ceiling {
        return Err(Refusal::new(
            Code::Refused,
            format!("{ceiling} is more than this machine allows ({whole})"),
        ));
    }
    Ok(ceiling)
}
