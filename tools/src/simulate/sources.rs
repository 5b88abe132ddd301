//! The sources of the simulated machine. Some offer all their units at once, and others a few at a time. Some withdraw
//! units, make invalid offers, or never answer.

use std::collections::VecDeque;
use std::time::Duration;

use opt_shared::ids::{JobId, UnitId};
use opt_supervisor::core::event::{Event, Moment, Offer};
use opt_supervisor::core::spec::UnitSpec;
use opt_supervisor::core::testkit::plan::Plan;

use super::plan::sample_candidate;
use super::tape::Tape;

/// A delay that is longer than the core waits for any source.
const TOO_LATE: Duration = Duration::from_secs(700);

pub(crate) struct Sources {
    plan: Plan,
    /// The units that each job's source has not offered yet.
    stock: Vec<VecDeque<UnitId>>,
}

impl Sources {
    pub(crate) fn new(plan: Plan) -> Self {
        let stock = plan.jobs.iter().map(|job| job.candidates.iter().copied().collect()).collect();
        Self { plan, stock }
    }

    /// Chooses how a source answers a request for units. Returns the name of this kind of answer, and the events of the
    /// answer with their delays. Units get their final ids when their offer reaches the core.
    pub(crate) fn wanted(
        &mut self,
        job: JobId,
        capacity: u32,
        tape: &mut Tape,
    ) -> (&'static str, Vec<(Moment, Event)>) {
        let of_job = &self.plan.jobs[job.index()];
        let is_replay = !of_job.after.is_empty();
        let (kind, after, count) = match tape.byte() % 16 {
            // The source of a replay has a single unit, so it cannot offer some of its units.
            11 | 12 if !is_replay => {
                ("offered_some", tape.soon(), usize::from(tape.byte()) % capacity.max(1) as usize)
            }
            13 => ("offered_late", TOO_LATE, usize::MAX),
            14 => return ("never_offered", Vec::new()),
            15 => ("offered_none", tape.soon(), 0),
            _ => ("offered_all", Duration::ZERO, usize::MAX),
        };
        let stock = &mut self.stock[job.index()];
        let ids: Vec<UnitId> = stock.drain(..count.min(stock.len())).collect();
        // In rare cases, a source announces more units although it has no more.
        let more = !stock.is_empty() || kind != "offered_all" && tape.seldom();
        let unit = |id: &UnitId| {
            let candidate = &self.plan.candidates[id.index()];
            let is_baseline = of_job.baseline == Some(*id);
            let contest = of_job.contest && !is_baseline;
            UnitSpec { is_baseline, ..self.plan.unit(*id, candidate, of_job.timed, contest) }
        };
        let units = ids.iter().map(unit).collect();
        let mut events = vec![(after, Event::Offered { job, units, by: Offer::Asked { more } })];
        if tape.seldom() {
            let unit = UnitId(u32::from(tape.byte() % 8));
            events.push((after + tape.soon(), Event::Withdrawn { unit }));
        }
        (kind, events)
    }
}

/// Returns a candidate that is offered for a job without a request. Some of these offers are malformed.
pub(crate) fn random_submission(job: JobId, tape: &mut Tape) -> Event {
    let plan = Plan { jobs: Vec::new(), ..opt_supervisor::core::testkit::plan::nothing() };
    let mut unit = plan.unit(UnitId(0), &sample_candidate(), true, tape.seldom());
    if tape.seldom() {
        unit.route = [].into();
    }
    Event::Offered { job, units: vec![unit], by: Offer::Unasked }
}

/// Gives the units of an offer the next free ids. `accepted` is the number of units that the core has accepted so far,
/// which is also the first free id.
pub(crate) fn with_next_ids(mut event: Event, accepted: usize) -> Event {
    if let Event::Offered { units, .. } = &mut event {
        for (unit, id) in units.iter_mut().zip(accepted..) {
            unit.id = UnitId(u32::try_from(id).unwrap_or(u32::MAX));
        }
    }
    event
}
