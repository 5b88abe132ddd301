//! Defines sources, which supply the core with units of work and receive the results of these units.
//!
//! The core identifies units by number. Each unit belongs to one of two sources: the candidates (of the plan, or
//! submitted by users) or the replays.

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

/// Supplies units to the core and records their results. `index` is a unit's index in its source.
pub(crate) trait Source {
    /// Returns the name of the field that identifies a unit of this source in a recorded decision. The field contains
    /// the unit's index.
    fn field(&self) -> &'static str;

    fn name(&self, agenda: &Agenda<'_>, index: usize) -> String;

    /// Returns units of a job, and whether more may follow. It is called when the core can take `capacity` further
    /// units.
    fn wanted(
        &self,
        run: &mut Run<'_>,
        job: JobId,
        capacity: u32,
    ) -> Result<(Vec<UnitSpec>, Offer), RunError>;

    /// Begins an attempt: writes its row, and creates its task. Returns the attempt's number and the task, or no task
    /// if something that the task needs is missing.
    fn begin(&self, run: &mut Run<'_>, index: usize, grant: &Grant) -> Result<(u32, Option<Task>), RunError>;

    fn attempt_ended(
        &self,
        run: &mut Run<'_>,
        index: usize,
        attempt: &EndedAttempt,
        end: AttemptEnd,
    ) -> Result<(), RunError>;

    fn phase_ended(&self, run: &mut Run<'_>, index: usize, row: &PhaseRow) -> Result<(), RunError>;

    fn done(&self, run: &mut Run<'_>, index: usize, end: UnitEnd) -> Result<(), RunError>;
}

/// A lease that the core has granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) worker: WorkerId,
    pub(crate) lease: LeaseId,
    pub(crate) order: Order,
    pub(crate) attempt: u32,
    pub(crate) reserved: Bytes,
    /// The memory for the largest batch of entries that share a runner or are timed together. For a build, the memory
    /// for the compiler.
    pub(crate) batch: Option<Bytes>,
    /// The most memory that the worker may allocate on its device.
    pub(crate) device_cap: Bytes,
    /// How long the timed step may take.
    pub(crate) share: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedAttempt {
    pub(crate) order: Order,
    /// The number under which the attempt is recorded.
    pub(crate) number: u32,
    pub(crate) took: Duration,
}

/// The result of a unit, as its source receives it.
#[derive(Clone, Debug)]
pub(crate) struct UnitEnd {
    pub(crate) status: Status,
    pub(crate) blame: Option<Blame>,
    pub(crate) detail: String,
}

/// What a unit stands for: a candidate or a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Candidate(CandidateId),
    /// A replay, by its index in the plan.
    Replay(u32),
}

impl Subject {
    pub(crate) fn source(self) -> (&'static dyn Source, usize) {
        match self {
            Self::Candidate(id) => (&Candidates, id.index()),
            Self::Replay(index) => (&Replays, index as usize),
        }
    }
}

/// Assigns the core's unit numbers, and maps them to candidates and replays.
#[derive(Debug, Default)]
pub(crate) struct Units {
    subjects: Vec<Subject>,
    /// The unit of each candidate that has been offered. The index is the candidate's id.
    candidates: Vec<Option<UnitId>>,
}

impl Units {
    pub(crate) fn assign_number(&mut self, subject: Subject) -> UnitId {
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

    pub(crate) fn of_replay(&self, index: usize) -> Option<UnitId> {
        let wanted = Subject::Replay(u32::try_from(index).ok()?);
        let at = self.subjects.iter().rposition(|subject| *subject == wanted)?;
        u32::try_from(at).ok().map(UnitId)
    }

    pub(crate) fn candidate(&self, unit: UnitId) -> Option<CandidateId> {
        match self.subject(unit)? {
            Subject::Candidate(id) => Some(id),
            Subject::Replay(_) => None,
        }
    }

    /// Replaces the core's unit numbers in a row by the numbers that candidates and replays have in the plan. The row
    /// is recorded in this form.
    pub(super) fn with_plan_numbers(&self, row: &PolicyRow) -> PolicyRow {
        let number = |&(field, number): &(&'static str, u64)| {
            let unit = u32::try_from(number).ok().filter(|_| field == "unit").map(UnitId);
            let subject = unit.and_then(|unit| self.subject(unit)).map(Subject::source);
            subject.map_or((field, number), |(source, index)| (source.field(), index as u64))
        };
        PolicyRow { numbers: row.numbers.iter().map(number).collect(), ..row.clone() }
    }
}

/// Returns the source that has units for a job.
fn source_of(plan: &Plan, job: JobId) -> &'static dyn Source {
    if replay_of_job(plan, job).is_some() { &Replays } else { &Candidates }
}

impl Run<'_> {
    /// Asks a job's source for units and passes them to the core.
    pub(super) fn wanted(&mut self, job: JobId, capacity: u32) -> Result<(), RunError> {
        let (units, by) = source_of(&self.agenda.plan, job).wanted(self, job, capacity)?;
        self.decisions.raise(Event::Offered { job, units, by });
        Ok(())
    }

    pub(super) fn source_of(&self, unit: UnitId) -> Result<(&'static dyn Source, usize), RunError> {
        let subject = self.agenda.units.subject(unit);
        let unknown = || RunError::Law { law: format!("{unit} was never offered") };
        subject.map(Subject::source).ok_or_else(unknown)
    }
}
