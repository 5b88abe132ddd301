//! What a run knows of its candidates besides its plan: from an earlier part of it, and from attempts that ended well.

use std::collections::BTreeMap;

use opt_shared::ids::EntryId;
use opt_shared::outcome::{Artifact, Body, Report, Status};

use super::folder::ranking::ScoreSummary;
use crate::core::event::Stage;

/// What is known of a candidate besides its plan.
#[derive(Clone, Debug, Default)]
pub struct Known {
    pub artifact: Option<Artifact>,
    pub unsupported: Vec<EntryId>,
    pub profile: Option<ScoreSummary>,
    pub status: Option<Status>,
    /// Attempts of each stage that earlier parts of the run have numbered.
    pub numbered: BTreeMap<Stage, u32>,
}

impl Known {
    /// What an attempt that stands says of its candidate.
    pub(super) fn learn(&mut self, stage: Stage, report: &Report) {
        match &report.body {
            Body::Build(built) => self.artifact.clone_from(&built.artifact),
            Body::Verify(verified) => self.unsupported.clone_from(&verified.unsupported),
            Body::Profile(profiled) if report.head.status == Status::Passed => {
                self.profile = Some(ScoreSummary::of(stage, profiled));
            }
            Body::Profile(_) | Body::Replay(_) => {}
        }
    }
}
