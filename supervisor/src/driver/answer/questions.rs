//! Looks up rows of the run's database for the requests whose answers need them. The thread that writes the
//! database looks them up after all earlier writes, and the answer is sent when the rows arrive.

use opt_shared::ids::{CandidateId, WorkerId};

use super::View;
use crate::control::Reply;
use crate::record::{CandidateRecord, PolicyRecord, WorkerRecord};
use crate::store::{Store, StoreError};

/// The largest number of decisions in an answer to `why`.
const LATEST: u32 = 5;
/// The largest number of decisions in an answer to `decisions`.
const MAX_DECISIONS: u32 = 100;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Question {
    Result(CandidateId),
    WhyWorker(WorkerId),
    WhyCandidate(CandidateId),
    /// The latest decisions, at most this many.
    Decisions(u32),
}

#[derive(Default)]
pub(crate) struct Found {
    /// The decisions. For `why`, the newest is first. For a list of decisions, the oldest is first.
    pub(crate) decisions: Vec<PolicyRecord>,
    pub(crate) worker: Option<WorkerRecord>,
    pub(crate) candidate: Option<Box<CandidateRecord>>,
}

impl Question {
    pub(crate) fn look_up(self, store: &Store) -> Result<Found, StoreError> {
        let candidate = |id| store.record_of(id).map(|record| record.map(Box::new));
        Ok(match self {
            Self::Result(id) => Found { candidate: candidate(id)?, ..Found::default() },
            Self::WhyWorker(id) => Found {
                decisions: store.latest_about_worker(id, LATEST)?,
                worker: store.worker_record(id)?,
                candidate: None,
            },
            Self::WhyCandidate(id) => Found {
                decisions: store.latest_about_candidate(id, LATEST)?,
                worker: None,
                candidate: candidate(id)?,
            },
            Self::Decisions(most) => {
                Found { decisions: store.latest_decisions(most.min(MAX_DECISIONS))?, ..Found::default() }
            }
        })
    }
}

impl View<'_> {
    pub(crate) fn answer(&self, question: Question, found: Found) -> Reply {
        match question {
            Question::Result(id) => Ok(self.result(id, found.candidate)),
            Question::WhyWorker(id) => self.why_worker(id, &found),
            Question::WhyCandidate(id) => Ok(self.why_candidate(id, found)),
            Question::Decisions(_) => Ok(self.decisions_of(&found.decisions)),
        }
    }
}
