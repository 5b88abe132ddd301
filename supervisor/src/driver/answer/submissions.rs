//! Accepts submitted candidates, one after the other: a thread copies the files, the candidate is checked, the thread
//! writes the record that a resumed run needs, and the candidate is offered to the core.

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
use crate::driver::folder::register::candidate_row;
use crate::driver::folder::writer::FollowUp;
use crate::driver::run::Run;
use crate::plan::{CandidatePlan, Plan, Submission, SubmissionError};

/// The longest time in which the files of a submission must be copied or its record written. They are small, so only a
/// disk that does not answer takes longer.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the end of a run waits for the thread.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest total size of the texts and paths of submissions that wait for an earlier one, in bytes. The server
/// limits their number.
const MAX_WAITING_BYTES: usize = 4 << 20;

/// The submissions that are not accepted yet.
pub(crate) struct Submissions {
    run: PathBuf,
    /// `None` until the first submission.
    thread: Option<Background<Order, Outcome>>,
    waiting: VecDeque<Asked>,
    current: Option<Current>,
}

struct Asked {
    token: Token,
    job: usize,
    params: SubmitParams,
}

struct Current {
    asked: Asked,
    /// The candidate, once its files are copied and it is checked.
    candidate: Option<CandidatePlan>,
    deadline: Instant,
    /// True once the client has been told that the step took too long.
    is_late: bool,
}

enum Order {
    Copy(SubmitParams),
    Record(Box<SubmissionRecord>),
    Discard,
}

enum Outcome {
    Copied(Result<Vec<PathBuf>, Refusal>),
    Recorded(Result<(), Refusal>),
}

impl Submissions {
    pub(crate) fn new(run: &Path) -> Self {
        Self { run: run.to_owned(), thread: None, waiting: VecDeque::new(), current: None }
    }

