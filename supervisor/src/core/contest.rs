//! Which candidates of a job are worth timing further, by what their times have said so far.
//!
//! ```text
//!            seen to be slower than another surely is
//!   Screen ─────────────────────────────────────────────▶ parked ──▶ ends as it stands, when nothing of the job goes on
//!      │                                                    ▲ │
//!      └──────────────▶ Profile ──▶ Confirm, if among ──────┘ │ the other one failed after all
//!                                   the best                  ▼
//!                                                          goes on
//! ```
//! Nothing is final until the job has nothing left to do: who seemed to be the best may fail, and then those that it
//! kept out come back.

use opt_shared::outcome::{Body, Estimate, Report};

use super::event::Stage;
use super::unit::{Progress, Unit};

/// The winner is one of so many that were timed twice.
pub(super) const CONFIRMED: usize = 3;

/// A job's candidates beside each other: how many times as fast as the baseline each of them is.
pub(super) struct Contest {
    /// Somebody is at least so fast.
    surely: f64,
    /// Of the best that may be confirmed, the last.
    last: Option<f64>,
}

impl Contest {
    /// `units`: of a job, its baseline among them.
    pub(super) fn of<'u>(units: impl Iterator<Item = &'u Unit> + Clone) -> Self {
        if !units.clone().any(|unit| unit.spec.is_baseline && unit.may_stand_beside) {
            // Nobody was timed beside the same.
            return Self { surely: 0.0, last: None };
        }
        let merits = || units.clone().filter(|unit| is_in_the_running(unit)).filter_map(|unit| unit.merit);
        // The baseline is as fast as itself.
        let surely = merits().map(|merit| merit.ci_low).fold(1.0, f64::max);
        let mut values: Vec<f64> = merits().map(|merit| merit.value).collect();
        values.sort_unstable_by(|one, other| other.total_cmp(one));
        Self { surely, last: values.get(CONFIRMED - 1).copied() }
    }

    /// Whether its step in hand can still change who wins.
    pub(super) fn is_open_to(&self, unit: &Unit) -> bool {
        let Some(merit) = unit.merit else { return true };
        match unit.step().stage {
            Stage::Profile => self.surely <= merit.ci_high,
            Stage::Confirm => 1.0 < merit.value && self.last.is_none_or(|last| last <= merit.value),
            Stage::Build | Stage::Verify | Stage::Screen | Stage::Replay => true,
        }
    }

    /// Why one to which it is not open ends here.
    pub(super) fn why_not(&self, unit: &Unit) -> String {
        match (unit.step().stage, unit.merit) {
            (Stage::Profile, Some(merit)) => format!(
                "timed briefly: it is at most {:.2} times as fast as the baseline, and another is at least {:.2} times",
                merit.ci_high, self.surely
            ),
            _ => String::new(),
        }
    }
}

/// A failed one is no measure for others, nor is one that was timed on some entries only.
fn is_in_the_running(unit: &Unit) -> bool {
    !unit.spec.partial
        && match unit.progress {
            Progress::Waiting { .. } | Progress::Running { .. } => true,
            Progress::Done(_) => unit.passed(),
        }
}

/// How many times as fast as its baseline a report says that a candidate is.
pub(super) fn merit(report: &Report) -> Option<Estimate> {
    match &report.body {
        Body::Profile(profiled) => profiled.speedup(),
        Body::Build(_) | Body::Verify(_) | Body::Replay(_) => None,
    }
}
