//! The state of each unit of work. Pure bookkeeping: the ledger decides whether the next step can be granted now.
//!
//! ```text
//!            granted                 passed, and no step is left
//!   Waiting ─────────▶ Running ──────────────────────────────────▶ Done
//!      ▲                  │ passed: the next step, attempt 1         ▲
//!      └──────────────────┤                                          │
//!      ▲                  │ nobody's verdict: attempt + 1            │
//!      └──────────────────┤                                          │
//!      ▲                  │ given up for the first time: put off    │
//!      └──────────────────┤ until nothing else is left              │
//!                         └── failed, given up, cancelled ───────────┤
//!   Waiting ── never fits, cancelled, withdrawn, captures broken ────┘
//! ```
//! A unit that an earlier part of the run has finished is `Done` from the start.

use opt_shared::ids::JobId;
use opt_shared::outcome::{Estimate, Status};

use super::event::Moment;
use super::spec::{Resumed, Step, UnitSpec};
use super::{LOSS_WINDOW, MAX_LOST, MAX_LOST_EVER, MAX_WORKERS_LOST};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The current step is still to be done; `attempt` is the number of its next attempt.
    Waiting {
        attempt: u32,
    },
    Running {
        attempt: u32,
    },
    Done(Status),
}

#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) spec: UnitSpec,
    pub(crate) job: JobId,
    /// Units come in turns: all units of one turn are done before any of the next begins.
    pub(crate) turn: u32,
    pub(crate) progress: Progress,
    /// The current step, or the last one if the unit is done.
    at: usize,
    /// Whether others may be timed beside it: it passed all steps before its first step that runs alone, in this run or
    /// the resumed one, and has not failed since.
    pub(crate) may_stand_beside: bool,
    /// It was timed beside another unit and failed there.
    pub(crate) failed_beside: bool,
    /// Attempts, of any step, in which the worker was lost.
    pub(crate) workers_lost: u32,
    pub(crate) losses: Losses,
    /// Its speed-up over the baseline, according to the last timed step that passed.
    pub(crate) speedup: Option<Estimate>,
    pub(crate) second_pass: SecondPass,
}

/// A unit that would end without a verdict is put off until nothing else is left to do, and then gets one more pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SecondPass {
    #[default]
    NotNeeded,
    PutOff,
    Begun,
}

/// Losses of the current step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses {
    /// When attempts failed through no fault of the unit.
    lost: Vec<Moment>,
    /// Attempts that ended for lack of memory; they have their own limit.
    pub(crate) short_of_memory: u32,
    /// Attempts that were ended because they held more on the device than their reservation.
    pub(crate) over_device: u32,
    /// The first of the step's ways that is still allowed; later ways take less memory.
    pub(crate) from_way: usize,
    /// The entry at which an unknown sender last killed one of its runners.
    pub(crate) killed_at: Option<String>,
}

impl Losses {
    /// Records a lost attempt. Returns true if it was one too many: too soon after another, or beyond the allowed
    /// number.
    pub(crate) fn add_lost(&mut self, now: Moment) -> bool {
        self.lost.push(now);
        let recent = self.lost.iter().filter(|&&at| now.saturating_sub(at) < LOSS_WINDOW).count();
        (MAX_LOST as usize) < recent || (MAX_LOST_EVER as usize) < self.lost.len()
    }
}

impl Unit {
    pub(crate) fn new(spec: UnitSpec, job: JobId, turn: u32) -> Self {
        let (progress, may_stand_beside, speedup) = match spec.resumed {
            Some(Resumed { status, verified, speedup }) => {
                (Progress::Done(status), verified && status == Status::Passed, speedup)
            }
            None => (Progress::Waiting { attempt: 1 }, false, None),
        };
        Self {
            spec,
            job,
            turn,
            progress,
            at: 0,
            may_stand_beside,
            failed_beside: false,
            workers_lost: 0,
            losses: Losses::default(),
            speedup,
            second_pass: SecondPass::NotNeeded,
        }
    }

    /// The current step, or the last one if the unit is done.
    pub(crate) fn step(&self) -> &Step {
        &self.spec.route[self.at]
    }

    /// The step that follows the current one.
    pub(crate) fn next_step(&self) -> Option<&Step> {
        self.spec.route.get(self.at + 1)
    }

    /// The current step and all later ones; none if the unit is done.
    pub(crate) fn steps_left(&self) -> &[Step] {
        if self.is_done() { &[] } else { &self.spec.route[self.at..] }
    }

    /// Advances to the next step after the current one has passed. Returns false if that was the last one.
    pub(crate) fn go_on(&mut self) -> bool {
        let Some(next) = self.next_step() else { return false };
        self.may_stand_beside |= next.alone;
        self.at += 1;
        self.progress = Progress::Waiting { attempt: 1 };
        self.losses = Losses::default();
        true
    }

    pub(crate) fn is_put_off(&self) -> bool {
        self.second_pass == SecondPass::PutOff
    }

    /// Begins the second pass: losses are forgiven, but one more lost worker ends it.
    pub(crate) fn begin_second_pass(&mut self) {
        self.second_pass = SecondPass::Begun;
        self.losses = Losses::default();
        self.workers_lost = self.workers_lost.min(MAX_WORKERS_LOST - 1);
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.progress, Progress::Done(_))
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.progress, Progress::Running { .. })
    }

    /// Whether other units are compared with it. Failed units are left out, and so are those timed on only some
    /// entries.
    pub(crate) fn is_compared(&self) -> bool {
        !self.spec.partial && (!self.is_done() || self.passed())
    }

    /// Whether its first step has not been attempted yet.
    pub(crate) fn is_untouched(&self) -> bool {
        self.at == 0 && self.progress == Progress::Waiting { attempt: 1 }
    }

    pub(crate) fn passed(&self) -> bool {
        self.progress == Progress::Done(Status::Passed)
    }
}
