//! The facts that a run learns about its candidates (artifact, score, status, earlier attempts), and the disk space
//! that their libraries take.

use std::collections::{BTreeMap, HashSet};

use opt_shared::ids::EntryId;
use opt_shared::outcome::{Artifact, Body, Report, Status};
use opt_shared::units::Bytes;

use super::folder::ranking::ScoreSummary;
use crate::core::event::Stage;

#[derive(Clone, Debug, Default)]
pub struct CandidateFacts {
    pub artifact: Option<Artifact>,
    pub unsupported: Vec<EntryId>,
    /// Boxed, because most candidates have none.
    pub profile: Option<Box<ScoreSummary>>,
    pub status: Option<Status>,
    /// The highest attempt number of each stage in earlier parts of the run.
    pub earlier_attempts: BTreeMap<Stage, u32>,
}

impl CandidateFacts {
    /// Adds what the report of a valid attempt says.
    pub(super) fn learn(&mut self, stage: Stage, report: &Report) {
        match &report.body {
            Body::Build(built) => self.artifact.clone_from(&built.artifact),
            Body::Verify(verified) => self.unsupported.clone_from(&verified.unsupported),
            Body::Profile(profiled) if report.head.status == Status::Passed => {
                self.profile = Some(Box::new(ScoreSummary::of(stage, profiled)));
            }
            Body::Profile(_) | Body::Replay(_) => {}
        }
    }
}

/// The disk space that a run's libraries take. Candidates with equal libraries share one file.
#[derive(Debug, Default)]
pub(crate) struct Libraries {
    /// The first 128 bits of each digest.
    seen: HashSet<u128>,
    bytes: Bytes,
}

impl Libraries {
    pub(crate) fn of(candidates: &[CandidateFacts]) -> Self {
        let mut libraries = Self::default();
        candidates
            .iter()
            .filter_map(|candidate| candidate.artifact.as_ref())
            .for_each(|it| libraries.add(it));
        libraries
    }

    pub(crate) fn add(&mut self, artifact: &Artifact) {
        let start = artifact.digest.get(..32).and_then(|digits| u128::from_str_radix(digits, 16).ok());
        // A library without a digest is counted every time.
        if start.is_none_or(|start| self.seen.insert(start)) {
            self.bytes += artifact.bytes;
        }
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_libraries_are_counted_once() {
        let artifact = |digest: &str, bytes| Artifact {
            digest: digest.repeat(32),
            path: "/run/artifacts/library.so".into(),
            bytes: Bytes::new(bytes),
        };
        let with_artifact = |artifact| CandidateFacts { artifact, ..CandidateFacts::default() };
        let mut libraries = Libraries::of(&[with_artifact(Some(artifact("0a", 5))), with_artifact(None)]);
        libraries.add(&artifact("0a", 5));
        assert_eq!(libraries.bytes(), Bytes::new(5));
        libraries.add(&artifact("0b", 7));
        assert_eq!(libraries.bytes(), Bytes::new(12));
    }
}
