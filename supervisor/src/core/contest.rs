//! Decides, from the times measured so far, which candidates of a job are timed further.
//!
//! ```text
//!            clearly slower than another candidate
//!   Screen ─────────────────────────────────────────────▶ parked ──▶ ends with the times it has, once nothing else of
//!      │                                                    ▲ │      the job is running
//!      └──────────────▶ Profile ──▶ Confirm, if among ──────┘ │ the faster candidate fails later
//!                                   the best                  ▼
//!                                                         continues
//! ```
//! A parked candidate stays open until the job has nothing else to do. If the fastest candidate fails, the candidates
//! that were parked because of it continue.

use opt_shared::outcome::{Body, Estimate, Report};

use super::event::Stage;
use super::roster::{Roster, is_worth_confirming};
use super::unit::Unit;

/// How many of the fastest candidates are confirmed. Candidates that are not faster than the baseline are never
/// confirmed.
pub(super) const MAX_CONFIRMED: usize = 3;

pub(super) struct Contest {
    /// The highest of the lower bounds of all speed-ups, including the baseline's, which is 1. Zero if there is no
    /// baseline.
    highest_lower_bound: f64,
    /// The lowest speed-up among the `MAX_CONFIRMED` fastest candidates that are worth confirming or have ended. Slower
    /// candidates are not confirmed. `None` if there are fewer than `MAX_CONFIRMED` such candidates.
    slowest_confirmed: Option<f64>,
}

impl Contest {
    pub(super) fn of(roster: &Roster) -> Self {
        if !roster.has_a_baseline() {
            return Self { highest_lower_bound: 0.0, slowest_confirmed: None };
        }
        // The baseline's own speed-up is 1.
        Self {
            highest_lower_bound: roster.highest_lower_bound().map_or(1.0, |low| low.max(1.0)),
            slowest_confirmed: roster.speedups().nth(MAX_CONFIRMED - 1),
        }
    }

    /// Returns whether the current step of `unit` is worth running. Returns false for a profile or a confirmation that
    /// could not change which candidate wins.
    pub(super) fn includes(&self, unit: &Unit) -> bool {
        let Some(speedup) = unit.speedup else { return true };
        match unit.step().stage {
            Stage::Profile => self.highest_lower_bound <= speedup.ci_high,
            Stage::Confirm => {
                1.0 < speedup.value
                    && self.slowest_confirmed.is_none_or(|slowest| slowest <= speedup.value)
                    && is_worth_confirming(&speedup)
            }
            Stage::Build | Stage::Verify | Stage::Screen | Stage::Replay => true,
        }
    }

    /// Returns why a unit is not profiled or not confirmed, as a text for the user. A unit that is not confirmed
    /// because it is not among the fastest, or not faster than the baseline, needs no explanation, so its text is
    /// empty.
    pub(super) fn why_not(&self, unit: &Unit) -> String {
        match (unit.step().stage, unit.speedup) {
            (Stage::Profile, Some(speedup)) => format!(
                "timed briefly: it is at most {:.2} times as fast as the baseline, and the fastest kernel is at least \
                 {:.2} times as fast",
                speedup.ci_high, self.highest_lower_bound
            ),
            (Stage::Confirm, Some(speedup)) if 1.0 < speedup.value && !is_worth_confirming(&speedup) => {
                format!(
                    "not confirmed: its speed-up is only known to lie between {:.2} and {:.2}",
                    speedup.ci_low, speedup.ci_high
                )
            }
            _ => String::new(),
        }
    }
}

/// Returns the speed-up in a report of a timed step.
pub(super) fn speedup(report: &Report) -> Option<Estimate> {
    match &report.body {
        Body::Profile(profiled) => profiled.speedup(),
        Body::Build(_) | Body::Verify(_) | Body::Replay(_) => None,
    }
}
