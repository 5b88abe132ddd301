//! Asks the sources of units for more, and accepts or refuses the units that they offer. A job's source is asked when
//! the job runs short of units. It may also offer units unasked.
//!
//! ```text
//!           short of units                     offered, nothing more to come; or its timeout is over
//!   Open ───────────────────▶ Asked ─────────────────────────────────────────────▶ Exhausted
//!     ▲                         │ offered some, and it may be asked again           │
//!     └─────────────────────────┴───────────────────────────────────────────────────┘
//! ```
//! A job ends when its units are done and its source is exhausted. Unasked offers are accepted in any state of the
//! source, until the run is ending or a job that comes after this one has begun. They are refused if the job's captures
//! cannot be used.

use std::time::Duration;

use opt_shared::formula::SUPERVISOR_PER_ITEM;
use opt_shared::ids::{JobId, UnitId};
use opt_shared::outcome::{Blame, Status};

use super::event::{Action, Answer, Moment, Offer};
use super::spec::UnitSpec;
use super::unit::{Progress, Unit};
use super::{Core, Ending};

/// How long a job stays open for a source that was asked but has offered no units. The source may still offer units
/// afterwards.
pub(super) const SOURCE_TIMEOUT: Duration = Duration::from_secs(600);
/// When a job runs short of units, its source is asked for so many that the job then has this many open units per
/// verifier.
const AHEAD: u32 = 2;
/// The reason that is recorded for a unit that its source takes back.
const WITHDRAWN: &str = "withdrawn by its source";

/// The state of a job's source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Supply {
    /// The source may have more units.
    #[default]
    Open,
    Asked {
        since: Moment,
    },
    /// The source has no more units, or it offered none in time.
    Exhausted,
}

impl Core {
    pub(super) fn ask_sources(&mut self, now: Moment) {
        for index in 0..self.jobs.len() {
            if let Some(capacity) = self.capacity(index) {
                self.jobs[index].supply = Supply::Asked { since: now };
                self.actions.push(Action::Wanted { job: self.spec.jobs[index].id, capacity });
            }
        }
    }

    /// Returns how many units to request from a job's source, or `None` if the source should not be asked now.
    fn capacity(&self, index: usize) -> Option<u32> {
        let job = &self.jobs[index];
        if job.done || job.supply != Supply::Open || !self.predecessors_have_ended(index) {
            return None;
        }
        let open = u32::try_from(job.roster.open_count()).ok()?;
        let enough = self.spec.verifiers.max(1);
        (open < enough).then(|| enough.saturating_mul(AHEAD) - open)
    }

    fn predecessors_have_ended(&self, index: usize) -> bool {
        let after = &self.spec.jobs[index].after;
        let is_done = |job: &JobId| self.jobs.get(job.index()).is_none_or(|job| job.done);
        after.is_empty() || !self.stays_open() && after.iter().all(is_done)
    }

    /// Checks whether a source may offer units that the core did not ask for. If it may not, the error says why.
    pub fn may_offer(&self, job: JobId) -> Result<(), Answer> {
        let Some(spec) = self.spec.jobs.get(job.index()) else {
            return Err(Answer::Unknown(format!("there is no {job}")));
        };
        if self.ending != Ending::No {
            return Err(Answer::Refused("the run is ending".to_owned()));
        }
        if let Some(broken) = &spec.broken {
            return Err(Answer::Refused(format!("the captures of the job cannot be used: {broken}")));
        }
        let begun = |(spec, it): (&super::spec::JobSpec, &super::job::Job)| {
            spec.after.contains(&job) && it.supply != Supply::Open
        };
        if self.spec.jobs.iter().zip(&self.jobs).any(begun) {
            let why = "the jobs have ended and their replays have begun; start another run";
            return Err(Answer::Refused(why.to_owned()));
        }
        Ok(())
    }

