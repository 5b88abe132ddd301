//! Remembers which inputs vary in the entries of a job. A decision needs a separate process of the baseline, so a
//! worker makes it only once for consecutive candidates of the job.

use std::collections::HashMap;

use opt_shared::message::{Callee, EntryRef, ProfileTask};
use opt_shared::settings::{ProfileSettings, VerifySettings};
use serde::Serialize;

use super::Variation;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Decision {
    /// The inputs that vary, by their indices among the eligible inputs.
    Varies(Vec<usize>),
    /// No input varies, for this reason.
    Unvaried(String),
}

/// The decisions of the job whose candidate was profiled last.
#[derive(Default)]
pub(crate) struct Decisions {
    /// The digest of everything that the decisions depend on.
    job: Option<[u8; 32]>,
    /// The decisions about each batch, by the index of the batch's first entry.
    batches: HashMap<usize, Vec<Decision>>,
}

/// Everything that a decision depends on. The candidate and its seed are not included, because a decision must not
/// depend on them.
#[derive(Serialize)]
struct Job<'a> {
    baseline: &'a Callee,
    entries: &'a [EntryRef],
    verify: &'a VerifySettings,
    profile: &'a ProfileSettings,
    constant: &'a [String],
}

impl Decisions {
    /// Forgets the decisions if the task belongs to another job. If there is no baseline, always forgets them, because
    /// decisions are then made with the candidate itself.
    pub(crate) fn start(&mut self, task: &ProfileTask) {
        let job = task.baseline.as_ref().and_then(|baseline| {
            let job = Job {
                baseline,
                entries: &task.entries,
                verify: &task.verify,
                profile: &task.profile,
                constant: &task.constant,
            };
            Some(*blake3::hash(&postcard::to_stdvec(&job).ok()?).as_bytes())
        });
        if job.is_none() || job != self.job {
            self.batches.clear();
        }
        self.job = job;
    }

    pub(in super::super) fn of(&self, first: usize) -> Option<&[Decision]> {
        self.batches.get(&first).map(Vec::as_slice)
    }

    /// Keeps the decisions about the entries of a batch if all of them are certain.
    pub(in super::super) fn keep(&mut self, first: usize, variations: &[Variation]) {
        let decisions: Option<Vec<Decision>> = variations.iter().map(|it| it.decision.clone()).collect();
        if let Some(decisions) = decisions.filter(|_| self.job.is_some()) {
            self.batches.insert(first, decisions);
        }
    }
}
