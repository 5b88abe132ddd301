//! Accepts submitted candidates, one after the other. For each one, a thread copies the files, the main loop checks the
//! candidate, the thread writes the record that a resumed run needs, and the candidate is offered to the core.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use opt_shared::ids::CandidateId;
use serde_json::json;

use super::requests::to_reply;
pub use super::submission_files::restore;
use super::submission_files::{SubmissionFolders, SubmissionRecord};
use crate::control::{Code, Refusal, Reply, SubmitParams, Token};
use crate::core::event::Answer;
use crate::driver::RunError;
use crate::driver::background::Background;
use crate::driver::candidate_facts::CandidateFacts;
use crate::driver::folder::register::candidate_row_with;
use crate::driver::folder::writer::FollowUp;
use crate::driver::run::Run;
use crate::plan::{CandidatePlan, Plan, Submission, SubmissionError};

/// The time limit for accepting a submission, counted from its arrival. It is shorter than the time that clients wait.
/// Because the files are small, only a disk that hangs takes longer.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How long the end of a run waits for the thread that copies files.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest total size of the submissions that are waiting for an earlier one, in bytes.
const MAX_WAITING_BYTES: usize = 4 << 20;
/// The largest number of submissions that are waiting for an earlier one.
const MAX_WAITING: usize = 256;

/// The submissions that have not been accepted yet, in the order of their arrival.
pub(crate) struct Submissions {
    run: PathBuf,
    /// The thread that copies files and writes records. `None` until the first submission.
    thread: Option<Background<Order, Outcome>>,
    waiting: VecDeque<Request>,
    current: Option<Current>,
}

struct Request {
    token: Token,
    job: usize,
    params: SubmitParams,
    deadline: Instant,
}

struct Current {
    request: Request,
    /// The candidate, once its files have been copied and it has been checked.
    candidate: Option<CandidatePlan>,
    /// Whether the client has been told that accepting the submission took too long.
    is_late: bool,
}

enum Order {
    Copy(SubmitParams),
    Record(Box<SubmissionRecord>),
    Discard,
}

enum Outcome {
    Copied(Result<Vec<PathBuf>, Refusal>),
    /// The outcome of writing the record. It contains the digest of the submission's files, if they can be read.
    Recorded(Result<Option<String>, Refusal>),
}

impl Submissions {
    pub(crate) fn new(run: &Path) -> Self {
        Self { run: run.to_owned(), thread: None, waiting: VecDeque::new(), current: None }
    }

    /// Returns a descriptor that becomes readable when the thread has finished a step. `None` if there is no thread.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.thread.as_ref().map(Background::descriptor)
    }

    /// Returns the earliest deadline among the submissions whose clients are still waiting.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let current = self.current.as_ref().filter(|current| !current.is_late).map(|it| it.request.deadline);
        current.into_iter().chain(self.waiting.iter().map(|it| it.deadline)).min()
    }

    /// Queues a submission. Refuses it if too many are waiting, or if the current one hangs.
    fn enqueue(&mut self, request: Request) -> Result<(), Refusal> {
        if self.current.as_ref().is_some_and(|current| current.is_late) {
            let why = "an earlier submission is still being copied (a disk may be hanging)";
            return Err(Refusal::new(Code::Busy, why));
        }
        let waiting: usize = self.waiting.iter().map(Request::bytes).sum();
        if MAX_WAITING <= self.waiting.len() || MAX_WAITING_BYTES < waiting + request.bytes() {
            let why = format!("{} submissions are waiting (submit fewer at a time)", self.waiting.len());
            return Err(Refusal::new(Code::Busy, why));
        }
        if self.thread.is_none() {
            let mut folders = SubmissionFolders::new(&self.run);
            let thread = Background::start("submissions", move |order| carry_out(&mut folders, order));
            let why = |error| Refusal::new(Code::Refused, format!("starting a thread: {error}"));
            self.thread = Some(thread.map_err(why)?);
        }
        self.waiting.push_back(request);
        Ok(())
    }

    fn outcomes(&self) -> Vec<Outcome> {
        self.thread.as_ref().map(Background::outcomes).unwrap_or_default()
    }

    fn order(&self, order: Order) {
        // If the thread has ended, the order is lost. That would be a bug, and `take_abandoned` notices it.
        let _ = self.thread.as_ref().is_some_and(|thread| thread.order(order));
    }

    /// Starts the next submission, if none is under way.
    fn start_next(&mut self) {
        if self.current.is_none()
            && let Some(request) = self.waiting.pop_front()
        {
            self.order(Order::Copy(request.params.clone()));
            self.current = Some(Current { request, candidate: None, is_late: false });
        }
    }

    /// Returns the clients whose submissions have passed their deadlines. Each client is returned once.
    fn take_late(&mut self, now: Instant) -> Vec<Token> {
        let late = self.waiting.partition_point(|request| request.deadline <= now);
        let waiting: Vec<Token> = self.waiting.drain(..late).map(|request| request.token).collect();
        let current = self.current.as_mut().filter(|it| !it.is_late && it.request.deadline <= now);
        let current = current.map(|current| {
            current.is_late = true;
            current.request.token.clone()
        });
        current.into_iter().chain(waiting).collect()
    }

    /// Drops the thread if it has ended, which would be a bug. Returns the clients that are waiting for it.
    fn take_abandoned(&mut self) -> Vec<Token> {
        if !self.thread.as_ref().is_some_and(Background::has_ended) {
            return Vec::new();
        }
        self.thread = None;
        let current = self.current.take().filter(|current| !current.is_late).map(|current| current.request);
        current.into_iter().chain(self.waiting.drain(..)).map(|request| request.token).collect()
    }

    /// Ends the thread, and removes the files of a submission that has not been accepted yet. Returns the clients that
    /// are still waiting.
    pub(super) fn close(&mut self) -> Vec<Token> {
        let current = self.current.take();
        if let Some(mut thread) = self.thread.take() {
            if current.is_some() {
                thread.order(Order::Discard);
            }
            if !thread.end(END_TIMEOUT) {
                tracing::warn!("a submission is still being copied (a disk may be hanging)");
            }
        }
        let current = current.filter(|current| !current.is_late).map(|current| current.request);
        current.into_iter().chain(self.waiting.drain(..)).map(|request| request.token).collect()
    }
}

