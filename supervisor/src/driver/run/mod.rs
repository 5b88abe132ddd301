//! Runs the main loop. It passes events to the core, and carries out the actions that the core returns.
//!
//! The modules in this folder hold the loop's state and do its work. Only the core decides what happens next.

mod actions;
pub(super) mod agenda;
mod attempts;
mod candidates;
pub(super) mod decisions;
mod descendants;
pub(super) mod device;
mod device_lock;
mod history;
mod kept_descriptors;
pub mod leaves;
pub(super) mod machine;
mod mover;
pub mod protections;
pub(super) mod replay;
pub(crate) mod room;
mod rows;
pub mod sample;
mod sources;
pub(super) mod supply;
mod tasks;
#[cfg(test)]
mod tests;
mod turn;
pub(super) mod watchdog;

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use self::agenda::Agenda;
pub(super) use self::attempts::Attempts;
use self::decisions::Decisions;
use self::machine::Machine;
use self::watchdog::{Part, Watchdog};
use super::answer::View;
use super::answer::endpoints::Endpoints;
use super::error::RunError;
use super::folder::records::RunRecords;
use crate::core::event::{Action, Event, PolicyRow, StopReason};
use crate::signal::Signals;

pub(super) struct Run<'a> {
    pub(super) decisions: Decisions,
    pub(super) agenda: Agenda<'a>,
    pub(super) attempts: Attempts,
    pub(super) machine: Machine,
    pub(super) records: RunRecords,
    pub(super) endpoints: Endpoints,
    pub(super) signals: &'a Signals,
    pub(super) watchdog: Watchdog,
    /// Whether the core has been told that the database does not accept rows.
    pub(super) stalled: bool,
    /// Called before each sample of memory.
    pub(super) before_each_sample: fn(),
}

impl Run<'_> {
    /// Runs until the core stops the run.
    pub(super) fn go(&mut self) -> Result<StopReason, RunError> {
        self.feed(Event::Tick)?;
        loop {
            if let Some(stop) = self.decisions.stop.take() {
                return Ok(stop);
            }
            self.watchdog.enter(Part::Waiting);
            if self.wait()? {
                self.feed(Event::Pressure)?;
            }
            self.watchdog.enter(Part::HandlingMessages);
            for _ in 0..self.signals.take() {
                self.feed(Event::Interrupt)?;
            }
            for event in self.machine.pool.events() {
                self.handle_pool_event(event)?;
            }
            self.watchdog.enter(Part::EnclosingARunner);
            self.let_moved_runners_begin();
            self.watchdog.enter(Part::ContinuingAfterRows);
            self.handle_written_rows()?;
            self.record_a_hang();
            if self.until_deadline() == Some(Duration::ZERO) {
                self.feed(Event::Tick)?;
            }
            self.watchdog.enter(Part::Serving);
            self.serve()?;
            self.watchdog.enter(Part::Sampling);
            self.sample_if_due()?;
            self.read_room()?;
            self.read_device()?;
        }
    }

    /// Waits for the next event or deadline. Returns true if Linux reports that processes are waiting for memory.
    fn wait(&mut self) -> Result<bool, RunError> {
        let until_sample = self.machine.sampler.due().saturating_duration_since(Instant::now());
        let timeout =
            until_sample.min(self.endpoints.until_due()).min(self.until_deadline().unwrap_or(Duration::MAX));
        let readable = |descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN);
        let run_descriptors =
            [readable(self.signals.descriptor()), readable(self.records.writer.descriptor())];
        self.machine.wait(run_descriptors.into_iter().chain(self.endpoints.descriptors()), timeout)
    }

    /// Returns the time until the core must be called even if nothing happens.
    fn until_deadline(&self) -> Option<Duration> {
        let deadline = self.decisions.core.next_deadline()?;
        Some(deadline.saturating_sub(self.decisions.now()))
    }

    /// Passes an event to the core and carries out the resulting actions. Then does the same with the events that these
    /// actions have raised.
    pub(super) fn feed(&mut self, event: Event) -> Result<(), RunError> {
        self.decisions.raise(event);
        self.watchdog.enter(Part::Deciding);
        while let Some(actions) = self.decisions.next()? {
            self.carry_out_all(actions)?;
        }
        Ok(())
    }

    /// Carries out the actions in order. The events that they raise are handled after the last action.
    fn carry_out_all(&mut self, actions: Vec<Action>) -> Result<(), RunError> {
        self.attempts.ending_report = None;
        for action in actions {
            self.watchdog.enter(Part::of(&action));
            self.carry_out(action)?;
        }
        self.watchdog.enter(Part::Deciding);
        Ok(())
    }

    /// Records a hang of the main loop in the policy log. The watchdog's thread reports the hang on the terminal.
    fn record_a_hang(&mut self) {
        let Some(hang) = self.watchdog.take_hang() else { return };
        self.policy(&PolicyRow {
            decision: "loop_hung",
            reason: format!("the main loop hung while {}", hang.part),
            numbers: vec![("ms", u64::try_from(hang.took.as_millis()).unwrap_or(u64::MAX))],
        });
    }

    /// Returns a read-only view of the run, from which clients and metrics are answered.
    pub(super) fn view(&self) -> View<'_> {
        View {
            decisions: &self.decisions,
            agenda: &self.agenda,
            attempts: &self.attempts,
            machine: &self.machine,
            endpoints: &self.endpoints,
        }
    }
}
