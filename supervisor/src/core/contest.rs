//! Decides from the times so far which candidates of a job are worth more timing.
//!
//! ```text
//!            surely slower than another candidate
//!   Screen ─────────────────────────────────────────────▶ parked ──▶ ends with the times it has, once nothing else of
//!      │                                                    ▲ │      the job is running
//!      └──────────────▶ Profile ──▶ Confirm, if among ──────┘ │ the faster candidate fails later
//!                                   the best                  ▼
//!                                                         continues
//! ```
//! Nothing is final until the job has nothing left to do. If the fastest candidate fails, those that were parked because
//! of it continue.

use opt_shared::outcome::{Body, Estimate, Report};

use super::event::Stage;
use super::unit::{Progress, Unit};

/// How many candidates are timed a second time. The winner is one of them.
pub(super) const CONFIRMED: usize = 3;

/// Compares the candidates of a job by their speed-up over the baseline.
pub(super) struct Contest {
    /// The highest lower bound of a speed-up: some candidate is surely this fast.
    surely: f64,
    /// The lowest speed-up among the candidates that may be confirmed; `None` if there are fewer than `CONFIRMED`.
    last: Option<f64>,
}

impl Contest {
    /// `units` are all units of one job, including its baseline.
    pub(super) fn of<'u>(units: impl Iterator<Item = &'u Unit> + Clone) -> Self {
        if !units.clone().any(|unit| unit.spec.is_baseline && unit.may_stand_beside) {
            // Without a baseline no two candidates were timed beside the same kernel.
            return Self { surely: 0.0, last: None };
        }
        let merits = || units.clone().filter(|unit| is_in_the_running(unit)).filter_map(|unit| unit.merit);
        // The baseline's own speed-up is 1.
        let surely = merits().map(|merit| merit.ci_low).fold(1.0, f64::max);
        let mut values: Vec<f64> = merits().map(|merit| merit.value).collect();
        values.sort_unstable_by(|one, other| other.total_cmp(one));
        Self { surely, last: values.get(CONFIRMED - 1).copied() }
    }

    /// Whether the current step of `unit` can still change who wins.
    pub(super) fn is_open_to(&self, unit: &Unit) -> bool {
        let Some(merit) = unit.merit else { return true };
        match unit.step().stage {
            Stage::Profile => self.surely <= merit.ci_high,
            Stage::Confirm => 1.0 < merit.value && self.last.is_none_or(|last| last <= merit.value),
            Stage::Build | Stage::Verify | Stage::Screen | Stage::Replay => true,
        }
    }

    /// The reason for ending a unit to which the contest is not open.
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

/// Whether others are compared with this unit. Failed units are left out, and so are those timed on only some entries.
fn is_in_the_running(unit: &Unit) -> bool {
    !unit.spec.partial
        && match unit.progress {
            Progress::Waiting { .. } | Progress::Running { .. } => true,
            Progress::Done(_) => unit.passed(),
        }
}

/// A candidate's speed-up over its baseline, if the report has one.
pub(super) fn merit(report: &Report) -> Option<Estimate> {
    match &report.body {
        Body::Profile(profiled) => profiled.speedup(),
        Body::Build(_) | Body::Verify(_) | Body::Replay(_) => None,
    }
}
