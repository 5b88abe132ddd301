//! From where the core's units come, and to whom it is told what became of them.
//!
//! The core knows units by number. Each is of one source: the candidates of the plan with those that users submit, or
//! its replays. A search is one more.

use std::time::Duration;

use opt_shared::ids::{CandidateId, JobId, LeaseId, UnitId, WorkerId};
use opt_shared::message::Task;
use opt_shared::outcome::{Blame, Status};
use opt_shared::units::Bytes;

use super::Run;
use super::agenda::Agenda;
use super::candidates::Candidates;
use super::replay::Replays;
use crate::core::event::{Event, Offer, Order, PhaseRow, PolicyRow};
use crate::core::spec::UnitSpec;
use crate::driver::RunError;
use crate::driver::survey::spec::replay_of_job;
use crate::plan::Plan;
use crate::store::AttemptEnd;

/// Has units for the core, and records what comes of them. `place` is a unit's among those of its source.
pub(crate) trait Source {
    /// What its units are called in the numbers of a decision.
    fn field(&self) -> &'static str;

    fn name(&self, agenda: &Agenda<'_>, place: usize) -> String;

    /// A job has room for so many. What there is of them, and whether there may be more later.
    fn wanted(
        &self,
        run: &mut Run<'_>,
        job: JobId,
        capacity: u32,
    ) -> Result<(Vec<UnitSpec>, Offer), RunError>;

    /// An attempt begins: it is on record before its task is made, with its number.
    fn begin(&self, run: &mut Run<'_>, place: usize, grant: &Grant) -> Result<(u32, Option<Task>), RunError>;

    fn attempt_ended(
        &self,
        run: &mut Run<'_>,
        place: usize,
        attempt: &EndedAttempt,
        end: AttemptEnd,
    ) -> Result<(), RunError>;

    fn phase_ended(&self, run: &mut Run<'_>, place: usize, row: &PhaseRow) -> Result<(), RunError>;

    /// Nothing more will be done for it.
    fn done(&self, run: &mut Run<'_>, place: usize, end: UnitEnd) -> Result<(), RunError>;
}

/// What the core grants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) worker: WorkerId,
    pub(crate) lease: LeaseId,
    pub(crate) order: Order,
    pub(crate) attempt: u32,
    pub(crate) reserved: Bytes,
    /// Entries share a runner, or are timed together, up to this.
    pub(crate) batch: Option<Bytes>,
    /// What it may take, where it is timed.
    pub(crate) share: Duration,
}

/// An attempt as it is known when it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedAttempt {
    pub(crate) order: Order,
    /// As it is on record.
    pub(crate) number: u32,
    pub(crate) took: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct UnitEnd {
    pub(crate) status: Status,
    pub(crate) blame: Option<Blame>,
    pub(crate) detail: String,
}

/// Whose a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Candidate(CandidateId),
    /// Found by its position in the plan.
    Replay(usize),
}

impl Subject {
    pub(crate) fn source(self) -> (&'static dyn Source, usize) {
        match self {
            Self::Candidate(id) => (&Candidates, id.index()),
            Self::Replay(place) => (&Replays, place),
        }
    }
}

/// What the core's units are: the only place where their numbers are given.
#[derive(Debug, Default)]
pub(crate) struct Units {
    subjects: Vec<Subject>,
    /// The offer of each candidate that has been offered.
    candidates: Vec<Option<UnitId>>,
}

impl Units {
    /// A number for what is offered next.
    pub(crate) fn enrol(&mut self, subject: Subject) -> UnitId {
        let id = UnitId(u32::try_from(self.subjects.len()).unwrap_or(u32::MAX));
        self.subjects.push(subject);
        if let Subject::Candidate(candidate) = subject {
            if self.candidates.len() <= candidate.index() {
                self.candidates.resize(candidate.index() + 1, None);
            }
            self.candidates[candidate.index()] = Some(id);
        }
        id
    }

    pub(crate) fn subject(&self, unit: UnitId) -> Option<Subject> {
        self.subjects.get(unit.index()).copied()
    }

    pub(crate) fn of_candidate(&self, id: CandidateId) -> Option<UnitId> {
        self.candidates.get(id.index()).copied().flatten()
    }

    pub(crate) fn of_replay(&self, place: usize) -> Option<UnitId> {
        let at = self.subjects.iter().rposition(|subject| *subject == Subject::Replay(place))?;
        u32::try_from(at).ok().map(UnitId)
    }

    pub(crate) fn candidate(&self, unit: UnitId) -> Option<CandidateId> {
        match self.subject(unit)? {
            Subject::Candidate(id) => Some(id),
            Subject::Replay(_) => None,
        }
    }

    /// A decision as it is recorded: with the numbers that its units have in the plan.
    pub(super) fn in_the_plans_numbers(&self, row: &PolicyRow) -> PolicyRow {
        let number = |&(field, number): &(&'static str, u64)| {
            let unit = u32::try_from(number).ok().filter(|_| field == "unit").map(UnitId);
            let subject = unit.and_then(|unit| self.subject(unit)).map(Subject::source);
            subject.map_or((field, number), |(source, place)| (source.field(), place as u64))
        };
        PolicyRow { numbers: row.numbers.iter().map(number).collect(), ..row.clone() }
    }
}

/// Which source has units for a job.
fn source_of(plan: &Plan, job: JobId) -> &'static dyn Source {
    if replay_of_job(plan, job).is_some() { &Replays } else { &Candidates }
}

impl Run<'_> {
    /// The core has room for more of a job: its source is asked, and answers at once.
    pub(super) fn wanted(&mut self, job: JobId, capacity: u32) -> Result<(), RunError> {
        let (units, by) = source_of(&self.agenda.plan, job).wanted(self, job, capacity)?;
        self.decisions.raise(Event::Offered { job, units, by });
        Ok(())
    }

    pub(super) fn source_of(&self, unit: UnitId) -> Result<(&'static dyn Source, usize), RunError> {
        let subject = self.agenda.units.subject(unit);
        let unknown = || RunError::Law { law: format!("nobody has offered {unit}") };
        subject.map(Subject::source).ok_or_else(unknown)
    }
}
