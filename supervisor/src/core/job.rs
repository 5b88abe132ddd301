//! What comes next in a job: of its units the ones at the earliest stage, the baseline always first.
//!
//! Pure bookkeeping. Where its units come from is `supply`'s.

use opt_shared::ids::UnitId;

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
    /// It is the turn of others, or of its source.
    Later,
    Done,
}

/// The earliest stage first, several units at a time where there are workers for them; what is to be alone one by one,
/// when nothing else runs. Where units come in turns, `turn` says which may go on now.
pub(crate) fn next(job: &Job, units: &[Unit], turn: impl Fn(&Unit) -> bool) -> Next {
    let (mut at_work, mut alone_at_work, mut later) = (false, false, job.supply != Supply::Dry);
    let mut waiting: Option<(Stage, UnitId, u32)> = None;
    for &id in &job.units {
        let unit = &units[id.index()];
        match unit.progress {
            Progress::Running { .. } => {
                at_work = true;
                alone_at_work |= unit.step().alone;
            }
            Progress::Waiting { .. } if !turn(unit) => later = true,
            Progress::Waiting { attempt } => {
                let stage = unit.step().stage;
                if waiting.is_none_or(|(earliest, _, _)| stage < earliest) {
                    waiting = Some((stage, id, attempt));
                }
            }
            Progress::Done(_) => {}
        }
    }
    let Some((stage, id, attempt)) = waiting else {
        return match () {
            () if at_work => Next::Wait,
            () if later => Next::Later,
            () => Next::Done,
        };
    };
    let step = units[id.index()].step();
    if alone_at_work || at_work && step.alone {
        return Next::Wait;
    }
    let beside = job.baseline.filter(|&baseline| {
        step.paired.is_some() && baseline != id && units[baseline.index()].may_stand_beside
    });
    Next::Order { order: Order { unit: id, stage, beside }, attempt }
}
