//! Derives the failure of an entry from the result of a call. All stages use these rules.

use opt_shared::capture::CaptureError;
use opt_shared::causes::chain;
use opt_shared::language::Launcher;
use opt_shared::outcome::{EntryFailure, Status};

use crate::recorded::{Recorded, RecordedError};
use crate::session::{Called, InputFault, SessionError, UNSUPPORTED, Verdict};

/// The kind of a call. It determines which status a failed call leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    Verified,
    Planned,
    /// A timed call. The candidate supported the entry during verification, so refusing it now is an error.
    Timed,
    /// The plan call that precedes timed calls. It must succeed for the same reason.
    TimedPlan,
}

pub(crate) fn entry_failure(recorded: &Recorded, status: Status, detail: String) -> EntryFailure {
    EntryFailure { entry: recorded.name.clone(), status, detail, args: recorded.describe(), mismatch: None }
}

/// Returns the failure of an entry whose capture cannot be used. But if the machine is to blame, returns an error of
/// the worker.
pub(crate) fn capture_failure(entry: &str, fault: InputFault) -> Result<EntryFailure, SessionError> {
    let fault = fault.of_the_capture(entry)?;
    Ok(EntryFailure {
        entry: entry.to_owned(),
        status: Status::CaptureError,
        detail: chain(&fault),
        args: Vec::new(),
        mismatch: None,
    })
}

/// Returns the verdict on calls that failed, or `None` if all `asked` calls were made and succeeded.
pub(crate) fn verdict_of_calls(called: &Called, asked: u32, kind: CallKind) -> Option<Verdict> {
    let verdict = |status, detail| Some(Verdict { status, detail });
    if called.returned_value {
        return verdict(
            Status::RuntimeError,
            "a value was returned through `ret`: write the result into the output tensors that are passed"
                .to_owned(),
        );
    }
    let is_timed = matches!(kind, CallKind::Timed | CallKind::TimedPlan);
    let what = match kind {
        CallKind::Verified => "the call",
        CallKind::Planned | CallKind::TimedPlan => "the plan call",
        CallKind::Timed => "a timed call",
    };
    match called.result {
        0 if called.calls_done == asked => None,
        0 if asked == 1 => verdict(Status::RuntimeError, format!("{what} was not made")),
        0 => verdict(
            Status::RuntimeError,
            format!("{} of {asked} calls of a block were made", called.calls_done),
        ),
        UNSUPPORTED if !is_timed => verdict(
            Status::Unsupported,
            format!("the candidate does not support this entry (it returned {UNSUPPORTED})"),
        ),
        _ if let Some((status, text)) = called.raised.as_deref().and_then(named) => match status {
            Status::Unsupported if is_timed => verdict(
                Status::RuntimeError,
                format!("{what} claimed not to support this entry, which passed verification: {text}"),
            ),
            // The candidate passed verification with this entry, so it is not deterministic.
            Status::IncorrectNumerical if is_timed => {
                verdict(Status::Nondeterministic, format!("verified, then wrong in {what}: {text}"))
            }
            _ => verdict(status, text.to_owned()),
        },
        code => {
            let raised = called.raised.as_ref().map_or(String::new(), |text| format!(": {text}"));
            verdict(Status::RuntimeError, format!("{what} returned {code} (0 means done){raised}"))
        }
    }
}

/// Splits an error text into the status that its prefix stands for and the rest of the text. The worker's glue code
/// writes these prefixes. A candidate could write one too, but would gain nothing, because no prefix stands for a
/// success.
fn named(raised: &str) -> Option<(Status, &str)> {
    NAMED.iter().find_map(|(prefix, status)| Some((*status, raised.strip_prefix(prefix)?)))
}

/// Returns true if an entry is unsupported because the emulated device or the launch recorder lacks a feature, rather
/// than because the candidate refuses the entry. `detail` shows this by naming one of them. If the candidate uses neither,
/// it must have forged this text, which is then ignored.
pub(crate) fn device_lacks_a_feature(launcher: Launcher, detail: &str) -> bool {
    let names_a_device =
        ["the emulated device", "the launch recorder"].iter().any(|name| detail.contains(name));
    (launcher.has_cuda_runtime() || launcher == Launcher::Kernel) && names_a_device
}

