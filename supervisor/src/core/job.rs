//! Decides which unit of a job comes next. In each turn, units at the earliest stage come first, the baseline before
//! the others.
//!
//! `supply` decides when a job's source is asked for more units.

use std::time::Duration;

use opt_shared::ids::UnitId;

use super::contest::Contest;
use super::event::{Order, Stage};
use super::ledger::Limits;
use super::roster::Roster;
use super::supply::Supply;
use super::unit::{Progress, Unit};

#[derive(Clone, Debug, Default)]
pub(crate) struct Job {
    /// The job's units. The baseline comes first, then the others in the order in which they were offered.
    pub(crate) units: Vec<UnitId>,
    pub(crate) baseline: Option<UnitId>,
    pub(crate) supply: Supply,
    pub(crate) done: bool,
    /// The time that the job's timed steps have taken so far.
    pub(crate) timed: Duration,
    pub(crate) roster: Roster,
    pub(crate) fitting: Fitting,
}

/// Records which units `refuse_units_that_never_fit` has checked, and under which limits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fitting {
    /// The limits under which units were last checked.
    pub(crate) under: Option<Limits>,
    /// The units that were added since that check.
    pub(crate) unseen: Vec<UnitId>,
}

impl Job {
    pub(crate) fn add(&mut self, unit: &Unit) {
        let id = unit.spec.id;
        if unit.spec.is_baseline && self.baseline.is_none() {
            self.baseline = Some(id);
            self.units.insert(0, id);
            // The other units may now be timed beside the baseline, which changes what their steps reserve.
            self.fitting.under = None;
        } else {
            self.units.push(id);
        }
        self.fitting.unseen.push(id);
        self.roster.enter(unit);
        self.done = false;
    }

    pub(crate) fn is_exhausted(&self) -> bool {
        self.supply == Supply::Exhausted && self.roster.open_count() == 0
    }

    /// Returns whether the job has a baseline that this unit may be timed beside.
    pub(crate) fn is_beside_a_baseline(&self, id: UnitId) -> bool {
        self.baseline.is_some_and(|baseline| baseline != id)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Order {
        order: Order,
        attempt: u32,
    },
    /// A running step must end first.
    Wait,
    /// The remaining units need no more timing, so they end with the times that they have.
    Settle,
    /// Nothing can be served now, but more may follow: units were put off or held back, wait for another turn, or may
    /// still be offered.
    Later,
    /// All units have ended, and no more can come.
    Done,
}

/// Returns what a job's units need next. The waiting units at the earliest stage come first. Several units can be
/// served at the same time if there are workers for them. Units that must run alone are served one by one, the fastest
/// first. If units come in turns, `turn` is the current turn. If `holds_builds` is set, builds wait. Steps that are
/// timed beside the baseline wait while the baseline's build waits, or while the baseline is put off.
pub(crate) fn next(job: &Job, units: &[Unit], turn: Option<u32>, holds_builds: bool) -> Next {
    let roster = &job.roster;
    if roster.has_running_exclusive() {
        return Next::Wait;
    }
    let contest = Contest::of(roster);
    let (mut parked, mut put_off) = (false, roster.put_off(turn).next().is_some());
    let is_held = |unit: &Unit| holds_builds && !unit.is_done() && unit.step().stage == Stage::Build;
    let baseline_waits = job.baseline.is_some_and(|id| {
        let baseline = &units[id.index()];
        baseline.is_put_off() || is_held(baseline)
    });
    let mut waiting = roster.waiting(turn).filter_map(|id| {
        let unit = &units[id.index()];
        let Progress::Waiting { attempt } = unit.progress else { return None };
        if is_held(unit) || baseline_waits && unit.step().paired.is_some() {
            // A unit timed beside the baseline waits for the baseline, too.
            put_off = true;
            return None;
        }
        if !contest.includes(unit) {
            parked = true;
            return None;
        }
        Some((unit, attempt))
    });
    let Some((unit, attempt)) = waiting.next() else {
        drop(waiting);
        let later = job.supply != Supply::Exhausted || roster.has_waiting_in_other_turns(turn);
        return if roster.has_running() {
            Next::Wait
        } else if parked && !put_off {
            // Parked candidates do not end while units are put off, because the outcome of those units may still change
            // which candidates are parked.
            Next::Settle
        } else if later || put_off {
            Next::Later
        } else {
            Next::Done
        };
    };
    let (id, step) = (unit.spec.id, unit.step());
    if roster.has_running() && step.exclusive {
        return Next::Wait;
    }
    let beside = job
        .baseline
        .filter(|&baseline| step.paired.is_some() && baseline != id && units[baseline.index()].may_be_paired);
    Next::Order { order: Order { unit: id, stage: step.stage, beside }, attempt }
}
