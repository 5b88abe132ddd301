//! Checks the laws between the core and its sources, using only events and actions.

use std::collections::{BTreeMap, BTreeSet};

use opt_shared::ids::{JobId, UnitId};
use opt_supervisor::core::event::{Answer, Event, Offer};
use opt_supervisor::core::spec::{Resumed, RunSpec, UnitSpec};

/// An offer or a withdrawal to which the core has not replied yet.
#[derive(Debug)]
enum Expected {
    Offered(JobId, Vec<UnitSpec>, Offer),
    Withdrawn(UnitId),
}

#[derive(Debug, Default)]
pub(crate) struct SupplyLaws {
    expected: Option<Expected>,
    /// The units that the core has accepted, indexed by id.
    pub(crate) units: Vec<(JobId, UnitSpec)>,
    withdrawn: BTreeSet<UnitId>,
    /// The jobs whose source has been asked for units and has not answered yet.
    asked: BTreeSet<JobId>,
    /// The jobs whose source has no more units.
    dry: BTreeSet<JobId>,
    /// The jobs that have ended. A job that gets more units is removed from this set.
    over: BTreeSet<JobId>,
    pub(crate) done: BTreeMap<UnitId, opt_shared::outcome::Status>,
}

impl SupplyLaws {
    pub(crate) fn observe(&mut self, event: &Event) {
        self.expected = match event {
            Event::Offered { job, units, by } => Some(Expected::Offered(*job, units.clone(), *by)),
            Event::Withdrawn { unit } => Some(Expected::Withdrawn(*unit)),
            _ => return,
        };
    }

    pub(crate) fn replied(&mut self, answer: &Answer) -> Result<(), String> {
        let Some(expected) = self.expected.take() else { return Err("an unexpected reply".to_owned()) };
        if !matches!(answer, Answer::Done(_)) {
            return Ok(());
        }
        match expected {
            Expected::Offered(job, units, by) => self.accepted(job, units, by)?,
            Expected::Withdrawn(unit) if self.done.contains_key(&unit) => {
                self.withdrawn.insert(unit);
            }
            Expected::Withdrawn(unit) => return Err(format!("{unit} was withdrawn and has not ended")),
        }
        Ok(())
    }

    fn accepted(&mut self, job: JobId, units: Vec<UnitSpec>, by: Offer) -> Result<(), String> {
        match by {
            Offer::Asked { more: false } => {
                self.asked.remove(&job);
                self.dry.insert(job);
            }
            Offer::Asked { more: true } if !units.is_empty() => {
                self.asked.remove(&job);
                self.dry.remove(&job);
            }
            Offer::Asked { more: true } | Offer::Unasked => {}
        }
        for unit in units {
            if unit.id.index() != self.units.len() || unit.route.is_empty() {
                return Err(format!("{unit:?} is accepted, but is not a valid unit"));
            }
            if let Some(&Resumed::Ended { status, .. }) = unit.resumed.as_deref() {
                self.done.insert(unit.id, status);
            }
            self.units.push((job, unit));
            self.over.remove(&job);
        }
        Ok(())
    }

    pub(crate) fn wanted(&mut self, spec: &RunSpec, job: JobId, capacity: u32) -> Result<(), String> {
        let after = &spec.jobs[job.index()].after;
        if let Some(earlier) = after.iter().find(|job| !self.over.contains(job)) {
            return Err(format!("units are requested of {job}, and {earlier} has not ended"));
        }
        if capacity == 0 || self.dry.contains(&job) || !self.asked.insert(job) {
            return Err(format!("{job} is asked for {capacity}: {self:?}"));
        }
        Ok(())
    }

    /// Records that the core no longer waits for a source.
    pub(crate) fn silent(&mut self, job: Option<u64>) {
        self.asked.retain(|asked| Some(u64::from(asked.0)) != job);
        self.dry.extend(job.and_then(|job| u32::try_from(job).ok()).map(JobId));
    }

    pub(crate) fn job_done(&mut self, job: JobId) -> Result<(), String> {
        if let Some((_, unit)) =
            self.units.iter().find(|(of, unit)| *of == job && !self.done.contains_key(&unit.id))
        {
            return Err(format!("{job} has ended, and {} has not", unit.id));
        }
        if !self.dry.contains(&job) || self.asked.contains(&job) {
            return Err(format!("{job} has ended, and its source may have more units"));
        }
        if !self.over.insert(job) {
            return Err(format!("{job} ends twice"));
        }
        Ok(())
    }

    pub(crate) fn may_start(&self, id: UnitId) -> Result<&(JobId, UnitSpec), &'static str> {
        match self.units.get(id.index()) {
            None => Err("it was never accepted"),
            _ if self.expected.is_some() => Err("an offer has no answer"),
            _ if self.withdrawn.contains(&id) => Err("it was withdrawn"),
            _ if self.done.contains_key(&id) => Err("it is done"),
            Some(unit) => Ok(unit),
        }
    }

    pub(crate) fn everything_is_done(&self, spec: &RunSpec) -> Result<(), String> {
        if self.done.len() == self.units.len() && self.over.len() == spec.jobs.len() {
            Ok(())
        } else {
            Err(format!("finished, and only {:?} and {:?} are done", self.done, self.over))
        }
    }
}
