//! What comes next in a job: of its units the ones at the earliest stage, the baseline always first.
//!
//! Pure bookkeeping. Where its units come from is `supply`'s.

use std::time::Duration;

use opt_shared::ids::UnitId;

use super::contest::Contest;
use super::event::{Order, Stage};
use super::supply::Supply;
use super::unit::{Progress, Unit};

/// A job as it stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Job {
    /// The baseline first, then as they were offered.
    pub(crate) units: Vec<UnitId>,
    pub(crate) baseline: Option<UnitId>,
    pub(crate) supply: Supply,
    pub(crate) done: bool,
    /// What its timed steps have taken.
    pub(crate) timed: Duration,
}

impl Job {
    pub(crate) fn take_up(&mut self, id: UnitId, is_baseline: bool) {
        if is_baseline && self.baseline.is_none() {
            self.baseline = Some(id);
            self.units.insert(0, id);
        } else {
            self.units.push(id);
        }
        self.done = false;
    }

    /// A step of this unit may have two prices: with the baseline beside it, or without.
    pub(crate) fn is_beside_a_baseline(&self, id: UnitId) -> bool {
        self.baseline.is_some_and(|baseline| baseline != id)
    }
}

/// What a job wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Order {
        order: Order,
        attempt: u32,
    },
    /// Something has to end first.
    Wait,
    /// What is left need not be timed any further.
    Settle,
    /// It is the turn of others, or of its source.
    Later,
    Done,
}

/// The earliest stage first, several units at a time where there are workers for them; what is to be alone one by one,
/// when nothing else runs, the most promising first. Where units come in turns, `turn` says which may go on now.
pub(crate) fn next(job: &Job, units: &[Unit], turn: impl Fn(&Unit) -> bool) -> Next {
    let contest = Contest::of(job.units.iter().map(|id| &units[id.index()]));
    let (mut at_work, mut alone_at_work, mut later) = (false, false, job.supply != Supply::Dry);
    let (mut parked, mut put_off) = (false, false);
    let mut waiting: Option<(&Unit, u32)> = None;
    let baseline_is_put_off = job.baseline.is_some_and(|id| units[id.index()].is_put_off());
    for &id in &job.units {
        let unit = &units[id.index()];
        match unit.progress {
            Progress::Running { .. } => {
                at_work = true;
                alone_at_work |= unit.step().alone;
            }
            Progress::Waiting { .. } if !turn(unit) => later = true,
            Progress::Waiting { .. } if unit.is_put_off() => put_off = true,
            // What is timed beside the baseline waits for its second pass.
            Progress::Waiting { .. } if baseline_is_put_off && unit.step().paired.is_some() => put_off = true,
            Progress::Waiting { .. } if !contest.is_open_to(unit) => parked = true,
            Progress::Waiting { attempt } => {
                if waiting.is_none_or(|(earlier, _)| comes_before(unit, earlier)) {
                    waiting = Some((unit, attempt));
                }
            }
            Progress::Done(_) => {}
        }
    }
    let Some((unit, attempt)) = waiting else {
        return match () {
            () if at_work => Next::Wait,
            // Who is left out may depend on what becomes of those that were put off.
            () if parked && !put_off => Next::Settle,
            () if later || put_off => Next::Later,
            () => Next::Done,
        };
    };
    let (id, step) = (unit.spec.id, unit.step());
    if alone_at_work || at_work && step.alone {
        return Next::Wait;
    }
    let beside = job.baseline.filter(|&baseline| {
        step.paired.is_some() && baseline != id && units[baseline.index()].may_stand_beside
    });
    Next::Order { order: Order { unit: id, stage: step.stage, beside }, attempt }
}

fn comes_before(unit: &Unit, other: &Unit) -> bool {
    let (stage, value) = (place(unit), unit.merit.map_or(0.0, |merit| merit.value));
    let (of_other, other_value) = (place(other), other.merit.map_or(0.0, |merit| merit.value));
    stage < of_other || stage == of_other && other_value < value
}

/// The baseline is timed before anybody is timed beside it: if it fails, that is known early.
fn place(unit: &Unit) -> Stage {
    match unit.step().stage {
        Stage::Profile if unit.spec.is_baseline => Stage::Screen,
        stage => stage,
    }
}
