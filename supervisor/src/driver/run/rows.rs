//! Carries out the actions that had to wait for a row of the database, and detects when the database accepts no rows.
//!
//! The rows are written by `writer`. The core decides what happens while the database stalls.

use std::time::{Duration, Instant};

use super::Run;
use super::watchdog::Part;
use crate::core::event::{Event, StopReason};
use crate::driver::RunError;
use crate::driver::folder::writer::FollowUp;

/// If a row has waited this long, the database counts as stalled: it is locked, or its disk is full or hangs.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// How long a finished run waits for its last rows.
const ROWS_TIMEOUT: Duration = Duration::from_secs(3600);
/// How long a run waits for its last rows if it was interrupted or stopped because of the host. Rows that are not
/// written by then may be lost.
const LAST_ROWS_TIMEOUT: Duration = Duration::from_secs(5);

impl Run<'_> {
    /// Returns true if a row has waited longer than a healthy disk should take.
    pub(crate) fn store_is_behind(&self) -> bool {
        self.records.writer.longest_wait().is_some_and(|waited| STALLED_AFTER <= waited)
    }

    /// Carries out the actions that waited for rows, and tells the core when the database stalls or recovers.
    pub(super) fn handle_written_rows(&mut self) -> Result<(), RunError> {
        self.continue_after_written_rows()?;
        if !self.stalled && self.store_is_behind() {
            self.stalled = true;
            let why = self.records.writer.last_error();
            tracing::warn!(
                "the run's database accepts no rows, so nothing new is started until it does: {why}"
            );
            return self.feed(Event::StoreStalled { why, rows: self.records.writer.waiting() as u64 });
        }
        if self.stalled && self.records.writer.longest_wait().is_none() {
            self.stalled = false;
            tracing::warn!("the run's database accepts rows again; the run continues");
            let samples_dropped = std::mem::take(&mut self.records.samples_dropped);
            return self.feed(Event::StoreBack { samples_dropped });
        }
        Ok(())
    }

    fn continue_after_written_rows(&mut self) -> Result<(), RunError> {
        for then in self.records.writer.acknowledged()? {
            self.continue_after(then)?;
        }
        Ok(())
    }

    fn continue_after(&mut self, then: FollowUp) -> Result<(), RunError> {
        match then {
            FollowUp::Nothing => {}
            FollowUp::KillWorker(worker) => {
                self.machine.pool.kill_worker(worker);
                self.feed(Event::KillSent { worker })?;
            }
            FollowUp::KillRunner(worker, pid) => {
                if self.machine.pool.kill_runner(worker, pid) {
                    self.machine.leaves.kill(worker, pid);
                }
            }
            FollowUp::Widen(width) => self.records.evidence.widen(width),
            FollowUp::Ended(id, record) => {
                let name = self.agenda.full_name(id);
                let status =
                    self.agenda.candidate_facts[id.index()].status.map_or("", |status| status.name());
                tracing::info!(candidate = name, status, "candidate");
                self.endpoints.progress.print(format!("{status:<20} {name}"));
                self.announce_end(id, record);
                self.records.write_summary_if_due(self.machine.sampler.totals);
            }
            FollowUp::Reply(token, reply) => self.endpoints.reply(&token, &reply),
            FollowUp::Answer(token, question, found) => {
                let reply = self.view().answer(question, found);
                self.endpoints.reply(&token, &reply);
            }
            FollowUp::WriteSummary => self.records.summaries.write(),
        }
        Ok(())
    }

    /// Waits until every row is on disk, and answers users in the meantime. Fails after `ROWS_TIMEOUT`, or after
    /// `LAST_ROWS_TIMEOUT` if the run did not finish. If an interrupt arrives, it waits at most `LAST_ROWS_TIMEOUT`
    /// more.
    pub(crate) fn settle(&mut self, stop: &StopReason) -> Result<(), RunError> {
        let finished = *stop == StopReason::Finished;
        let mut until = Instant::now() + if finished { ROWS_TIMEOUT } else { LAST_ROWS_TIMEOUT };
        let mut warned = false;
        loop {
            self.continue_after_written_rows()?;
            if self.records.writer.longest_wait().is_none() {
                return Ok(());
            }
            if self.signals.take() != 0 {
                until = until.min(Instant::now() + LAST_ROWS_TIMEOUT);
            }
            if until <= Instant::now() {
                let (rows, why) = (self.records.writer.waiting(), self.records.writer.last_error());
                return Err(RunError::Unwritten { rows, why });
            }
            if !warned && self.store_is_behind() {
                warned = true;
                let why = self.records.writer.last_error();
                tracing::warn!(
                    "waiting for the run's database to accept the last rows (Ctrl-C gives them up): {why}"
                );
            }
            self.watchdog.enter(Part::Waiting);
            self.wait()?;
            self.watchdog.enter(Part::Serving);
            self.serve()?;
        }
    }
}
