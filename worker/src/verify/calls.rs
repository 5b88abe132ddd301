//! The calls of one entry: which slot and poison each gets, what it left in the outputs, and what several calls that
//! disagree are called.
//!
//! Leaves to others: the runner's start and end, and everything about other entries (`verify`).

use opt_shared::causes::chain;
use opt_shared::formula::load_timeout;
use opt_shared::message::{KillReason, VerifyTask};
use opt_shared::outcome::{EntryFailure, Mismatch, Pattern, Status};

use super::{Checked, failure};
use crate::attempt::{Callable, Trouble};
use crate::executor::outputs::{Outputs, POISONS};
use crate::executor::prepare::Prepared;
use crate::executor::process::{Answer, Loaded, Runner};
use crate::judge::Tolerance;
use crate::judge::check::{OutputCheck, is_the_captures};
use crate::link::Link;
use crate::runner::control::{FLAG_PLAN, FLAG_VERIFY};

pub(super) enum Ended {
    Passed,
    Failed(Box<EntryFailure>),
    Died,
}

/// The calls of one entry.
pub(super) struct Calls<'a> {
    pub(super) task: &'a VerifyTask,
    pub(super) prepared: &'a Prepared,
    /// Of every output.
    pub(super) tolerances: &'a [Tolerance],
    pub(super) outputs: &'a Outputs,
    pub(super) callable: &'a Callable<'a>,
    pub(super) checked: Checked,
    /// The judge's own line about the first wrong output.
    pub(super) wrong: Option<String>,
}

/// What one call left in the outputs.
enum CallEnd {
    Right,
    Wrong(Box<Mismatch>),
    Over(Ended),
}

