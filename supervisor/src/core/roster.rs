//! Keeps an index of a job's units by their progress, so that the time to handle an event hardly grows with the number
//! of units.
//!
//! `Core::change` updates the index whenever a unit changes. The index contains nothing that could not be computed from
//! the units. `check_rosters` computes it afresh and compares the two.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use opt_shared::ids::UnitId;
use opt_shared::outcome::Estimate;

use super::event::Stage;
use super::unit::{Progress, Unit};

/// The maximum relative half-width of the confidence interval of a candidate's speed-up, as measured by its profile,
/// for the candidate to be confirmed. If the interval is wider, the machine was so busy that a confirmation would not
/// tell candidates apart either, although it would take as long as the profile.
const MAX_HALF_WIDTH_TO_CONFIRM: f64 = 0.5;

/// Returns whether the interval of a speed-up is narrow enough for a confirmation.
pub(super) fn is_worth_confirming(speedup: &Estimate) -> bool {
    speedup.ci_high - speedup.ci_low <= 2.0 * MAX_HALF_WIDTH_TO_CONFIRM * speedup.value
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Roster {
    /// The waiting units, in the order in which they are served. Units that were put off are not included.
    waiting: BTreeSet<QueueKey>,
    /// The number of waiting units whose next step may run at the same time as other steps.
    waiting_non_exclusive: usize,
    /// The units that were put off, each with its turn.
    put_off: BTreeSet<(u32, UnitId)>,
    running: usize,
    /// The number of running units whose step must run alone.
    running_exclusive: usize,
    /// The number of units that have not ended, by turn.
    open: BTreeMap<u32, usize>,
    /// The number of units with a timed step left.
    to_time: usize,
    /// The number of units with a step left that must run alone.
    with_exclusive_steps: usize,
    /// The number of baselines that other units may be timed beside.
    baselines: usize,
    /// The speed-ups of those compared units (`Unit::is_compared`) that have ended or are worth confirming.
    speedups: BTreeSet<(Number, UnitId)>,
    /// The lower bounds of the speed-ups of all compared units.
    lower_bounds: BTreeSet<(Number, UnitId)>,
}

/// The key by which waiting units are ordered. The unit with the smallest key is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct QueueKey {
    turn: u32,
    stage: Stage,
    /// Units with a higher speed-up come first.
    speedup: Reverse<Number>,
    /// The baseline comes first, because false is less than true.
    is_candidate: bool,
    unit: UnitId,
}

