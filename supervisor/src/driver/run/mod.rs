//! The run itself: what happens becomes events, what the core decides is carried out.
//!
//! Owns the loop and the parts that it is made of; each part keeps its own state. Decides nothing that the core could
//! decide.

mod actions;
pub(super) mod agenda;
mod attempts;
mod candidates;
pub(super) mod decisions;
mod descendants;
mod history;
pub mod leaves;
pub(super) mod machine;
pub mod protections;
pub(super) mod replay;
pub mod sample;
mod sources;
pub(super) mod supply;
mod tasks;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use self::agenda::Agenda;
pub(super) use self::attempts::Attempts;
use self::decisions::Decisions;
use self::machine::Machine;
use super::answer::View;
use super::answer::desk::Desk;
use super::error::RunError;
use super::folder::books::Books;
use crate::core::event::{Action, Event, StopReason};
use crate::signal::Signals;

/// A run that goes on.
pub(super) struct Run<'a> {
    pub(super) decisions: Decisions,
    pub(super) agenda: Agenda<'a>,
    pub(super) attempts: Attempts,
    pub(super) machine: Machine,
    pub(super) books: Books<'a>,
    pub(super) desk: Desk,
    pub(super) signals: &'a Signals,
    /// Called after each sample of memory.
    pub(super) each_look: fn(),
}

impl Run<'_> {
    /// Runs until the core says that everything is over.
    pub(super) fn go(&mut self) -> Result<StopReason, RunError> {
        self.feed(Event::Tick)?;
        loop {
            if let Some(stop) = self.decisions.stop.take() {
                return Ok(stop);
            }
            if self.wait()? {
                self.feed(Event::Pressure)?;
            }
            for _ in 0..self.signals.take() {
                self.feed(Event::Interrupt)?;
            }
            for happening in self.machine.pool.happenings() {
                self.happened(happening)?;
            }
            if self.until_deadline() == Some(Duration::ZERO) {
                self.feed(Event::Tick)?;
            }
            self.serve()?;
            self.look_if_due()?;
        }
    }

    /// True if the kernel says that processes wait for memory.
    fn wait(&mut self) -> Result<bool, RunError> {
        let until_sample = self.machine.sampler.due().saturating_duration_since(Instant::now());
        let timeout = until_sample.min(self.desk.due()).min(self.until_deadline().unwrap_or(Duration::MAX));
        let signals = PollFd::from_borrowed_fd(self.signals.descriptor(), PollFlags::IN);
        self.machine.wait(std::iter::once(signals).chain(self.desk.descriptors()), timeout)
    }

    /// Until the core has to be asked even if nothing happens.
    fn until_deadline(&self) -> Option<Duration> {
        let deadline = self.decisions.core.next_deadline()?;
        Some(deadline.saturating_sub(self.decisions.now()))
    }

    /// Gives the core an event and carries out its decisions, and those about the events that follow from them.
    pub(super) fn feed(&mut self, event: Event) -> Result<(), RunError> {
        self.decisions.raise(event);
        while let Some(actions) = self.decisions.next()? {
            self.carry_out_all(actions)?;
        }
        Ok(())
    }

    /// In order. What they raise comes after the last of them.
    fn carry_out_all(&mut self, actions: Vec<Action>) -> Result<(), RunError> {
        self.attempts.stood = None;
        for action in actions {
            self.carry_out(action)?;
        }
        Ok(())
    }

    /// Everything that questions are answered from.
    pub(super) fn view(&self) -> View<'_> {
        View {
            decisions: &self.decisions,
            agenda: &self.agenda,
            attempts: &self.attempts,
            machine: &self.machine,
            store: &self.books.store,
            desk: &self.desk,
        }
    }
}
