//! Handles a stall, during which the run's database does not accept rows. No leases are granted during a stall, because
//! they could not be recorded. Running attempts continue. A process that must be killed stays stopped until the reason
//! is on disk.

use std::time::Duration;

use super::event::Moment;
use super::{Core, Ending};

/// How long a run waits for its database. It is long enough for a user to notice and to free disk space. Then the run
/// ends, and can be resumed.
const STORE_TIMEOUT: Duration = Duration::from_secs(3600);
/// How long the run waits for the reasons to be written to disk when everything is killed. This timeout is short,
/// because everything is killed only if the user wants the run to end at once, or if the run cannot continue.
const LAST_REASONS_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stall {
    pub(super) since: Moment,
}

impl Core {
    pub(super) fn is_stalled(&self) -> bool {
        self.stall.is_some()
    }

    pub(super) fn store_stalled(&mut self, now: Moment, why: String, rows: u64) {
        if self.stall.is_some() {
            return;
        }
        self.stall = Some(Stall { since: now });
        // No lease waits for memory during a stall, because none is granted.
        self.waiting = None;
        let text = format!("the run's database accepts no rows, and nothing is granted until it does: {why}");
        self.policy("store_stalled", text, vec![("rows", rows)]);
    }

    pub(super) fn store_back(&mut self, now: Moment, samples_dropped: u64) {
        let Some(stall) = self.stall.take() else { return };
        let stalled = now.saturating_sub(stall.since);
        self.policy(
            "store_back",
            "the run's database accepts rows again".to_owned(),
            vec![
                ("stalled_ms", u64::try_from(stalled.as_millis()).unwrap_or(u64::MAX)),
                ("sample_blocks_dropped", samples_dropped),
            ],
        );
    }

    /// Returns the time at which the run stops waiting for the database.
    pub(super) fn stall_ends_at(&self) -> Option<Moment> {
        let stall = self.stall?;
        let killing = self.killed_all_at.filter(|_| matches!(self.ending, Ending::Kill(_)));
        Some(killing.map_or(stall.since + STORE_TIMEOUT, |at| at.max(stall.since) + LAST_REASONS_TIMEOUT))
    }

    pub(super) fn stall_overdue(&mut self, now: Moment) {
        if self.stall_ends_at().is_none_or(|at| now < at) {
            return;
        }
        match self.ending.clone() {
            Ending::No | Ending::Drain(_) => {
                let why = format!("the run's database accepted no rows for {STORE_TIMEOUT:?}");
                self.stop_for_the_host(now, why, Vec::new());
            }
            // The reasons cannot be recorded, so stop without them. The workers die with the supervisor.
            Ending::Kill(reason) => self.stop(reason),
            Ending::Stopped => {}
        }
    }
}