/// A floating-point number that is compared by the total order of `f64::total_cmp`.
#[derive(Clone, Copy, Debug)]
struct Number(f64);

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Number {}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Number {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl QueueKey {
    fn of(unit: &Unit) -> Self {
        Self {
            turn: unit.turn,
            stage: served_with(unit),
            speedup: Reverse(Number(unit.speedup.map_or(0.0, |speedup| speedup.value))),
            is_candidate: !unit.spec.is_baseline,
            unit: unit.spec.id,
        }
    }
}

/// Returns the stage at which a unit is queued. The profile of a baseline is queued as a screening. The baseline is
/// therefore timed before the units that are compared with it, and its failure is known early.
fn served_with(unit: &Unit) -> Stage {
    match unit.step().stage {
        Stage::Profile if unit.spec.is_baseline => Stage::Screen,
        stage => stage,
    }
}

impl Roster {
    pub(crate) fn of<'u>(units: impl Iterator<Item = &'u Unit>) -> Self {
        let mut roster = Self::default();
        units.for_each(|unit| roster.enter(unit));
        roster
    }

    pub(crate) fn enter(&mut self, unit: &Unit) {
        let id = unit.spec.id;
        match unit.progress {
            Progress::Waiting { .. } if unit.is_put_off() => {
                self.put_off.insert((unit.turn, id));
            }
            Progress::Waiting { .. } => {
                self.waiting.insert(QueueKey::of(unit));
            }
            Progress::Running { .. } | Progress::Done(_) => {}
        }
        if let Some(speedup) = unit.speedup.filter(|_| unit.is_compared()) {
            // A unit that has ended remains in the list, even if its confirmation gave a wide interval.
            if unit.is_done() || is_worth_confirming(&speedup) {
                self.speedups.insert((Number(speedup.value), id));
            }
            self.lower_bounds.insert((Number(speedup.ci_low), id));
        }
        if !unit.is_done() {
            *self.open.entry(unit.turn).or_default() += 1;
        }
        self.count(unit, |counter| *counter += 1);
    }

    /// Removes a unit. Call it before the unit changes.
    pub(crate) fn leave(&mut self, unit: &Unit) {
        let id = unit.spec.id;
        match unit.progress {
            Progress::Waiting { .. } if unit.is_put_off() => {
                self.put_off.remove(&(unit.turn, id));
            }
            Progress::Waiting { .. } => {
                self.waiting.remove(&QueueKey::of(unit));
            }
            Progress::Running { .. } | Progress::Done(_) => {}
        }
        if let Some(speedup) = unit.speedup.filter(|_| unit.is_compared()) {
            self.speedups.remove(&(Number(speedup.value), id));
            self.lower_bounds.remove(&(Number(speedup.ci_low), id));
        }
        if !unit.is_done()
            && let Some(open) = self.open.get_mut(&unit.turn)
        {
            *open -= 1;
            if *open == 0 {
                self.open.remove(&unit.turn);
            }
        }
        self.count(unit, |counter| *counter -= 1);
    }

    /// Calls `adjust` with each counter in which the unit is included.
    fn count(&mut self, unit: &Unit, adjust: impl Fn(&mut usize)) {
        let waits = matches!(unit.progress, Progress::Waiting { .. });
        let steps_left = unit.steps_left();
        for (applies, counter) in [
            (waits && !unit.step().exclusive, &mut self.waiting_non_exclusive),
            (unit.is_running(), &mut self.running),
            (unit.is_running() && unit.step().exclusive, &mut self.running_exclusive),
            (steps_left.iter().any(|step| step.stage.is_timed()), &mut self.to_time),
            (steps_left.iter().any(|step| step.exclusive), &mut self.with_exclusive_steps),
            (unit.spec.is_baseline && unit.may_be_paired, &mut self.baselines),
        ] {
            if applies {
                adjust(counter);
            }
        }
    }

    pub(crate) fn waiting(&self, turn: Option<u32>) -> impl Iterator<Item = UnitId> {
        self.waiting
            .iter()
            .skip_while(move |it| turn.is_some_and(|turn| it.turn < turn))
            .take_while(move |it| turn.is_none_or(|turn| it.turn == turn))
            .map(|it| it.unit)
    }

    pub(crate) fn put_off(&self, turn: Option<u32>) -> impl Iterator<Item = UnitId> {
        self.put_off.iter().filter(move |(own, _)| turn.is_none_or(|turn| turn == *own)).map(|&(_, id)| id)
    }

    /// Returns whether any unit of another turn is waiting or was put off.
    pub(crate) fn has_waiting_in_other_turns(&self, turn: Option<u32>) -> bool {
        let Some(turn) = turn else { return false };
        let waiting = [self.waiting.first(), self.waiting.last()].into_iter().flatten().map(|it| it.turn);
        let put_off = [self.put_off.first(), self.put_off.last()].into_iter().flatten().map(|it| it.0);
        waiting.chain(put_off).any(|other| other != turn)
    }

    pub(crate) fn has_waiting_non_exclusive(&self) -> bool {
        0 < self.waiting_non_exclusive
    }

    pub(crate) fn has_running(&self) -> bool {
        0 < self.running
    }

    pub(crate) fn has_running_exclusive(&self) -> bool {
        0 < self.running_exclusive
    }

    pub(crate) fn running_count(&self) -> usize {
        self.running
    }

    /// Returns the number of units that have not ended.
    pub(crate) fn open_count(&self) -> usize {
        self.open.values().sum()
    }

    /// Returns the earliest turn with a unit that has not ended.
    pub(crate) fn first_open_turn(&self) -> Option<u32> {
        self.open.first_key_value().map(|(&turn, _)| turn)
    }

    /// Returns the number of units with a timed step left.
    pub(crate) fn to_time_count(&self) -> usize {
        self.to_time
    }

    pub(crate) fn has_exclusive_steps(&self) -> bool {
        0 < self.with_exclusive_steps
    }

    /// Returns whether the job has a baseline. Without a baseline, candidates are not timed against a common kernel.
    pub(crate) fn has_a_baseline(&self) -> bool {
        0 < self.baselines
    }

    pub(crate) fn highest_lower_bound(&self) -> Option<f64> {
        self.lower_bounds.last().map(|(bound, _)| bound.0)
    }

    /// Returns the speed-ups of compared units that have ended or are worth confirming, the highest first.
    pub(crate) fn speedups(&self) -> impl Iterator<Item = f64> {
        self.speedups.iter().rev().map(|(speedup, _)| speedup.0)
    }
}
