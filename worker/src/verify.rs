//! Verification: every entry in a runner of its own, every output compared with what was recorded.
//!
//! Owns the order of calls and poisons within an entry and the judgement over several calls. The comparison itself
//! is the judge's; expected outputs are read by this process, in chunks, and never reach a runner.

use std::time::Instant;

use opt_shared::causes::chain;
use opt_shared::ids::LeaseId;
use opt_shared::message::{EntryRef, FromWorker, KillReason, VerifyTask};
use opt_shared::outcome::{
    EntryFailure, Mismatch, Pattern, ReadReport, RunnerEnd, Status, VerifyReport, WorstError,
};
use opt_shared::units::Bytes;

use crate::attempt::{Callable, Trouble, kept, load_timeout};
use crate::classify::{self, Places, Verdict};
use crate::executor::outputs::{Outputs, POISONS, SlotLayout};
use crate::executor::prepare::Prepared;
use crate::executor::process::{Answer, Death, Loaded, Runner};
use crate::executor::read_ahead::ReadAhead;
use crate::executor::residue::Residue;
use crate::judge::Tolerance;
use crate::judge::check::{OutputCheck, is_the_captures};
use crate::link::Link;
use crate::runner::control::{FLAG_PLAN, FLAG_VERIFY};

/// Failures that a report holds in full (DESIGN, "The run directory").
const KEPT_FAILURES: usize = 3;
/// Failing entries whose data is read once more to see whether they are damaged: those that a report shows. More would
/// cost a pass over the captures for every bad candidate.
const CHECKED_FAILURES: u32 = 3;

pub(crate) fn run(link: &mut Link, lease: LeaseId, task: &VerifyTask) -> Result<VerifyReport, Trouble> {
    let started = Instant::now();
    let callable = Callable::open(&task.callee)?;
    let mut report = VerifyReport {
        status: Status::Passed,
        detail: String::new(),
        entries_run: 0,
        entries_passed: 0,
        entries_unsupported: 0,
        unsupported: Vec::new(),
        max_absolute_error: 0.0,
        max_relative_error: 0.0,
        worst: None,
        failures: Vec::new(),
        bytes_validated: Bytes::ZERO,
        output_truncated: false,
        end: None,
        ms: 0.0,
        runner_peak_owed: Bytes::ZERO,
        reads: ReadReport::default(),
    };
    let mut failed = 0;
    let total = u32::try_from(task.entries.len()).unwrap_or(u32::MAX);
    for entry in &task.entries {
        report.entries_run += 1;
        let outcome = cached_entry(link, lease, task, &callable, entry, failed < CHECKED_FAILURES)?;
        report.bytes_validated += entry.file_bytes;
        report.runner_peak_owed = report.runner_peak_owed.max(outcome.peak_owed);
        report.output_truncated |= outcome.output_truncated;
        report.reads.absorb(&outcome.reads);
        report.max_absolute_error = report.max_absolute_error.max(outcome.check.max_absolute_error);
        report.max_relative_error = report.max_relative_error.max(outcome.check.max_relative_error);
        if let Some((output, relative_l2)) = outcome.check.worst
            && report.worst.as_ref().is_none_or(|worst| worst.relative_l2 < relative_l2)
        {
            report.worst = Some(WorstError { entry: entry.name.clone(), output, relative_l2 });
        }
        match outcome.failure {
            None => report.entries_passed += 1,
            Some(failure) if failure.status == Status::Unsupported => {
                report.entries_unsupported += 1;
                report.unsupported.push(entry.id);
            }
            Some(failure) => {
                if failed == 0 {
                    report.status = failure.status;
                    report.detail = format!("{}: {}", failure.entry, failure.detail);
                    report.end = outcome.end;
                }
                failed += 1;
                if report.failures.len() < KEPT_FAILURES {
                    report.failures.push(failure);
                }
            }
        }
        let _ = link.send(FromWorker::Progress {
            lease,
            done: report.entries_run,
            total,
            bytes: report.bytes_validated,
        });
        if task.verify.stop_after != 0 && task.verify.stop_after <= failed {
            break;
        }
    }
    if failed == 0 && 0 < report.entries_unsupported {
        report.status = Status::Unsupported;
        report.detail = format!(
            "{} of {} entries are not supported by this candidate (set `partial = true` to rank it on the others)",
            report.entries_unsupported, report.entries_run
        );
    }
    report.ms = started.elapsed().as_secs_f64() * 1e3;
    Ok(report)
}

#[derive(Default)]
struct EntryOutcome {
    failure: Option<EntryFailure>,
    check: Checked,
    end: Option<RunnerEnd>,
    peak_owed: Bytes,
    output_truncated: bool,
    reads: ReadReport,
}

#[derive(Default)]
struct Checked {
    max_absolute_error: f64,
    max_relative_error: f64,
    worst: Option<(String, f64)>,
}

pub(crate) fn failure(
    prepared: Option<&Prepared>,
    name: &str,
    status: Status,
    detail: String,
) -> EntryFailure {
    EntryFailure {
        entry: name.to_owned(),
        status,
        detail,
        args: prepared.map(Prepared::describe).unwrap_or_default(),
        mismatch: None,
    }
}

