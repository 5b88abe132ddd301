//! Checks the law about attempts for which the machine refused to start a process: they are repeated after a pause in
//! which nothing starts.

use std::collections::BTreeMap;
use std::time::Duration;

use opt_shared::ids::UnitId;
use opt_supervisor::core::event::{Moment, PolicyRow};

use super::laws::number_of;

/// The shortest and the longest allowed pause.
const SHORTEST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);

/// The maximum number of attempts of a unit that do not count as losses: seven in each of the unit's two passes.
const MAX_UNCOUNTED: u32 = 14;

/// The state that is needed to check the law about pauses.
#[derive(Default)]
pub(crate) struct TaskLaws {
    pub(crate) now: Moment,
    /// The time before which nothing may start.
    until: Moment,
    /// The number of each unit's attempts for which the machine refused to start a process. The next field is the
    /// number of those after which a pause was announced.
    refused: BTreeMap<UnitId, u32>,
    repeated: BTreeMap<UnitId, u32>,
}

impl TaskLaws {
    pub(crate) fn refuse(&mut self, unit: UnitId) {
        *self.refused.entry(unit).or_default() += 1;
    }

    /// Checks a row of the policy log that announces a pause.
    pub(crate) fn pause(&mut self, row: &PolicyRow) -> Result<(), String> {
        let unit = number_of(row, "unit").and_then(|unit| u32::try_from(unit).ok()).map(UnitId);
        let pause = number_of(row, "pause_ms").map(Duration::from_millis);
        let (Some(unit), Some(pause)) = (unit, pause) else { return Err(format!("{row:?} lacks a number")) };
        if pause < SHORTEST || LONGEST < pause {
            return Err(format!("{row:?}: the pause is too short or too long"));
        }
        let repeated = self.repeated.entry(unit).or_default();
        *repeated += 1;
        if self.refused.get(&unit).is_none_or(|refused| refused < repeated) {
            return Err(format!("{row:?}, but {unit:?} was not refused a process that often"));
        }
        self.until = self.until.max(self.now + pause);
        Ok(())
    }

    pub(crate) fn may_start(&self) -> Result<(), String> {
        if self.now < self.until { Err(format!("nothing may start before {:?}", self.until)) } else { Ok(()) }
    }

    /// Returns the number of attempts of a unit that do not count as losses.
    pub(crate) fn uncounted(&self, unit: UnitId) -> u32 {
        self.repeated.get(&unit).copied().unwrap_or_default().min(MAX_UNCOUNTED)
    }
}
