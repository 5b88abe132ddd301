//! Prepares smaller choices of an entry's varying inputs, for a candidate that fails if all of them get new values.

use opt_shared::message::ProfileTask;

use super::trial::{Undecided, chosen, put_back};
use super::tried::{Trial, TrialEntry};
use super::{Variation, eligible, layout_of};
use crate::judge::Tolerance;
use crate::recorded::{Recorded, RecordedError};
use crate::session::{Session, SessionError, VariantMemory};

pub(in super::super) struct Inputs<'a> {
    recorded: &'a Recorded,
    task: &'a ProfileTask,
    it: Undecided,
    /// The inputs that varied, the largest first, as indices into the list of eligible inputs.
    pub(in super::super) all: Vec<usize>,
}

impl<'a> Inputs<'a> {
    pub(in super::super) fn of(
        recorded: &'a Recorded,
        task: &'a ProfileTask,
        variation: &Variation,
    ) -> Result<Self, RecordedError> {
        let (eligible, kept) = eligible(recorded, task)?;
        let mut all: Vec<usize> =
            (0..eligible.len()).filter(|&at| variation.names.contains(&eligible[at].name)).collect();
        all.sort_by_key(|&at| std::cmp::Reverse(eligible[at].extent.bytes));
        let choices = Vec::new().into_iter();
        let it = Undecided { number: 0, eligible, kept, choices, dropped: None, uncertain: false };
        Ok(Self { recorded, task, it, all })
    }

    /// Returns a variation of only these inputs, or `None` if their variants do not fit into the memory. The caller
    /// must give the variation back before it takes another one.
    pub(in super::super) fn take(&mut self, choice: &[usize]) -> Option<Variation> {
        let variants = layout_of(self.recorded, self.task, &self.it.eligible, choice)?;
        Some(chosen(&mut self.it, choice, variants, (self.recorded, self.task)))
    }

    pub(in super::super) fn give_back(&mut self, choice: &[usize], variation: Variation) {
        put_back(&mut self.it, choice, variation);
    }

    /// Returns the names of the inputs that are not in a choice.
    pub(in super::super) fn names_without(&self, choice: &[usize]) -> Vec<String> {
        let left_out = self.all.iter().filter(|at| !choice.contains(at));
        left_out.map(|&at| format!("`{}`", self.it.eligible[at].name)).collect()
    }
}

/// Returns true if a kernel that is known to be right works with a variation, and all outputs change from call to call.
/// `number` is the entry's number in the session.
pub(in super::super) fn works(
    session: &mut dyn Session,
    (recorded, task): (&Recorded, &ProfileTask),
    (number, has_plan): (usize, bool),
    tolerances: &[Tolerance],
    variation: &mut Variation,
    memory: &impl VariantMemory,
) -> Result<bool, SessionError> {
    let entry = TrialEntry { recorded, number, task, tolerances, has_plan };
    Ok(matches!(entry.test(session, variation, memory)?, Trial::Works))
}