/// One entry, after which the page cache is as it was, where the job is large.
fn cached_entry(
    link: &mut Link,
    lease: LeaseId,
    task: &VerifyTask,
    callable: &Callable<'_>,
    entry: &EntryRef,
    doubt: bool,
) -> Result<EntryOutcome, Trouble> {
    let mut residue = Residue::watch(std::slice::from_ref(entry), task.drop_cache);
    // Nobody maps the files any more when it returns.
    let mut outcome = one_entry(link, lease, task, callable, entry, doubt, &mut residue)?;
    outcome.reads.absorb(&residue.release());
    Ok(outcome)
}

fn one_entry(
    link: &mut Link,
    lease: LeaseId,
    task: &VerifyTask,
    callable: &Callable<'_>,
    entry: &EntryRef,
    doubt: bool,
    residue: &mut Residue,
) -> Result<EntryOutcome, Trouble> {
    let opened = Prepared::open(entry, &task.callee.signature).and_then(|prepared| {
        residue.watch_data_of(&prepared);
        let read_ahead = ReadAhead::of(&prepared);
        read_ahead.read_exactly();
        Ok((prepared.tolerances(&task.verify)?, prepared, read_ahead))
    });
    let (tolerances, prepared, read_ahead) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let failure = failure(None, &entry.name, Status::CaptureError, chain(&error));
            return Ok(EntryOutcome { failure: Some(failure), ..EntryOutcome::default() });
        }
    };
    let io = |source| Trouble::Outputs { entry: entry.name.clone(), source };
    let outputs = Outputs::create(&prepared.leaves, SlotLayout::AgainstGuards).map_err(|e| io(e.into()))?;
    let spec = callable.spec(lease, &[&prepared], outputs.memfd_bytes(), Bytes::ZERO);
    let mut runner = Runner::start(link, &spec).map_err(|e| callable.trouble(e))?;
    let setup = crate::runner::frame::EntrySetup {
        inputs: prepared.inputs.clone(),
        arguments: prepared.wire.clone(),
        outputs: outputs.wire(),
        page_by_page: read_ahead.page_by_page(),
        resident: false,
        pooled: false,
    };
    runner.add_entry(&setup, &prepared.descriptors(outputs.descriptor())).map_err(|e| callable.trouble(e))?;
    let mut calls = Calls {
        task,
        prepared: &prepared,
        tolerances: &tolerances,
        outputs: &outputs,
        callable,
        checked: Checked::default(),
        wrong: None,
    };
    let watch = read_ahead.start();
    let ended = calls.drive(link, &mut runner)?;
    let reads = watch.stop();
    let checked = calls.checked;
    let death = runner.finish(link).map_err(|e| callable.trouble(e))?;
    let (failure, end) = match ended {
        Ended::Passed => (None, None),
        Ended::Failed(failure) => (Some(*failure), None),
        Ended::Died => {
            let Verdict { status, detail } = name_death(&death, &prepared);
            (Some(failure(Some(&prepared), &entry.name, status, detail)), kept(&death.report))
        }
    };
    let failure = failure.map(|failure| if doubt { unless_damaged(failure, &prepared) } else { failure });
    Ok(EntryOutcome {
        failure,
        check: checked,
        end,
        peak_owed: death.peak_owed,
        output_truncated: death.report.output_truncated,
        reads,
    })
}

/// Wrong values, and what a kernel does about wrong indices, may come from a damaged file; its CRCs tell.
pub(crate) fn unless_damaged(failure: EntryFailure, prepared: &Prepared) -> EntryFailure {
    let may_be_damage = matches!(
        failure.status,
        Status::IncorrectNumerical | Status::RuntimeError | Status::Crashed | Status::Timeout
    );
    if !may_be_damage {
        return failure;
    }
    match prepared.check_crcs() {
        Err(error) => EntryFailure {
            status: Status::CaptureError,
            detail: format!("{} (seen after the candidate ended as {})", chain(&error), failure.status),
            mismatch: None,
            ..failure
        },
        Ok(()) => failure,
    }
}

pub(crate) fn name_death(death: &Death, prepared: &Prepared) -> Verdict {
    let input = |index: u32| {
        let range = index as usize;
        prepared
            .wire
            .iter()
            .zip(&prepared.arguments)
            .find(|(wire, _)| {
                matches!(wire, crate::runner::frame::WireArgument::Tensor { range: r, .. } if *r as usize == range)
            })
            .map_or_else(|| format!("input {index}"), |(_, argument)| format!("the input `{}`", argument.path))
    };
    let output = |index: u32| {
        prepared
            .leaves
            .get(index as usize)
            .map_or_else(|| format!("output {index}"), |leaf| format!("the output `{}`", leaf.path))
    };
    classify::death(death, &Places { inputs: &input, outputs: &output })
}

enum Ended {
    Passed,
    Failed(Box<EntryFailure>),
    Died,
}

/// The calls of one entry.
struct Calls<'a> {
    task: &'a VerifyTask,
    prepared: &'a Prepared,
    /// Of every output.
    tolerances: &'a [Tolerance],
    outputs: &'a Outputs,
    callable: &'a Callable<'a>,
    checked: Checked,
    /// The judge's own line about the first wrong output.
    wrong: Option<String>,
}

/// What one call left in the outputs.
enum CallEnd {
    Right,
    Wrong(Box<Mismatch>),
    Over(Ended),
}

impl Calls<'_> {
    fn drive(&mut self, link: &mut Link, runner: &mut Runner) -> Result<Ended, Trouble> {
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
