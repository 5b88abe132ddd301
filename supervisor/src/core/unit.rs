//! Keeps the state of a unit of work (a candidate or a replay): its current step, its attempts and its losses.
//!
//! ```text
//!            granted                 passed, and no step is left
//!   Waiting ─────────▶ Running ──────────────────────────────────▶ Done
//!      ▲                  │ passed: the next step, attempt 1         ▲
//!      └──────────────────┤                                          │
//!      ▲                  │ no verdict: attempt + 1                  │
//!      └──────────────────┤                                          │
//!      ▲                  │ given up for the first time: put off     │
//!      └──────────────────┤ until nothing else is left               │
//!                         └── failed, given up, cancelled ───────────┤
//!   Waiting ── never fits, cancelled, withdrawn, captures broken ────┘
//! ```
//! A waiting unit also ends if its remaining steps are not needed, or if it needs a device that is lost. If a screening
//! or a confirmation cannot be run, the unit continues without it. When a run is resumed, a unit that an earlier part
//! of the run finished is `Done` from the start, and a unit that was already built begins with the step after its
//! build.

use opt_shared::ids::JobId;
use opt_shared::outcome::{Estimate, Status};

use super::event::{Moment, Stage};
use super::spec::{Resumed, Step, UnitSpec};
use super::{LOSS_WINDOW, MAX_LOST, MAX_LOST_EVER};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The current step has not been done yet. `attempt` is the number of its next attempt.
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
    /// The turn in which the unit is served. A turn begins when all units of the previous turn are done.
    pub(crate) turn: u32,
    pub(crate) progress: Progress,
    /// The index of the current step or, for a unit that has ended, of the step at which it ended.
    step_index: usize,
    /// Whether other units may be timed beside this one, if it is the baseline. They may once the baseline has passed
    /// all steps before its first step that runs alone, unless it has failed since. Steps that it passed in earlier
    /// parts of the run count.
    pub(crate) may_be_paired: bool,
    /// Whether the unit is a baseline that failed while it was timed beside another unit.
    pub(crate) failed_beside: bool,
    /// The number of attempts in this pass, at any step, in which the worker was lost.
    pub(crate) workers_lost: u32,
    /// The losses of the current step. Boxed, because most units have none.
    losses: Option<Box<Losses>>,
    /// The unit's speed-up over the baseline, from the last timed step that passed.
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

/// The losses of the current step, and what the core remembers for the step's next attempt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses {
    /// The times at which attempts failed through no fault of the unit.
    lost: Vec<Moment>,
    /// The number of attempts that ended for lack of memory. They do not count as losses, because they have a separate
    /// limit.
    pub(crate) short_of_memory: u32,
    /// The number of builds that failed while there was no room for them.
    pub(crate) without_room: u32,
    /// The number of attempts in this pass, at any step, for which the machine refused to start a process.
    pub(crate) without_tasks: u32,
    /// The number of attempts that held more device memory than their lease reserved, while the run exceeded its
    /// ceiling.
    pub(crate) over_device: u32,
    /// The first of the step's ways that is still allowed. Later ways take less memory.
    pub(crate) from_way: usize,
    /// The entry at which an unknown sender last killed one of the unit's runners.
    pub(crate) killed_at: Option<String>,
    /// How the last build ended. Set only if it is unclear whether the source is to blame.
    pub(crate) build_end: Option<String>,
}

impl Losses {
    /// Records a lost attempt. Returns true if it may not be repeated, because the previous loss was too recent or the
    /// step has had too many losses.
    pub(crate) fn add_lost(&mut self, now: Moment) -> bool {
        self.lost.push(now);
        let recent = self.lost.iter().filter(|&&at| now.saturating_sub(at) < LOSS_WINDOW).count();
        (MAX_LOST as usize) < recent || (MAX_LOST_EVER as usize) < self.lost.len()
    }
}

