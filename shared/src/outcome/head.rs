//! The part of a report that is the same for all stages.

use serde::{Deserialize, Serialize};

use super::{Blame, EntryFailure, RunnerEnd, Status};
use crate::room::Room;
use crate::units::Bytes;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub status: Status,
    /// One line for people that says what happened.
    pub detail: String,
    /// Failing entries; the first one determines the status. A verification keeps up to three of them, other stages
    /// keep one, and a build has none.
    pub failures: Vec<EntryFailure>,
    /// The death of the runner that determined the status.
    pub end: Option<RunnerEnd>,
    /// Highest owed memory of a runner or compiler that the worker observed. `None` if nothing ran, or if Linux did
    /// not report a value.
    pub peak_owed: Option<Bytes>,
    #[serde(with = "crate::nonfinite")]
    pub ms: f64,
    /// True if the output of a process filled the room for it. Some output may then be lost.
    pub output_truncated: bool,
    /// The blame if it does not follow from the status. For example, a device may lack a feature that the candidate
    /// uses.
    pub blamed: Option<Blame>,
    /// True if the context of the worker's device failed. The worker cannot create another and must be replaced.
    pub context_lost: bool,
    /// The room on the disk, read right after a build failed for a reason other than its source. `pids` is 0 if the
    /// machine refused a process or thread to the attempt.
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

    /// Takes the peak of one more process into account. A process that ran owed something, so zero means unknown.
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