pub(crate) fn verdict_of_refusal(text: String) -> Verdict {
    match named(&text) {
        Some((status, text)) => Verdict { status, detail: text.to_owned() },
        None => Verdict { status: Status::LoadError, detail: text },
    }
}

/// The prefixes of error texts, and the statuses that they name.
const NAMED: [(&str, Status); 11] = [
    ("opt.Raised: ", Status::RuntimeError),
    ("opt.IncorrectShape: ", Status::IncorrectShape),
    ("opt.IncorrectDtype: ", Status::IncorrectDtype),
    ("opt.IncorrectNumerical: ", Status::IncorrectNumerical),
    ("opt.HostMemory: ", Status::HostMemoryLimit),
    ("opt.OutOfBounds: ", Status::OutOfBounds),
    ("opt.InputMutated: ", Status::InputMutated),
    ("opt.Timeout: ", Status::Timeout),
    ("opt.Nondeterministic: ", Status::Nondeterministic),
    ("opt.Crashed: ", Status::Crashed),
    ("opt.Unsupported: ", Status::Unsupported),
];

/// Returns true if this status may have been caused by Linux refusing to create a process or thread. Wrong outputs and
/// stray writes have other causes.
pub(crate) fn may_be_a_refused_task(status: Status) -> bool {
    matches!(status, Status::Crashed | Status::LoadError | Status::RuntimeError | Status::Timeout)
}

/// Returns `failure`, or a failure that blames the host if the candidate may have failed because Linux refused it a
/// process or thread that its own limit allows.
pub(crate) fn unless_tasks_were_refused(failure: EntryFailure, tasks_refused: bool) -> EntryFailure {
    if !tasks_refused || !may_be_a_refused_task(failure.status) {
        return failure;
    }
    let detail = format!(
        "{}; meanwhile, a control group that contains this run was at its limit of processes (`pids.max`)",
        failure.detail
    );
    EntryFailure { status: Status::InfraError, detail, ..failure }
}