impl Unit {
    pub(crate) fn new(spec: UnitSpec, job: JobId, turn: u32) -> Self {
        let (progress, may_be_paired, speedup, failed_beside) = match spec.resumed.as_deref() {
            Some(&Resumed::Ended { status, verified, speedup, failed_beside }) => {
                let may_be_paired = verified && status == Status::Passed && !failed_beside;
                (Progress::Done(status), may_be_paired, speedup, failed_beside)
            }
            Some(Resumed::Built) | None => (Progress::Waiting { attempt: 1 }, false, None, false),
        };
        let mut unit = Self {
            spec,
            job,
            turn,
            progress,
            step_index: 0,
            may_be_paired,
            failed_beside,
            workers_lost: 0,
            losses: None,
            speedup,
            second_pass: SecondPass::NotNeeded,
        };
        if unit.starts_built() {
            unit.advance();
        }
        unit
    }

    pub(crate) fn losses(&mut self) -> &mut Losses {
        self.losses.get_or_insert_default()
    }

    /// Stores how a build ended (`Built::unexplained`), and returns how the previous one ended.
    pub(crate) fn replace_build_end(&mut self, end: Option<String>) -> Option<String> {
        if end.is_none() && self.losses.is_none() {
            return None;
        }
        std::mem::replace(&mut self.losses().build_end, end)
    }

    /// Frees the memory of the losses. Call it when the unit ends.
    pub(crate) fn forget_losses(&mut self) {
        self.losses = None;
    }

    /// Returns the first of the step's ways that is still allowed. Later ways take less memory.
    pub(crate) fn first_way(&self) -> usize {
        self.losses.as_ref().map_or(0, |losses| losses.from_way)
    }

    fn starts_built(&self) -> bool {
        self.spec.resumed.as_deref() == Some(&Resumed::Built)
            && self.spec.route.first().is_some_and(|step| step.stage == Stage::Build)
            && 1 < self.spec.route.len()
    }

    /// Returns the current step, or the step at which the unit ended.
    pub(crate) fn step(&self) -> &Step {
        &self.spec.route[self.step_index]
    }

    pub(crate) fn next_step(&self) -> Option<&Step> {
        self.spec.route.get(self.step_index + 1)
    }

    pub(crate) fn steps_left(&self) -> &[Step] {
        if self.is_done() { &[] } else { &self.spec.route[self.step_index..] }
    }

    /// Moves the unit on to its next step. Returns false if there is none.
    pub(crate) fn advance(&mut self) -> bool {
        let Some(next) = self.next_step() else { return false };
        self.may_be_paired |= next.exclusive;
        self.step_index += 1;
        self.progress = Progress::Waiting { attempt: 1 };
        // This count is kept for the whole pass. Otherwise a unit could pause the run for the full time again in each
        // step.
        let without_tasks = self.losses.take().map_or(0, |losses| losses.without_tasks);
        if 0 < without_tasks {
            self.losses().without_tasks = without_tasks;
        }
        true
    }

    pub(crate) fn is_put_off(&self) -> bool {
        self.second_pass == SecondPass::PutOff
    }

    /// Begins the second pass, in which earlier losses no longer count.
    pub(crate) fn begin_second_pass(&mut self) {
        self.second_pass = SecondPass::Begun;
        self.losses = None;
        self.workers_lost = 0;
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.progress, Progress::Done(_))
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.progress, Progress::Running { .. })
    }

    /// Returns whether other units are compared with this unit's speed-up. They are not if this unit failed, or if it
    /// may leave out entries.
    pub(crate) fn is_compared(&self) -> bool {
        !self.spec.partial && (!self.is_done() || self.passed())
    }

    /// Returns whether no step of the unit has been attempted in this part of the run.
    pub(crate) fn is_untouched(&self) -> bool {
        self.step_index == usize::from(self.starts_built())
            && self.progress == Progress::Waiting { attempt: 1 }
    }

    pub(crate) fn passed(&self) -> bool {
        self.progress == Progress::Done(Status::Passed)
    }
}