    /// Returns a descriptor that becomes readable when the thread has taken a step. `None` if there is no thread.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.thread.as_ref().map(Background::descriptor)
    }

    /// Returns the time until which the current step must have been taken.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.current.as_ref().filter(|current| !current.is_late).map(|current| current.deadline)
    }

    fn ask(&mut self, asked: Asked) -> Result<(), Refusal> {
        if self.current.as_ref().is_some_and(|current| current.is_late) {
            let why = "an earlier submission is still being copied, because a disk does not answer";
            return Err(Refusal::new(Code::Busy, why));
        }
        let waiting: usize = self.waiting.iter().map(Asked::bytes).sum();
        if MAX_WAITING_BYTES < waiting + asked.bytes() {
            let why = format!("{} submissions are waiting (submit fewer at a time)", self.waiting.len());
            return Err(Refusal::new(Code::Busy, why));
        }
        if self.thread.is_none() {
            let mut folders = SubmissionFolders::new(&self.run);
            let thread = Background::start("submissions", move |order| carry_out(&mut folders, order));
            let why = |error| Refusal::new(Code::Refused, format!("starting a thread: {error}"));
            self.thread = Some(thread.map_err(why)?);
        }
        self.waiting.push_back(asked);
        Ok(())
    }

    fn outcomes(&self) -> Vec<Outcome> {
        self.thread.as_ref().map(Background::outcomes).unwrap_or_default()
    }

    fn order(&self, order: Order) {
        // The thread ends only when it is told to.
        let _ = self.thread.as_ref().is_some_and(|thread| thread.order(order));
    }

    /// Starts the next submission, if none is under way.
    fn start_next(&mut self) {
        if self.current.is_none()
            && let Some(asked) = self.waiting.pop_front()
        {
            self.order(Order::Copy(asked.params.clone()));
            let deadline = Instant::now() + STEP_TIMEOUT;
            self.current = Some(Current { asked, candidate: None, deadline, is_late: false });
        }
    }

    /// Returns the clients whose submission takes too long, or waits for such a one.
    fn take_late(&mut self, now: Instant) -> Vec<Token> {
        match &mut self.current {
            Some(current) if current.deadline <= now && !current.is_late => {
                current.is_late = true;
                let waiting = self.waiting.drain(..).map(|asked| asked.token);
                std::iter::once(current.asked.token.clone()).chain(waiting).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Ends the thread, and removes the files of a submission that is not accepted yet. Returns the clients that wait.
    pub(super) fn close(&mut self) -> Vec<Token> {
        let current = self.current.take();
        if let Some(mut thread) = self.thread.take() {
            if current.is_some() {
                thread.order(Order::Discard);
            }
            if !thread.end(END_TIMEOUT) {
                tracing::warn!("a submission is still being copied, because a disk does not answer");
            }
        }
        let current = current.filter(|current| !current.is_late).map(|current| current.asked);
        current.into_iter().chain(self.waiting.drain(..)).map(|asked| asked.token).collect()
    }
}

impl Asked {
    fn bytes(&self) -> usize {
        let SubmitParams { sources, text, .. } = &self.params;
        text.as_ref().map_or(0, String::len) + sources.iter().map(String::len).sum::<usize>()
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
    /// Begins to accept a candidate. The client is answered later, unless this returns a refusal.
    pub(super) fn submit(&mut self, token: &Token, params: SubmitParams) -> Result<(), Refusal> {
        let job = self.job_for(params.job.as_deref())?;
        self.may_offer(job)?;
        self.endpoints.submissions.ask(Asked { token: token.clone(), job, params })?;
        self.endpoints.submissions.start_next();
        Ok(())
    }

    /// Continues the submissions for which the thread has taken a step, and refuses those that take too long.
    pub(super) fn continue_submissions(&mut self) -> Result<(), RunError> {
        for outcome in self.endpoints.submissions.outcomes() {
            let Some(mut current) = self.endpoints.submissions.current.take() else {
                return Err(RunError::Law { law: "files of no submission were copied".to_owned() });
            };
            if current.is_late {
                self.endpoints.submissions.order(Order::Discard);
                continue;
            }
            let refusal = match (outcome, current.candidate.take()) {
                (Outcome::Copied(Ok(sources)), _) => match self.check(&current.asked, sources) {
                    Ok(candidate) => {
                        let record =
                            SubmissionRecord::of(&self.agenda.plan.jobs[current.asked.job].name, &candidate);
                        self.endpoints.submissions.order(Order::Record(Box::new(record)));
                        let deadline = Instant::now() + STEP_TIMEOUT;
                        let candidate = Some(candidate);
                        self.endpoints.submissions.current = Some(Current { candidate, deadline, ..current });
                        continue;
                    }
                    Err(refusal) => refusal,
                },
                // A shutdown may have begun since the candidate was checked.
                (Outcome::Recorded(Ok(())), Some(candidate)) => match self.may_offer(current.asked.job) {
                    Ok(()) => {
                        self.admit(current.asked, candidate)?;
                        continue;
                    }
                    Err(refusal) => refusal,
                },
                (Outcome::Copied(Err(refusal)) | Outcome::Recorded(Err(refusal)), _) => refusal,
                (Outcome::Recorded(Ok(())), None) => {
                    return Err(RunError::Law { law: "a submission was recorded unchecked".to_owned() });
                }
            };
            self.endpoints.submissions.order(Order::Discard);
            self.endpoints.reply(&current.asked.token, &Err(refusal));
        }
        for token in self.endpoints.submissions.take_late(Instant::now()) {
            let why =
                format!("its files were not copied in {STEP_TIMEOUT:?}, because a disk does not answer");
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

    /// Checks a submission whose files are copied.
    fn check(&self, asked: &Asked, sources: Vec<PathBuf>) -> Result<CandidatePlan, Refusal> {
        self.may_offer(asked.job)?;
        let Asked { job, params, .. } = asked;
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
        let candidate = job.admit(id, &submission).map_err(refuse)?;
        match candidate.source.language.unfit_for(self.agenda.plan.device()) {
            Some(why) => Err(Refusal::new(Code::InvalidParams, why)),
            None => Ok(candidate),
        }
    }

    /// Adds a recorded submission to the plan, and offers it to the core. The client is answered when the candidate is in
    /// the database.
    fn admit(&mut self, asked: Asked, candidate: CandidatePlan) -> Result<(), RunError> {
        let (id, name) = (candidate.id, candidate.name.clone());
        let row = candidate_row(&self.agenda.plan, &candidate);
        self.records.writer.write(move |store| store.candidate(&row));
        self.agenda.plan.jobs[asked.job].candidates.push(candidate);
        self.agenda.candidate_facts.push(CandidateFacts::default());
        let answer = self.offer(id)?;
        let Some(Answer::Done(_)) = answer else {
            // `may_offer` covers everything for which the core refuses an offer, so this is a bug.
            return Err(RunError::Law { law: format!("{id} was refused: {answer:?}") });
        };
        let full_name = self.agenda.full_name(id);
        let reply: Reply = Ok(json!({ "outcome": "done", "candidate": full_name, "name": name, "id": id }));
        let token = asked.token;
        self.records.writer.write_then(move |_| Ok(FollowUp::Reply(token.clone(), reply.clone())));
        Ok(())
    }
}

/// Adds a candidate to the plan of a separate run.
pub fn alone(plan: &mut Plan, job: usize, submission: &Submission) -> Result<CandidateId, SubmissionError> {
    let id = CandidateId(u32::try_from(plan.candidates().count()).unwrap_or(u32::MAX));
    let candidate = plan.jobs[job].admit(id, submission)?;
    if let Some(why) = candidate.source.language.unfit_for(plan.device()) {
        return Err(SubmissionError::Unfit { why });
    }
    plan.jobs[job].candidates.push(candidate);
    Ok(id)
}
