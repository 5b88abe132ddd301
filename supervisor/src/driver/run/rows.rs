//! What goes on once its row is on record, and what is done while the run's database takes none.
//!
//! Writing is the `writer`'s, deciding is the core's.

use std::time::{Duration, Instant};

use super::Run;
use crate::core::event::{Event, StopReason};
use crate::driver::RunError;
use crate::driver::folder::writer::Then;

/// A row that has waited so long is a database that is locked, full, or on a disk that stands still.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// What a run that has done its work waits for its last rows …
const ROWS_TIMEOUT: Duration = Duration::from_secs(3600);
/// … and one whose end was asked for, or that the host has ended. What is not written by then is given up.
const LAST_ROWS: Duration = Duration::from_secs(5);

impl Run<'_> {
    /// Whether a row waits for longer than a disk takes.
    pub(crate) fn store_is_behind(&self) -> bool {
        self.books.writer.oldest().is_some_and(|waited| STALLED_AFTER <= waited)
    }

    /// Carries out what waited for its row, and tells the core how the database does.
    pub(super) fn hear_of_rows(&mut self) -> Result<(), RunError> {
        self.rows_written()?;
        if !self.stalled && self.store_is_behind() {
            self.stalled = true;
            let why = self.books.writer.last_error();
            tracing::warn!(
                "the run's database takes no rows, so nothing new is started until it does: {why}"
            );
            return self.feed(Event::StoreStalled { why, rows: self.books.writer.waiting() as u64 });
        }
        if self.stalled && self.books.writer.oldest().is_none() {
            self.stalled = false;
            tracing::warn!("the run's database takes rows again, the run goes on");
            let samples_dropped = std::mem::take(&mut self.books.samples_dropped);
            return self.feed(Event::StoreBack { samples_dropped });
        }
        Ok(())
    }

    fn rows_written(&mut self) -> Result<(), RunError> {
        for then in self.books.writer.acknowledged()? {
            self.go_on(then)?;
        }
        Ok(())
    }

    fn go_on(&mut self, then: Then) -> Result<(), RunError> {
        match then {
            Then::Nothing => {}
            Then::KillWorker(worker) => {
                self.machine.pool.kill_worker(worker);
                self.feed(Event::KillSent { worker })?;
            }
            Then::KillRunner(worker, pid) => {
                if self.machine.pool.kill_runner(worker, pid) {
                    self.machine.leaves.kill(worker, pid);
                }
            }
            Then::Widen(width) => self.books.evidence.widen(width),
            Then::Ended(id, record) => {
                let name = self.agenda.full_name(id);
                let status = self.agenda.known[id.index()].status.map_or("", |status| status.name());
                tracing::info!(candidate = name, status, "candidate");
                self.desk.progress.said(format!("{status:<20} {name}"));
                self.tell_of_end(id, record);
                self.books.write_summary_if_due(self.machine.sampler.totals);
            }
            Then::Reply(token, reply) => self.desk.reply(&token, &reply),
            Then::Answer(token, question, found) => {
                let reply = self.view().answer(question, found);
                self.desk.reply(&token, &reply);
            }
            Then::WriteSummary => self.books.summaries.write(),
        }
        Ok(())
    }

    /// Waits until every row is on record. Users are answered meanwhile; an interrupt gives up what is not written soon.
    pub(crate) fn settle(&mut self, stop: &StopReason) -> Result<(), RunError> {
        let finished = *stop == StopReason::Finished;
        let mut until = Instant::now() + if finished { ROWS_TIMEOUT } else { LAST_ROWS };
        let mut said = false;
        loop {
            self.rows_written()?;
            if self.books.writer.oldest().is_none() {
                return Ok(());
            }
            if self.signals.take() != 0 {
                until = until.min(Instant::now() + LAST_ROWS);
            }
            if until <= Instant::now() {
                let (rows, why) = (self.books.writer.waiting(), self.books.writer.last_error());
                return Err(RunError::Unwritten { rows, why });
            }
            if !said && self.store_is_behind() {
                said = true;
                let why = self.books.writer.last_error();
                tracing::warn!(
                    "waiting for the run's database to take the last rows (Ctrl-C gives them up): {why}"
                );
            }
            self.wait()?;
            self.serve()?;
        }
    }
}