/// Returns `failure`, or a failure that blames the capture if the file's identity and CRCs show that the capture is
/// damaged. A file that is damaged or being overwritten can cause nearly every kind of failure. For example, a scatter
/// kernel that reads wrong indices leaves elements unwritten, or writes outside its output. If the machine lacks the
/// resources for this check, the host is to blame. `elsewhere` checks other captures that the call used.
pub(crate) fn unless_damaged(
    failure: EntryFailure,
    recorded: &Recorded,
    elsewhere: impl FnOnce() -> Result<(), CaptureError>,
) -> Result<EntryFailure, SessionError> {
    // These two statuses need no check. A candidate usually decides by an entry's shapes whether it supports the entry,
    // so damaged values make no difference. `CaptureError` already blames the capture.
    if matches!(failure.status, Status::Unsupported | Status::CaptureError) {
        return Ok(failure);
    }
    let fault = match recorded.check_unchanged() {
        Err(changed) => changed,
        Ok(()) => match recorded.check_crcs().and_then(|()| elsewhere()) {
            Err(source) => RecordedError::Capture { name: recorded.name.clone(), source },
            Ok(()) => return Ok(failure),
        },
    };
    let cause = chain(&fault);
    InputFault::from(fault).of_the_capture(&recorded.name)?;
    Ok(EntryFailure {
        status: Status::CaptureError,
        detail: format!("{cause} (seen after the candidate ended as {})", failure.status),
        mismatch: None,
        ..failure
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_tasks_excuse_only_failures_that_they_may_have_caused() {
        for (status, excused) in [
            (Status::Crashed, true),
            (Status::LoadError, true),
            (Status::RuntimeError, true),
            (Status::Timeout, true),
            (Status::IncorrectNumerical, false),
            (Status::InputMutated, false),
            (Status::HostMemoryLimit, false),
            (Status::InfraError, false),
        ] {
            let failure = || EntryFailure {
                entry: "entry_000001".to_owned(),
                status,
                detail: "it ended".to_owned(),
                args: Vec::new(),
                mismatch: None,
            };
            assert_eq!(unless_tasks_were_refused(failure(), false).status, status);
            let EntryFailure { status: seen, detail, .. } = unless_tasks_were_refused(failure(), true);
            assert_eq!(seen, if excused { Status::InfraError } else { status });
            assert_eq!(detail.contains("pids.max"), excused, "{detail}");
        }
    }

    #[test]
    fn every_result_of_a_call_has_its_verdict() {
        let done = |calls_done| Called { calls_done, ..Called::default() };
        let code = |result| Called { result, raised: Some("only float32".to_owned()), ..Called::default() };
        let raised = |text: &str| Called { result: 1, raised: Some(text.to_owned()), ..Called::default() };
        let returned = Called { returned_value: true, ..done(1) };
        for (called, asked, calls, expected) in [
            (done(1), 1, CallKind::Verified, None),
            (done(500), 500, CallKind::Timed, None),
            (done(0), 1, CallKind::Verified, Some((Status::RuntimeError, "the call was not made"))),
            (done(0), 1, CallKind::Planned, Some((Status::RuntimeError, "the plan call was not made"))),
            (done(7), 8, CallKind::Timed, Some((Status::RuntimeError, "7 of 8 calls of a block were made"))),
            (done(9), 8, CallKind::Timed, Some((Status::RuntimeError, "9 of 8 calls of a block were made"))),
            (
                code(-2),
                1,
                CallKind::Verified,
                Some((Status::Unsupported, "the candidate does not support this entry (it returned -2)")),
            ),
            (
                code(-2),
                1,
                CallKind::Planned,
                Some((Status::Unsupported, "the candidate does not support this entry (it returned -2)")),
            ),
            // The candidate supported the entry during verification, so its refusal is an error here.
            (
                code(-2),
                1,
                CallKind::TimedPlan,
                Some((Status::RuntimeError, "the plan call returned -2 (0 means done): only float32")),
            ),
            (
                code(-2),
                8,
                CallKind::Timed,
                Some((Status::RuntimeError, "a timed call returned -2 (0 means done): only float32")),
            ),
            (
                code(3),
                1,
                CallKind::Planned,
                Some((Status::RuntimeError, "the plan call returned 3 (0 means done): only float32")),
            ),
            (
                raised("opt.Raised: ValueError: no"),
                8,
                CallKind::Timed,
                Some((Status::RuntimeError, "ValueError: no")),
            ),
            (
                raised("opt.Unsupported: only float32"),
                1,
                CallKind::Planned,
                Some((Status::Unsupported, "only float32")),
            ),
            (
                raised("opt.Unsupported: only float32"),
                8,
                CallKind::Timed,
                Some((
                    Status::RuntimeError,
                    "a timed call claimed not to support this entry, which passed verification: only float32",
                )),
            ),
            (
                raised("opt.IncorrectNumerical: `output` differs"),
                8,
                CallKind::Timed,
                Some((Status::Nondeterministic, "verified, then wrong in a timed call: `output` differs")),
            ),
            (
                raised("opt.IncorrectShape: `output` is short"),
                1,
                CallKind::Verified,
                Some((Status::IncorrectShape, "`output` is short")),
            ),
            (
                raised("opt.OutOfBounds: one too far"),
                1,
                CallKind::Verified,
                Some((Status::OutOfBounds, "one too far")),
            ),
            (
                returned,
                1,
                CallKind::Verified,
                Some((
                    Status::RuntimeError,
                    "a value was returned through `ret`: write the result into the output tensors that are passed",
                )),
            ),
        ] {
            let verdict = verdict_of_calls(&called, asked, calls);
            let found = verdict.as_ref().map(|verdict| (verdict.status, verdict.detail.as_str()));
            assert_eq!(found, expected, "{called:?} {calls:?}");
        }
    }
}
