//! Answers the requests that users make during a run.

pub(super) mod endpoints;
pub(super) mod forecast;
pub(super) mod notifications;
mod overview;
pub(super) mod questions;
pub(super) mod replay_state;
pub mod requests;
mod status;
mod submission_files;
pub mod submissions;

use opt_shared::ids::CandidateId;

use self::endpoints::Endpoints;
use super::run::Attempts;
use super::run::agenda::Agenda;
use super::run::decisions::Decisions;
use super::run::machine::Machine;
use crate::core::control::UnitView;

/// The state from which answers are computed, read-only.
pub(super) struct View<'a> {
    pub(super) decisions: &'a Decisions,
    pub(super) agenda: &'a Agenda<'a>,
    pub(super) attempts: &'a Attempts,
    pub(super) machine: &'a Machine,
    pub(super) endpoints: &'a Endpoints,
}

impl View<'_> {
    /// Returns the state of a candidate in the core, if the candidate has been offered to it.
    fn state_of_candidate(&self, id: CandidateId) -> Option<UnitView> {
        self.decisions.core.unit_view(self.agenda.units.of_candidate(id)?)
    }
}