impl Request {
    /// Returns an upper bound of the memory that the texts in the request take.
    fn bytes(&self) -> usize {
        let SubmitParams { job, sources, text, language: _, name, symbol, like } = &self.params;
        let texts = [job, text, name, symbol, like].into_iter().flatten().chain(sources);
        texts.map(|text| text.capacity() + size_of::<String>()).sum()
    }
}

fn carry_out(folders: &mut SubmissionFolders, order: Order) -> Option<Outcome> {
    match order {
        Order::Copy(params) => Some(Outcome::Copied(folders.copy(&params))),
        Order::Record(record) => Some(Outcome::Recorded(folders.record(&record))),
        Order::Discard => {
            folders.discard();
            None
        }
    }
}

impl Run<'_> {
    /// Begins to accept a candidate. Unless this returns a refusal, the client is answered later.
    pub(super) fn submit(&mut self, token: &Token, params: SubmitParams) -> Result<(), Refusal> {
        let job = self.job_for(params.job.as_deref())?;
        self.may_offer(job)?;
        self.endpoints.submissions.enqueue(Request {
            token: token.clone(),
            job,
            params,
            deadline: Instant::now() + TIMEOUT,
        })?;
        self.endpoints.submissions.start_next();
        Ok(())
    }

    /// Continues the submission for which the thread has finished a step. Refuses submissions that take too long.
    pub(super) fn continue_submissions(&mut self) -> Result<(), RunError> {
        for outcome in self.endpoints.submissions.outcomes() {
            let Some(mut current) = self.endpoints.submissions.current.take() else {
                return Err(RunError::Law {
                    law: "the thread reported an outcome, but no submission is under way".to_owned(),
                });
            };
            if current.is_late {
                self.endpoints.submissions.order(Order::Discard);
                continue;
            }
            let refusal = match (outcome, current.candidate.take()) {
                (Outcome::Copied(Ok(sources)), _) => match self.check(&current.request, sources) {
                    Ok(candidate) => {
                        let record = SubmissionRecord::of(
                            &self.agenda.plan.jobs[current.request.job].name,
                            &candidate,
                        );
                        self.endpoints.submissions.order(Order::Record(Box::new(record)));
                        let candidate = Some(candidate);
                        self.endpoints.submissions.current = Some(Current { candidate, ..current });
                        continue;
                    }
                    Err(refusal) => refusal,
                },
                // A shutdown may have begun since the candidate was checked.
                (Outcome::Recorded(Ok(digest)), Some(candidate)) => match self.may_offer(current.request.job)
                {
                    Ok(()) => {
                        self.admit(current.request, candidate, digest)?;
                        continue;
                    }
                    Err(refusal) => refusal,
                },
                (Outcome::Copied(Err(refusal)) | Outcome::Recorded(Err(refusal)), _) => refusal,
                (Outcome::Recorded(Ok(_)), None) => {
                    return Err(RunError::Law {
                        law: "a submission was recorded before it was checked".to_owned(),
                    });
                }
            };
            self.endpoints.submissions.order(Order::Discard);
            self.endpoints.reply(&current.request.token, &Err(refusal));
        }
        for token in self.endpoints.submissions.take_abandoned() {
            let why =
                "the thread that copies submissions has ended, which is a bug (submit the candidate again)";
            self.endpoints.reply(&token, &Err(Refusal::new(Code::Refused, why)));
        }
        for token in self.endpoints.submissions.take_late(Instant::now()) {
            let why = format!("copying the files took longer than {TIMEOUT:?} (a disk may be hanging)");
            self.endpoints.reply(&token, &Err(Refusal::new(Code::Refused, why)));
        }
        self.endpoints.submissions.start_next();
        Ok(())
    }

    fn job_for(&self, wanted: Option<&str>) -> Result<usize, Refusal> {
        let jobs = &self.agenda.plan.jobs;
        match wanted {
            Some(wanted) => jobs
                .iter()
                .position(|job| job.name == wanted)
                .ok_or_else(|| Refusal::new(Code::NotFound, format!("the run has no job `{wanted}`"))),
            None if jobs.len() == 1 => Ok(0),
            None => {
                let why = format!("the plan has {} jobs: name one in `job`", jobs.len());
                Err(Refusal::new(Code::InvalidParams, why))
            }
        }
    }

    fn may_offer(&self, job: usize) -> Result<(), Refusal> {
        match self.decisions.core.may_offer(self.agenda.plan.jobs[job].id) {
            Ok(()) => Ok(()),
            Err(answer) => to_reply(answer).map(drop),
        }
    }

    /// Checks a submission whose files have been copied.
    fn check(&self, request: &Request, sources: Vec<PathBuf>) -> Result<CandidatePlan, Refusal> {
        self.may_offer(request.job)?;
        let Request { job, params, .. } = request;
        let job = &self.agenda.plan.jobs[*job];
        let refuse = |error: SubmissionError| Refusal::new(Code::InvalidParams, error.to_string());
        let submission = Submission {
            name: params.name.clone(),
            sources,
            language: params.language,
            symbol: params.symbol.clone(),
            launch: job.launch_like(params.like.as_deref()).map_err(refuse)?,
        };
        let id = CandidateId(u32::try_from(self.agenda.candidate_facts.len()).unwrap_or(u32::MAX));
        let mut candidate = job.admit(id, &submission).map_err(refuse)?;
        candidate.source.language = candidate.source.language.on(self.agenda.plan.device());
        match candidate.source.language.unfit_for(self.agenda.plan.device()) {
            Some(why) => Err(Refusal::new(Code::InvalidParams, why)),
            None => Ok(candidate),
        }
    }

    /// Adds a recorded submission to the plan, and offers it to the core. The client is answered when the candidate is
    /// in the database.
    fn admit(
        &mut self,
        request: Request,
        candidate: CandidatePlan,
        digest: Option<String>,
    ) -> Result<(), RunError> {
        let (id, name) = (candidate.id, candidate.name.clone());
        let row = candidate_row_with(&self.agenda.plan, &candidate, digest);
        self.records.writer.write(move |store| store.candidate(&row));
        self.agenda.plan.jobs[request.job].candidates.push(candidate);
        self.agenda.candidate_facts.push(CandidateFacts::default());
        let answer = self.offer(id)?;
        let Some(Answer::Done(_)) = answer else {
            // Every reason for which the core refuses an offer has been checked by `may_offer`, so this is a bug.
            return Err(RunError::Law { law: format!("{id} was refused: {answer:?}") });
        };
        let full_name = self.agenda.full_name(id);
        let reply: Reply = Ok(json!({ "outcome": "done", "candidate": full_name, "name": name, "id": id }));
        let token = request.token;
        self.records.writer.write_then(move |_| Ok(FollowUp::Reply(token.clone(), reply.clone())));
        Ok(())
    }
}

/// Adds a candidate to the plan of a separate run, which is started for this candidate alone.
pub fn add_to_separate_run(
    plan: &mut Plan,
    job: usize,
    submission: &Submission,
) -> Result<CandidateId, SubmissionError> {
    let id = CandidateId(u32::try_from(plan.candidates().count()).unwrap_or(u32::MAX));
    let mut candidate = plan.jobs[job].admit(id, submission)?;
    candidate.source.language = candidate.source.language.on(plan.device());
    if let Some(why) = candidate.source.language.unfit_for(plan.device()) {
        return Err(SubmissionError::Unfit { why });
    }
    plan.jobs[job].candidates.push(candidate);
    Ok(id)
}