impl Calls<'_> {
    pub(super) fn drive(&mut self, link: &mut Link, runner: &mut Runner) -> Result<Ended, Trouble> {
        let timeout = self.task.verify.call_timeout;
        let load_limit = load_timeout(timeout);
        let has_plan = match runner.begin(link, load_limit).map_err(|e| self.callable.trouble(e))? {
            Answer::Done(Loaded::Ready { has_plan }) => has_plan,
            Answer::Done(Loaded::Refused { text }) => {
                return Ok(self.failed(Status::LoadError, self.callable.refusal(&text)));
            }
            Answer::Died => return Ok(Ended::Died),
            Answer::TimedOut => {
                runner
                    .end_for(link, KillReason::Timeout { limit: load_limit })
                    .map_err(|e| self.callable.trouble(e))?;
                return Ok(Ended::Died);
            }
        };
        if has_plan && let Some(ended) = self.command(link, runner, 0, FLAG_PLAN | FLAG_VERIFY)? {
            return Ok(ended);
        }
        let repeats = self.task.verify.repeats.max(2);
        let mut first_wrong: Option<Box<Mismatch>> = None;
        let mut right = 0;
        for call in 0..repeats {
            match self.call(link, runner, call)? {
                CallEnd::Right => {
                    right += 1;
                    if let Some(mismatch) = first_wrong {
                        let detail = format!("wrong in its first call, right in call {}", call + 1);
                        return Ok(self.mismatched(Status::Nondeterministic, detail, mismatch));
                    }
                }
                CallEnd::Wrong(mismatch) if 0 < right => {
                    return self.right_then_wrong(link, runner, call, mismatch);
                }
                CallEnd::Wrong(mismatch) => match first_wrong {
                    // Wrong twice the same way: enough.
                    Some(first) => return Ok(self.wrong_twice(first, &mismatch)),
                    None => first_wrong = Some(mismatch),
                },
                CallEnd::Over(ended) => return Ok(ended),
            }
        }
        Ok(Ended::Passed)
    }

    fn wrong_twice(&self, first: Box<Mismatch>, second: &Mismatch) -> Ended {
        let poisoned = |mismatch: &Mismatch| mismatch.pattern == Pattern::StillPoisoned;
        if poisoned(&first) && poisoned(second) && first.bad_indices == second.bad_indices {
            let detail = format!(
                "{} of {} elements of `{}` were never written",
                first.failed, first.elements, first.output
            );
            return self.mismatched(Status::UnwrittenOutput, detail, first);
        }
        let detail = self.wrong.clone().unwrap_or_default();
        self.mismatched(Status::IncorrectNumerical, detail, first)
    }

    /// Right before, wrong now. If what is wrong is poison, and the first poison alone would have passed (it is NaN,
    /// and NaN was recorded there), the elements were never written. Two more calls at the first one's place tell:
    /// with its poison right, with another wrong. A call that is right with both goes by its place.
    fn right_then_wrong(
        &mut self,
        link: &mut Link,
        runner: &mut Runner,
        call: u32,
        mismatch: Box<Mismatch>,
    ) -> Result<Ended, Trouble> {
        if mismatch.pattern == Pattern::StillPoisoned {
            // The first call's poison and place again, then its place alone: slots alternate, poisons come in turn.
            let again = u32::try_from(POISONS.len()).unwrap_or(4) * 2;
            if matches!(self.call(link, runner, again)?, CallEnd::Right)
                && matches!(self.call(link, runner, again + 2)?, CallEnd::Wrong(_))
            {
                let detail = format!(
                    "{} of {} elements of `{}` were never written",
                    mismatch.failed, mismatch.elements, mismatch.output
                );
                return Ok(self.mismatched(Status::UnwrittenOutput, detail, mismatch));
            }
            let detail =
                format!("right at first, then call {} left `{}` unwritten", call + 1, mismatch.output);
            return Ok(self.mismatched(Status::Nondeterministic, detail, mismatch));
        }
        let detail = format!("right at first, wrong in call {}", call + 1);
        Ok(self.mismatched(Status::Nondeterministic, detail, mismatch))
    }

    fn call(&mut self, link: &mut Link, runner: &mut Runner, number: u32) -> Result<CallEnd, Trouble> {
        let slot = number % self.outputs.slots();
        let poison = POISONS[number as usize % POISONS.len()];
        let io = |source| Trouble::Outputs { entry: self.prepared.name.clone(), source };
        self.outputs.poison(poison).map_err(io)?;
        if let Some(ended) = self.command(link, runner, slot, FLAG_VERIFY)? {
            return Ok(CallEnd::Over(ended));
        }
        // Outputs are read from a stopped runner only.
        if !runner.stop().map_err(|e| self.callable.trouble(e))? {
            return Ok(CallEnd::Over(Ended::Died));
        }
        if let Some((output, past)) = self.outputs.damaged_slack(slot, poison).map_err(io)? {
            let path = &self.prepared.leaves[output].path;
            let side = if past < 0 { "before the start" } else { "past the end" };
            let detail = match if past < 0 { -past } else { past + 1 } {
                1 => format!("wrote 1 byte {side} of `{path}`"),
                many => format!("wrote {many} bytes {side} of `{path}`"),
            };
            return Ok(CallEnd::Over(self.failed(Status::OutOfBounds, detail)));
        }
        let wrong = match self.compare(slot, poison) {
            Ok(wrong) => wrong,
            Err(Trouble::Compare { source, .. }) if is_the_captures(&source) => {
                return Ok(CallEnd::Over(self.failed(Status::CaptureError, chain(&source))));
            }
            Err(trouble) => return Err(trouble),
        };
        runner.resume().map_err(|e| self.callable.trouble(e))?;
        Ok(wrong.map_or(CallEnd::Right, |mismatch| CallEnd::Wrong(Box::new(mismatch))))
    }

    /// Compares every output; the first that differs.
    fn compare(&mut self, slot: u32, poison: u8) -> Result<Option<Mismatch>, Trouble> {
        let mut first = None;
        for (index, leaf) in self.prepared.leaves.iter().enumerate() {
            let check = OutputCheck {
                path: &leaf.path,
                tensor: &leaf.tensor,
                settings: &self.task.verify,
                tolerance: self.tolerances[index],
                poison,
            };
            let comparison = check
                .run(&mut self.prepared.expected(&leaf.tensor), &mut self.outputs.source(index, slot))
                .map_err(|source| Trouble::Compare { entry: self.prepared.name.clone(), source })?;
            let checked = &mut self.checked;
            checked.max_absolute_error = checked.max_absolute_error.max(comparison.max_absolute_error);
            checked.max_relative_error = checked.max_relative_error.max(comparison.max_relative_error);
            if checked.worst.as_ref().is_none_or(|(_, worst)| *worst < comparison.relative_l2) {
                checked.worst = Some((leaf.path.clone(), comparison.relative_l2));
            }
            if !comparison.passed && first.is_none() {
                self.wrong = self.wrong.take().or_else(|| comparison.detail());
                first = comparison.mismatch;
            }
        }
        Ok(first)
    }

    /// One command; none if it was obeyed.
    fn command(
        &self,
        link: &mut Link,
        runner: &mut Runner,
        slot: u32,
        flags: u32,
    ) -> Result<Option<Ended>, Trouble> {
        let timeout = self.task.verify.call_timeout;
        runner.command(0, 1, slot, flags, std::time::Duration::ZERO);
        let answer =
            runner.wait_done(std::time::Duration::ZERO, timeout).map_err(|e| self.callable.trouble(e))?;
        Ok(match answer {
            Answer::Done(called) if called.returned_value => Some(self.failed(
                Status::RuntimeError,
                "a value was returned through `ret`: write the result into the output tensors that are passed".to_owned(),
            )),
            Answer::Done(called) => match called.result {
                0 if called.calls_done == 1 => None,
                0 => Some(self.failed(Status::RuntimeError, "the call was not made".to_owned())),
                -2 => Some(self.failed(Status::Unsupported, "the candidate does not do this entry (it returned -2)".to_owned())),
                code => {
                    let raised = called.raised.map_or(String::new(), |text| format!(": {text}"));
                    Some(self.failed(Status::RuntimeError, format!("the call returned {code} (0 means done){raised}")))
                }
            },
            Answer::Died => Some(Ended::Died),
            Answer::TimedOut => {
                runner
                    .end_for(link, KillReason::Timeout { limit: timeout })
                    .map_err(|e| self.callable.trouble(e))?;
                Some(Ended::Died)
            }
        })
    }

    fn failed(&self, status: Status, detail: String) -> Ended {
        Ended::Failed(Box::new(failure(Some(self.prepared), &self.prepared.name, status, detail)))
    }

    fn mismatched(&self, status: Status, detail: String, mismatch: Box<Mismatch>) -> Ended {
        let mut failure = failure(Some(self.prepared), &self.prepared.name, status, detail);
        failure.mismatch = Some(*mismatch);
        Ended::Failed(Box::new(failure))
    }
}
