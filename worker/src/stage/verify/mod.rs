//! Verifies a candidate: calls it with every entry, and compares every output with the recorded one.
//!
//! This file decides who is to blame for a failure, and which entries are repeated in a separate session. The backend
//! groups entries into sessions, `entry` makes the calls of an entry, and the judge compares outputs. Only this process
//! reads the expected outputs, in chunks. Candidates never get them.

mod entry;
#[cfg(test)]
mod tests;

use std::time::Instant;

use opt_shared::formula::load_timeout;
use opt_shared::message::VerifyTask;
use opt_shared::outcome::{Blame, EntryFailure, Head, OutputForm, RunnerEnd, Status, Verified, WorstError};

use super::calls::{Checked, EntryCalls, EntryEnd};
use super::failure::{
    self, capture_failure, entry_failure, unless_damaged, unless_tasks_were_refused, verdict_of_refusal,
};
use super::{Progress, informative_end, printed};
use crate::judge::Tolerance;
use crate::recorded::Recorded;
use crate::session::{
    Answer, Backend, Ending, Group, InputFault, Loaded, Session, SessionError, Sharing, Verdict, Wanted,
};

/// The maximum number of failures that a report contains in full.
const KEPT_FAILURES: usize = 3;
/// The number of failing entries whose captures are read once more to detect damage. These are the entries whose
/// failures a report contains.
const CHECKED_FAILURES: u32 = 3;

/// Verifies a candidate. Records its failures in `head`.
pub(crate) fn run<B: Backend>(
    backend: &B,
    progress: Progress<'_>,
    task: &VerifyTask,
    head: &mut Head,
) -> Result<Verified, SessionError> {
    let wanted = Wanted {
        callee: &task.callee,
        entries: &task.entries,
        sharing: Sharing::UpTo { cap: task.shared_runner },
        drop_cache: task.drop_cache,
    };
    // Creating the groups first lets the first entries be opened in the background while the artifact is opened.
    let mut groups = backend.groups(&wanted)?;
    let candidate = backend.open(&task.callee)?;
    backend.prepare(&candidate);
    let mut verification = Verification {
        backend,
        progress,
        task,
        candidate: &candidate,
        head,
        report: Verified::default(),
        failed: 0,
        lacking: None,
    };
    while let Some(Group { range, placed }) = groups.next()? {
        let (enough, placed) = match placed {
            Ok(placed) => (verification.group(&placed, range.start)?, placed),
            Err((at, fault)) => (verification.record_unusable_entry(range.start + at, fault)?, Vec::new()),
        };
        groups.give_back(placed);
        if enough || !backend.can_start_sessions() {
            break;
        }
    }
    let Verification { failed, mut report, lacking, .. } = verification;
    report.reads = groups.finish();
    report.device = backend.device_points();
    report.emulated_kernels = backend.emulated_kernels();
    head.context_lost = !backend.can_start_sessions();
    if let Some(detail) = lacking.filter(|_| failed == 0) {
        head.end_as(Status::Unsupported, detail);
        head.blamed = Some(Blame::Host);
    } else if failed == 0 && 0 < report.entries_unsupported {
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

/// The result of a shared session.
struct Shared {
    /// The number of entries, from the first on, that need no separate session.
    settled: usize,
    /// True if enough entries have failed.
    enough: bool,
    /// The failure of the entry after the settled ones, if that entry failed. Before this failure is reported, the
    /// entry is repeated in a separate session.
    doubted: Option<Box<EntryFailure>>,
    /// What the candidate printed in the shared session.
    printed: Option<RunnerEnd>,
}

/// How the calls of an entry ended in a shared session.
enum SharedEnd {
    Settled(Box<Outcome>),
    Doubted(Box<EntryFailure>),
    Died,
}

/// Marks the failure of an entry that failed in a shared session but is right in a separate one. The candidate is to
/// blame, because the two sessions differ only in the other entries.
fn marked_order_dependent(mut failure: Box<EntryFailure>) -> Box<EntryFailure> {
    if matches!(failure.status, Status::IncorrectNumerical | Status::UnwrittenOutput) {
        failure.status = Status::Nondeterministic;
    }
    failure.detail = format!("right in a separate process, but not beside other entries: {}", failure.detail);
    failure
}

/// Returns true if an entry with this status would end in the same way in a separate session.
fn is_independent_of_session(status: Status) -> bool {
    matches!(status, Status::Unsupported | Status::CaptureError)
}

struct Verification<'a, B: Backend> {
    backend: &'a B,
    progress: Progress<'a>,
    task: &'a VerifyTask,
    candidate: &'a B::Candidate,
    head: &'a mut Head,
    report: Verified,
    /// The number of failed entries. Unsupported entries are not included.
    failed: u32,
    /// The name of the first entry that requires a feature which the device lacks, and a description of this feature.
    /// An entry that the candidate itself refuses, by returning a code, is ignored here.
    lacking: Option<String>,
}

type Started<'b> = (Box<dyn Session + 'b>, Answer<Loaded>);

