//! Checks the laws of replays, using only the core's actions, and makes nonsensical reports of replays.

use std::collections::BTreeSet;

use opt_shared::ids::UnitId;
use opt_shared::outcome::{Body, Report, Status};
use opt_supervisor::core::event::{Action, AttemptEnd, Stage};
use opt_supervisor::core::testkit::reports;

/// Returns a nonsensical report: the replay passed without a result, or has a result although it did not pass.
pub(crate) fn nonsense_report(choice: u8) -> Report {
    let mut report = reports::report(Stage::Replay, Status::Passed);
    match choice % 3 {
        0 => report.body = Body::of_nothing(Stage::Replay),
        1 => report.head.status = Status::InfraError,
        _ => report.head.status = Status::CaptureError,
    }
    report
}

#[derive(Debug, Default)]
pub(crate) struct ReplayLaws {
    /// The units whose last attempt has a complete result.
    complete: BTreeSet<UnitId>,
    replays: BTreeSet<UnitId>,
}

impl ReplayLaws {
    pub(crate) fn action(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::Start { order, .. } if order.stage == Stage::Replay => {
                self.complete.remove(&order.unit);
                self.replays.insert(order.unit);
            }
            Action::AttemptEnded { order, ended: AttemptEnd::Accepted(report), .. }
                if order.stage == Stage::Replay =>
            {
                let Body::Replay(replayed) = &report.body else {
                    return Err(format!("{action:?}: that is not a replay's report"));
                };
                if (report.head.status == Status::Passed) != replayed.result.is_some() {
                    return Err(format!(
                        "{action:?}: it passed without a result, or has one although it did not pass"
                    ));
                }
                if replayed.result.is_some() {
                    self.complete.insert(order.unit);
                }
            }
            Action::UnitDone { unit, status, .. }
                if self.replays.contains(unit)
                    && (*status == Status::Passed) != self.complete.contains(unit) =>
            {
                return Err(format!("{action:?}, but only a replay with a complete result passes"));
            }
            _ => {}
        }
        Ok(())
    }
}
