//! Verification: every entry in a runner of its own, every output compared with what was recorded.
//!
//! Owns the order of entries and what a failing one is blamed on; while one is called, the next is opened (`opened`). The
//! calls of an entry are `calls`', the comparison is the judge's; expected outputs are read by this process, in chunks, and
//! never reach a runner.

mod calls;
mod opened;

use opt_shared::capture::CaptureError;
use opt_shared::causes::chain;
use opt_shared::ids::LeaseId;
use opt_shared::message::{FromWorker, VerifyTask};
use opt_shared::outcome::{EntryFailure, Head, ReadReport, RunnerEnd, Status, Verified, WorstError};
use opt_shared::units::Bytes;

use self::calls::{Calls, Ended};
use self::opened::{Opened, Ready};
use crate::attempt::{Callable, Trouble, kept};
use crate::classify::{self, Places, Verdict};
use crate::executor::outputs::{Outputs, SlotLayout};
use crate::executor::prepare::{PrepareError, Prepared};
use crate::executor::process::{Death, Runner};
use crate::executor::read_ahead::{Expected, Whole};
use crate::executor::residue::Residue;
use crate::link::Link;

/// Failures that a report holds in full (DESIGN, "The run directory").
const KEPT_FAILURES: usize = 3;
/// Failing entries whose data is read once more to see whether they are damaged: those that a report shows. More would
/// cost a pass over the captures for every bad candidate.
const CHECKED_FAILURES: u32 = 3;

pub(crate) fn run(
    link: &mut Link,
    lease: LeaseId,
    task: &VerifyTask,
    head: &mut Head,
) -> Result<Verified, Trouble> {
    let callable = Callable::open(&task.callee)?;
    let mut report = Verified::default();
    let mut failed = 0;
    let total = u32::try_from(task.entries.len()).unwrap_or(u32::MAX);
    let mut next: Option<Opened> = None;
    let mut whole = Whole::default();
    // Of the entry before: its runner is dead, and what it brought in goes while the next one is called.
    let mut over: Option<Residue> = None;
    for (at, entry) in task.entries.iter().enumerate() {
        report.entries_run += 1;
        let expected = |turn| Expected { whole: whole.clone(), turn };
        let mut opened = next.take().unwrap_or_else(|| Opened::open(task, entry, expected(None)));
        let turn = opened.ready.as_mut().ok().and_then(|ready| ready.watch.take_turn());
        let doubt = failed < CHECKED_FAILURES;
        let follows = task.entries.get(at + 1).filter(|next| opened.may_be_beside(next));
        let (outcome, released) = std::thread::scope(|scope| {
            let beside = |name: &str| std::thread::Builder::new().name(name.to_owned());
            // A thread that cannot be started, or panicked: its work is done in turn, or the page cache stays fuller.
            let residue = over.take();
            let release = residue.map(|it| beside("release").spawn_scoped(scope, || it.release()));
            let ahead = follows.map(|next| {
                let expected = expected(turn);
                beside("opener").spawn_scoped(scope, || Opened::ahead(task, next, expected))
            });
            let outcome = one_entry(link, lease, task, &callable, opened, doubt);
            next = ahead.and_then(|thread| thread.ok()?.join().ok().flatten());
            (outcome, release.and_then(|thread| thread.ok()?.join().ok()))
        });
        let outcome = outcome?;
        report.reads.absorb(&released.unwrap_or_default());
        (over, whole) = (Some(outcome.residue), outcome.whole);
        report.bytes_validated += entry.numbers.file;
        head.saw(outcome.peak_owed);
        head.output_truncated |= outcome.output_truncated;
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
                    head.end = outcome.end;
                    head.fail(failure);
                } else if head.failures.len() < KEPT_FAILURES {
                    head.failures.push(failure);
                }
                failed += 1;
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
    // Opened, and not called any more: the disk may still be bringing what was asked for.
    if let Some(Opened { ready, residue, .. }) = next {
        drop(ready);
        report.reads.absorb(&residue.release());
    }
    report.reads.absorb(&over.map(Residue::release).unwrap_or_default());
    if failed == 0 && 0 < report.entries_unsupported {
        head.end_as(
            Status::Unsupported,
            format!(
                "{} of {} entries are not supported by this candidate (set `partial = true` to rank it on the others)",
                report.entries_unsupported, report.entries_run
            ),
        );
    }
    Ok(report)
}