#[derive(Default)]
struct Outcome {
    failure: Option<EntryFailure>,
    end: Option<RunnerEnd>,
    checked: Checked,
}

impl<'a, B: Backend> Verification<'a, B> {
    /// Records an entry whose capture cannot be used. Returns true if enough entries have failed.
    fn record_unusable_entry(&mut self, at: usize, fault: InputFault) -> Result<bool, SessionError> {
        let failure = Some(capture_failure(&self.task.entries[at].name, fault)?);
        Ok(self.record_outcome(at, Outcome { failure, ..Outcome::default() }))
    }

    /// Verifies entries that share a session. `first` is the index of the first of them among all entries. Returns true
    /// if enough entries have failed.
    fn group(&mut self, placed: &[B::Placed], first: usize) -> Result<bool, SessionError> {
        let mut settled = 0;
        let (mut doubted, mut printed) = (None, None);
        if 1 < placed.len() {
            let shared = self.run_shared_session(placed, first)?;
            if shared.enough {
                return Ok(true);
            }
            (settled, doubted, printed) = (shared.settled, shared.doubted, shared.printed);
        }
        for (at, entry) in placed.iter().enumerate().skip(settled) {
            let mut outcome = self.run_separate_session(entry)?;
            // The shared session stopped at the first of these entries, so only this one may have a doubted failure.
            if let Some(doubted) = doubted.take().filter(|_| outcome.failure.is_none()) {
                outcome.failure = Some(*marked_order_dependent(doubted));
                outcome.end = printed.take();
            }
            if self.record_outcome(first + at, outcome) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Calls several entries in one session. Stops at the first entry that might have a different result in a separate
    /// session.
    fn run_shared_session(&mut self, placed: &[B::Placed], first: usize) -> Result<Shared, SessionError> {
        let (mut session, loaded) = self.start_session(placed)?;
        let mut shared = Shared { settled: 0, enough: false, doubted: None, printed: None };
        let mut died = loaded == Answer::Died;
        if let Answer::Done(Loaded::Ready { has_plan, returned }) = loaded {
            self.record_returned(returned);
            for (at, entry) in placed.iter().enumerate() {
                let outcome =
                    match self.call_in_shared_session(&mut *session, at, entry.as_ref(), has_plan)? {
                        SharedEnd::Settled(outcome) => *outcome,
                        SharedEnd::Doubted(failure) => {
                            shared.doubted = Some(failure);
                            break;
                        }
                        SharedEnd::Died => {
                            died = true;
                            break;
                        }
                    };
                shared.settled += 1;
                shared.enough = self.record_outcome(first + at, outcome);
                if shared.enough {
                    break;
                }
            }
        }
        let ending = session.finish()?;
        self.record_ending(&ending);
        shared.printed = printed(ending.end.clone());
        // If the entry may have failed because Linux refused a process, its failure in the shared session is ignored.
        shared.doubted.take_if(|doubt| ending.tasks_refused && failure::may_be_a_refused_task(doubt.status));
        // If the host is to blame, the entry is not repeated in a separate session. The supervisor decides what to do
        // next.
        if died && ending.verdict.status == Status::InfraError {
            let Verdict { status, detail } = ending.verdict;
            let failure = Some(entry_failure(placed[shared.settled].as_ref(), status, detail));
            let outcome = Outcome { failure, end: informative_end(ending.end), checked: Checked::default() };
            shared.enough = self.record_outcome(first + shared.settled, outcome);
            shared.settled += 1;
        }
        Ok(shared)
    }

    fn call_in_shared_session(
        &mut self,
        session: &mut dyn Session,
        at: usize,
        recorded: &Recorded,
        has_plan: bool,
    ) -> Result<SharedEnd, SessionError> {
        let tolerances = match self.tolerances(recorded)? {
            Ok(tolerances) => tolerances,
            Err(outcome) => return Ok(SharedEnd::Settled(Box::new(outcome))),
        };
        let mut calls = EntryCalls::new(&self.task.verify, recorded, &tolerances, at);
        let over = entry::drive(&mut calls, session, has_plan)?;
        let (checked, returned) = (calls.checked, calls.returned_outputs);
        self.record_returned(returned);
        Ok(match over {
            None => SharedEnd::Settled(Box::new(Outcome { checked, ..Outcome::default() })),
            Some(EntryEnd::Failed(failure)) if is_independent_of_session(failure.status) => {
                SharedEnd::Settled(Box::new(Outcome { failure: Some(*failure), end: None, checked }))
            }
            Some(EntryEnd::Failed(failure)) => SharedEnd::Doubted(failure),
            Some(EntryEnd::Died) => SharedEnd::Died,
        })
    }

    fn start_session<'b>(&mut self, placed: &'b [B::Placed]) -> Result<Started<'b>, SessionError>
    where
        'a: 'b,
    {
        let began = Instant::now();
        let mut session = self.backend.start(self.candidate, placed)?;
        self.backend.make_ahead(self.candidate);
        let loaded = session.load(load_timeout(self.task.verify.call_timeout))?;
        self.report.start_ms = self.report.start_ms.max(began.elapsed().as_secs_f64() * 1e3);
        Ok((session, loaded))
    }

    fn run_separate_session(&mut self, entry: &B::Placed) -> Result<Outcome, SessionError> {
        let recorded: &Recorded = entry.as_ref();
        let tolerances = match self.tolerances(recorded)? {
            Ok(tolerances) => tolerances,
            Err(outcome) => return Ok(outcome),
        };
        let alone = std::slice::from_ref(entry);
        let (mut session, loaded) = self.start_session(alone)?;
        let mut calls = EntryCalls::new(&self.task.verify, recorded, &tolerances, 0);
        let over = match loaded {
            Answer::Done(Loaded::Ready { has_plan, returned }) => {
                self.record_returned(returned);
                entry::drive(&mut calls, &mut *session, has_plan)?
            }
            Answer::Done(Loaded::Refused { text }) => {
                let Verdict { status, detail } = verdict_of_refusal(text);
                Some(EntryEnd::Failed(Box::new(entry_failure(recorded, status, detail))))
            }
            Answer::Died => Some(EntryEnd::Died),
        };
        let (checked, returned) = (calls.checked, calls.returned_outputs);
        self.record_returned(returned);
        let ending = session.finish()?;
        self.record_ending(&ending);
        let (failure, end) = match over {
            None => (None, None),
            Some(EntryEnd::Failed(failure)) => (Some(*failure), printed(ending.end)),
            Some(EntryEnd::Died) => {
                let Verdict { status, detail } = ending.verdict;
                if status == Status::Unsupported {
                    self.lacking.get_or_insert_with(|| format!("{}: {detail}", recorded.name));
                }
                (Some(entry_failure(recorded, status, detail)), informative_end(ending.end))
            }
        };
        let failure = failure.map(|failure| unless_tasks_were_refused(failure, ending.tasks_refused));
        let failure = match failure {
            Some(failure) if self.failed < CHECKED_FAILURES => {
                Some(unless_damaged(failure, recorded, || Ok(()))?)
            }
            failure => failure,
        };
        Ok(Outcome { failure, end, checked })
    }

    /// Returns the tolerance of each output, or the entry's outcome if its recorded outputs cannot be read.
    fn tolerances(&self, recorded: &Recorded) -> Result<Result<Vec<Tolerance>, Outcome>, SessionError> {
        match recorded.tolerances(&self.task.verify) {
            Ok(tolerances) => Ok(Ok(tolerances)),
            Err(error) => {
                let failure = Some(capture_failure(&recorded.name, error.into())?);
                Ok(Err(Outcome { failure, ..Outcome::default() }))
            }
        }
    }

    fn record_returned(&mut self, returned: bool) {
        if returned {
            self.report.output = OutputForm::Returned;
        }
    }

    /// Records a session's peak memory, and whether its process's output was cut off.
    fn record_ending(&mut self, ending: &Ending) {
        self.head.record_peak(ending.peak_owed);
        self.head.output_truncated |= ending.end.output_truncated;
    }

    /// Adds an entry to the report. Returns true if enough entries have failed.
    fn record_outcome(&mut self, at: usize, outcome: Outcome) -> bool {
        let entry = &self.task.entries[at];
        let report = &mut self.report;
        report.entries_run += 1;
        report.bytes_validated += entry.numbers.file;
        let Checked { max_absolute_error, max_relative_error, worst } = outcome.checked;
        report.max_absolute_error = report.max_absolute_error.max(max_absolute_error);
        report.max_relative_error = report.max_relative_error.max(max_relative_error);
        if let Some((output, relative_l2)) = worst
            && report.worst.as_ref().is_none_or(|worst| worst.relative_l2 < relative_l2)
        {
            report.worst = Some(WorstError { entry: entry.name.clone(), output, relative_l2 });
        }
        match outcome.failure {
            None => report.entries_passed += 1,
            Some(failure) if failure.status == Status::Unsupported => {
                if failure::device_lacks_a_feature(self.task.callee.launcher, &failure.detail) {
                    self.lacking.get_or_insert_with(|| format!("{}: {}", failure.entry, failure.detail));
                }
                report.entries_unsupported += 1;
                report.unsupported.push(entry.id);
            }
            Some(failure) => {
                if self.failed == 0 {
                    self.head.end = outcome.end;
                    self.head.fail(failure);
                } else if self.head.failures.len() < KEPT_FAILURES {
                    self.head.failures.push(failure);
                }
                self.failed += 1;
            }
        }
        let total = u32::try_from(self.task.entries.len()).unwrap_or(u32::MAX);
        (self.progress)(self.report.entries_run, total, self.report.bytes_validated);
        self.task.verify.stop_after != 0 && self.task.verify.stop_after <= self.failed
    }
}
