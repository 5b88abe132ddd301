//! Defines the reports of all stages.
//!
//! A report has a head, which is the same for every stage, and a body, which depends on the stage. This module only
//! defines the types. The worker and the core decide which status an attempt gets.

mod build;
mod device;
mod failure;
mod head;
mod profile;
mod reads;
mod replay;
mod score;
mod status;
mod verify;

use serde::{Deserialize, Serialize};

pub use self::build::{Artifact, Built};
pub use self::device::{DevicePoint, EmulatedKernel, MemoryPoint, Traffic};
pub use self::failure::{EntryFailure, Mismatch, Pattern, RunnerEnd, ToleranceUsed};
pub use self::head::Head;
pub use self::profile::{CacheStateReached, DeviceTiming, EntryProfile, Estimate, Profiled, TimeSummary};
pub use self::reads::ReadReport;
pub use self::replay::{MAX_REPORTED_STEPS, ReplayResult, ReplayStep, Replayed};
pub use self::score::geometric_mean;
pub use self::status::{Blame, Status};
pub use self::verify::{OutputForm, Verified, WorstError};
use crate::stage::Stage;

/// The report with which an attempt at a stage ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub head: Head,
    pub body: Body,
}

/// The part of a report that depends on the stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Body {
    Build(Built),
    Verify(Verified),
    Profile(Profiled),
    Replay(Replayed),
}

impl Body {
    /// The body of an attempt without results.
    pub fn of_nothing(stage: Stage) -> Self {
        match stage {
            Stage::Build => Self::Build(Built::default()),
            Stage::Verify => Self::Verify(Verified::default()),
            Stage::Screen | Stage::Profile | Stage::Confirm => Self::Profile(Profiled::default()),
            Stage::Replay => Self::Replay(Replayed::default()),
        }
    }
}

impl Report {
    pub fn new(head: Head, body: Body) -> Self {
        Self { head, body }
    }

    /// The report of an attempt without results.
    pub fn failed(stage: Stage, status: Status, detail: impl Into<String>) -> Self {
        Self { head: Head::failed(status, detail), body: Body::of_nothing(stage) }
    }

    /// True if the baseline, not the candidate, failed.
    pub fn baseline_failed(&self) -> bool {
        matches!(&self.body, Body::Profile(profiled) if profiled.baseline_failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The channel's format is not self-describing, so enums whose deserialization needs lookahead cannot be sent over
    /// it.
    #[test]
    fn patterns_and_infinities_can_be_sent_over_the_channel() {
        let (sender, receiver) = ipc_channel::ipc::channel().expect("channel");
        let patterns = [
            Pattern::All,
            Pattern::Tail { from: 3 },
            Pattern::FromRow { row: 4 },
            Pattern::StillPoisoned,
            Pattern::Scattered,
        ];
        for pattern in patterns {
            for value in [1.5, f64::INFINITY, f64::NEG_INFINITY] {
                let sent = (pattern.clone(), Estimate { value, ci_low: 0.0, ci_high: -0.0 });
                sender.send(sent.clone()).expect("sends");
                assert_eq!(receiver.recv().expect("receives"), sent);
            }
        }
    }

    #[test]
    fn failed_report_of_every_stage_can_be_sent_and_stored() {
        let (sender, receiver) = ipc_channel::ipc::channel().expect("channel");
        for stage in Stage::ALL {
            let report = Report::failed(stage, Status::InfraError, "gone");
            sender.send(report.clone()).expect("sends");
            assert_eq!(receiver.recv().expect("receives"), report);
            let text = serde_json::to_string(&report).expect("a string");
            assert_eq!(serde_json::from_str::<Report>(&text).expect("a report"), report);
        }
    }
}