struct EntryOutcome {
    failure: Option<EntryFailure>,
    check: Checked,
    end: Option<RunnerEnd>,
    peak_owed: Bytes,
    output_truncated: bool,
    reads: ReadReport,
    whole: Whole,
    residue: Residue,
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

/// One entry, of which nothing is mapped any more when it returns.
fn one_entry(
    link: &mut Link,
    lease: LeaseId,
    task: &VerifyTask,
    callable: &Callable<'_>,
    opened: Opened,
    doubt: bool,
) -> Result<EntryOutcome, Trouble> {
    let Opened { name, ready, residue } = opened;
    let ready = ready.and_then(|ready| Ok((ready.prepared.tolerances(&task.verify)?, ready)));
    let (tolerances, Ready { prepared, watch, page_by_page }) = match ready {
        Ok(ready) => ready,
        Err(error) => {
            let error = error.of_the_capture(&name)?;
            let failure = failure(None, &name, Status::CaptureError, chain(&error));
            return Ok(EntryOutcome {
                failure: Some(failure),
                check: Checked::default(),
                end: None,
                peak_owed: Bytes::ZERO,
                output_truncated: false,
                reads: ReadReport::default(),
                whole: Whole::default(),
                residue,
            });
        }
    };
    let io = |source| Trouble::Outputs { entry: name.clone(), source };
    let outputs = Outputs::create(&prepared.leaves, SlotLayout::AgainstGuards).map_err(|e| io(e.into()))?;
    let spec = callable.spec(lease, &[&prepared], outputs.memfd_bytes(), Bytes::ZERO);
    let mut runner = Runner::start(link, &spec).map_err(|e| callable.trouble(e))?;
    let setup = crate::runner::frame::EntrySetup {
        inputs: prepared.inputs.clone(),
        arguments: prepared.wire.clone(),
        outputs: outputs.wire(),
        page_by_page,
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
    watch.runs_in(runner.pid());
    let ended = calls.drive(link, &mut runner)?;
    let (reads, whole) = watch.stop_and_learn();
    let checked = calls.checked;
    let death = runner.finish(link).map_err(|e| callable.trouble(e))?;
    let (failure, end) = match ended {
        Ended::Passed => (None, None),
        Ended::Failed(failure) => (Some(*failure), None),
        Ended::Died => {
            let Verdict { status, detail } = name_death(&death, &prepared);
            (Some(failure(Some(&prepared), &name, status, detail)), kept(&death.report))
        }
    };
    let failure = match failure {
        Some(failure) if doubt => Some(unless_damaged(failure, &prepared, || Ok(()))?),
        failure => failure,
    };
    Ok(EntryOutcome {
        failure,
        check: checked,
        end,
        peak_owed: death.peak_owed,
        output_truncated: death.report.output_truncated,
        reads,
        whole,
        residue,
    })
}

/// Wrong values, and what a kernel does about wrong indices, may come from a damaged file; its CRCs tell. Where the machine
/// lacks the means to ask them, nobody is blamed. `elsewhere`: those of other captures that the call used.
pub(crate) fn unless_damaged(
    failure: EntryFailure,
    prepared: &Prepared,
    elsewhere: impl FnOnce() -> Result<(), CaptureError>,
) -> Result<EntryFailure, Trouble> {
    let may_be_damage = matches!(
        failure.status,
        Status::IncorrectNumerical | Status::RuntimeError | Status::Crashed | Status::Timeout
    );
    if !may_be_damage {
        return Ok(failure);
    }
    let Err(source) = prepared.check_crcs().and_then(|()| elsewhere()) else { return Ok(failure) };
    let (name, cause) = (prepared.name.clone(), chain(&source));
    PrepareError::Capture { name, source }.of_the_capture(&prepared.name)?;
    Ok(EntryFailure {
        status: Status::CaptureError,
        detail: format!("{cause} (seen after the candidate ended as {})", failure.status),
        mismatch: None,
        ..failure
    })
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
