//! Defines the head of a report, which is the part that all stages have in common.

use serde::{Deserialize, Serialize};

use super::{Blame, EntryFailure, RunnerEnd, Status};
use crate::room::Room;
use crate::units::Bytes;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub status: Status,
    /// One line for people that says what happened.
    pub detail: String,
    /// The entries that failed. The first one determines the status. A verification reports at most three of them,
    /// other stages at most one, and a build none.
    pub failures: Vec<EntryFailure>,
    /// The death of the runner that determined the status.
    pub end: Option<RunnerEnd>,
    /// The largest amount of owed memory that the worker observed for a runner or compiler. `None` if nothing ran, or
    /// if Linux did not report a value.
    pub peak_owed: Option<Bytes>,
    #[serde(with = "crate::nonfinite")]
    pub ms: f64,
    /// True if a process printed as much as can be kept or more, so some of the output may be missing.
    pub output_truncated: bool,
    /// The blame, if it differs from the one that the status usually implies. For example, the device and not the
    /// candidate is to blame if the device lacks a feature that the candidate uses.
    pub blamed: Option<Blame>,
    /// True if the context of the worker's device failed. The worker cannot create another context, so the worker must
    /// be replaced.
    pub context_lost: bool,
    /// The room on the disk, measured right after a build failed for a reason other than its source. Its field `pids`
    /// is 0 if the machine refused to start a process or thread for the attempt.
    pub room: Option<Room>,
}

impl Head {
    pub fn passed() -> Self {
        Self::failed(Status::Passed, "")
    }

    /// The head of an attempt without results: it has no failing entry and no measurements.
    pub fn failed(status: Status, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            failures: Vec::new(),
            end: None,
            peak_owed: None,
            ms: 0.0,
            output_truncated: false,
            blamed: None,
            context_lost: false,
            room: None,
        }
    }

    /// The blame for the attempt's end.
    pub fn blame(&self) -> Option<Blame> {
        self.blamed.or(self.status.blame())
    }

    /// Sets the status and the detail, and changes nothing else.
    pub fn end_as(&mut self, status: Status, detail: impl Into<String>) {
        (self.status, self.detail) = (status, detail.into());
    }

    /// Adds the failed entry that determines the status.
    pub fn fail(&mut self, failure: EntryFailure) {
        self.end_as(failure.status, format!("{}: {}", failure.entry, failure.detail));
        self.failures.push(failure);
    }

    /// Takes the peak of one more process into account. A peak of zero means that the peak is unknown, because every
    /// process that ran has owed some memory.
    pub fn record_peak(&mut self, peak: Bytes) {
        self.peak_owed = self.peak_owed.max((peak != Bytes::ZERO).then_some(peak));
    }

    /// The entry that determined the status.
    pub fn failed_entry(&self) -> Option<&str> {
        self.failures.first().map(|failure| failure.entry.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_peak_never_hides_a_known_one() {
        let mut head = Head::passed();
        head.record_peak(Bytes::ZERO);
        assert_eq!(head.peak_owed, None);
        for (seen, highest) in [(5, 5), (0, 5), (3, 5), (9, 9)] {
            head.record_peak(Bytes::new(seen));
            assert_eq!(head.peak_owed, Some(Bytes::new(highest)));
        }
    }

    #[test]
    fn failing_entry_determines_status_and_detail() {
        let mut head = Head::passed();
        head.record_peak(Bytes::new(7));
        let failure = EntryFailure {
            entry: "entry_000001".to_owned(),
            status: Status::Timeout,
            detail: "the call took too long".to_owned(),
            args: Vec::new(),
            mismatch: None,
        };
        head.fail(failure.clone());
        assert_eq!(
            (head.status, head.detail.as_str()),
            (Status::Timeout, "entry_000001: the call took too long")
        );
        assert_eq!(
            (head.failures.as_slice(), head.failed_entry()),
            ([failure].as_slice(), Some("entry_000001"))
        );
        assert_eq!(head.peak_owed, Some(Bytes::new(7)));
    }
}
