//! Pauses the granting of leases after the machine refused to start a process or thread for an attempt. Without a
//! pause, the next attempt would probably fail in the same way, because other programs need a moment to end some of
//! their processes. Linux calls both processes and threads tasks.

use std::time::Duration;

use super::Core;
use super::event::Moment;
use super::worker::Lease;

/// The pause after the first attempt of a unit for which the machine refused to start a process. The pause doubles with
/// each further such attempt of the unit, up to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The number of a unit's attempts that may end because the machine refused to start a process, without counting as
/// losses. A unit's second pass counts from zero. The pauses after these attempts take about a minute in all. Without a
/// limit, a candidate would be repeated forever on a machine that never allows enough processes.
const MAX_WITHOUT_TASKS: u32 = 7;

/// Once the pauses of a run have taken this long in all, each further pause takes only `FIRST_PAUSE`. Otherwise, many
/// candidates that exhaust the process limit of a control group above the run's own could hold up all other candidates.
const MAX_PAUSED: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TasksPause {
    pub(super) since: Moment,
    pub(super) until: Moment,
}

impl Core {
    /// Begins a pause if the machine had no task left for an attempt, up to `MAX_WITHOUT_TASKS` times for each unit.
    /// Returns true if a pause begins. The attempt is then repeated without counting as a loss.
    pub(super) fn pause_if_out_of_tasks(
        &mut self,
        now: Moment,
        lease: &Lease,
        tasks_left: Option<u64>,
    ) -> bool {
        if tasks_left != Some(0) {
            return false;
        }
        let times = self.change(lease.order.unit, |unit| {
            unit.losses().without_tasks += 1;
            unit.losses().without_tasks
        });
        if MAX_WITHOUT_TASKS < times {
            return false;
        }
        let longest = if self.tasks_paused < MAX_PAUSED { LONGEST_PAUSE } else { FIRST_PAUSE };
        let pause = FIRST_PAUSE.saturating_mul(1 << (times - 1)).min(longest);
        let until = now + pause;
        // Another unit may have begun a longer pause.
        let before = *self.tasks_pause.get_or_insert(TasksPause { since: now, until: now });
        self.tasks_paused += until.saturating_sub(before.until);
        self.tasks_pause = Some(TasksPause { until: before.until.max(until), ..before });
        self.policy(
            "tasks_short",
            "the machine refused a process or thread, so nothing is started for a moment".to_owned(),
            vec![
                ("unit", u64::from(lease.order.unit.0)),
                ("times", u64::from(times)),
                ("pause_ms", u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)),
            ],
        );
        true
    }

    pub(super) fn tasks_pause_overdue(&mut self, now: Moment) {
        self.tasks_pause.take_if(|pause| pause.until <= now);
    }
}