    pub(super) fn offered(&mut self, job: JobId, units: Vec<UnitSpec>, by: Offer) -> Answer {
        let permission = match by {
            Offer::Unasked => self.may_offer(job),
            Offer::Asked { .. } if self.jobs.get(job.index()).is_none() => {
                Err(Answer::Unknown(format!("there is no {job}")))
            }
            Offer::Asked { .. } if self.ending != Ending::No => {
                Err(Answer::Refused("the run is ending".to_owned()))
            }
            Offer::Asked { .. } => Ok(()),
        };
        if let Err(refusal) = permission {
            return refusal;
        }
        if let Some(wrong) = self.first_invalid_unit(&units) {
            return Answer::Unknown(wrong);
        }
        let it = &mut self.jobs[job.index()];
        let is_first = it.units.is_empty();
        match by {
            Offer::Asked { more: false } => it.supply = Supply::Exhausted,
            // The source has nothing yet. It is not asked again, and its timeout continues.
            Offer::Asked { more: true } if units.is_empty() => {}
            Offer::Asked { more: true } => it.supply = Supply::Open,
            Offer::Unasked => {}
        }
        // The first units that a source offers when it is asked join the turn that is being served. All other units
        // join a later turn, so that they do not delay the current one.
        let served = self.turn_served();
        let turn = match by {
            Offer::Asked { .. } if is_first => served.unwrap_or(self.last_turn),
            Offer::Asked { .. } | Offer::Unasked => {
                self.ledger.raise_supervisor(SUPERVISOR_PER_ITEM.saturating_mul(units.len() as u64));
                served.unwrap_or(self.last_turn) + 1
            }
        };
        self.last_turn = self.last_turn.max(turn);
        let count = units.len();
        if 1 < count {
            // A plan offers all its candidates at once, so spare capacity would be wasted.
            self.units.reserve_exact(count);
        }
        for spec in units {
            if by == Offer::Unasked {
                let numbers = vec![
                    ("unit", u64::from(spec.id.0)),
                    ("job", u64::from(job.0)),
                    ("turn", u64::from(turn)),
                ];
                self.policy("submit", "by the user: accepted".to_owned(), numbers);
            }
            let unit = Unit::new(spec, job, turn);
            self.jobs[job.index()].add(&unit);
            self.units.push(unit);
        }
        Answer::Done(if count == 1 { "accepted".to_owned() } else { format!("{count} accepted") })
    }

    /// Returns what is wrong with the first unit that cannot be accepted. `None` if all units can be accepted.
    fn first_invalid_unit(&self, units: &[UnitSpec]) -> Option<String> {
        units.iter().zip(self.units.len()..).find_map(|(unit, next)| {
            if unit.id.index() != next {
                Some(format!(
                    "{} was offered, but the next free id is {}",
                    unit.id,
                    UnitId(u32::try_from(next).unwrap_or(u32::MAX))
                ))
            } else if !unit.is_well_formed() {
                Some(format!("{} has no steps, steps in a wrong order, or a step without ways", unit.id))
            } else {
                None
            }
        })
    }

    /// Ends a waiting unit that its source takes back. A unit that is running or has ended stays as it is.
    pub(super) fn withdrawn(&mut self, id: UnitId) -> Answer {
        let Some(unit) = self.units.get(id.index()) else {
            return Answer::Unknown(format!("there is no {id}"));
        };
        match unit.progress {
            Progress::Waiting { .. } => {
                self.policy("withdraw", WITHDRAWN.to_owned(), vec![("unit", u64::from(id.0))]);
                self.unit_done(id, Status::Skipped, Some(Blame::Plan), WITHDRAWN.to_owned());
                Answer::Done(format!("{id} is withdrawn"))
            }
            Progress::Running { .. } => Answer::Already(format!("{id} is already running")),
            Progress::Done(_) => Answer::Already(format!("{id} has ended")),
        }
    }

    /// Returns the earliest turn with an unfinished unit, or `None` if all units are done or there is only one turn.
    /// Units that are offered later join later turns, so a user who keeps submitting units cannot delay earlier ones.
    pub(super) fn turn_served(&self) -> Option<u32> {
        if self.last_turn == 0 {
            return None;
        }
        self.jobs.iter().filter_map(|job| job.roster.first_open_turn()).min()
    }

    /// Returns, for each source that was asked, the time at which it times out.
    pub(super) fn source_deadlines(&self) -> impl Iterator<Item = Moment> {
        self.jobs.iter().filter_map(|job| match job.supply {
            Supply::Asked { since } => Some(since + SOURCE_TIMEOUT),
            Supply::Open | Supply::Exhausted => None,
        })
    }

    pub(super) fn sources_overdue(&mut self, now: Moment) {
        if self.ending != Ending::No {
            return;
        }
        for index in 0..self.jobs.len() {
            let Supply::Asked { since } = self.jobs[index].supply else { continue };
            if since + SOURCE_TIMEOUT <= now {
                self.jobs[index].supply = Supply::Exhausted;
                let text =
                    format!("the job's source was asked {SOURCE_TIMEOUT:?} ago and has offered no units");
                self.policy("source_silent", text, vec![("job", u64::from(self.spec.jobs[index].id.0))]);
            }
        }
    }
}
