//! Keeps what a run has learnt about each candidate (artifact, score, status, earlier attempts), and adds up the disk
//! space that the candidates' libraries take.
//!
//! A run can have a hundred thousand candidates, and all of them can be built before the first one is verified.
//! Therefore the facts about a candidate must take as little memory as possible.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use opt_shared::ids::EntryId;
use opt_shared::language::ArtifactKind;
use opt_shared::outcome::{Artifact, Body, Report, Status};
use opt_shared::units::Bytes;

use super::folder::ranking::ScoreSummary;
use crate::core::event::Stage;

#[derive(Clone, Debug, Default)]
pub struct CandidateFacts {
    pub artifact: Option<KnownArtifact>,
    /// The entries that the candidate does not support.
    pub unsupported: Box<[EntryId]>,
    /// The scores of the last profile that passed. They are boxed, because most candidates have none.
    pub profile: Option<Box<ScoreSummary>>,
    pub status: Option<Status>,
    /// Whether this is a baseline that failed in an earlier part of the run while it was timed beside another
    /// candidate.
    pub failed_beside: bool,
    /// The highest attempt number of each stage in earlier parts of the run.
    pub earlier_attempts: BTreeMap<Stage, u32>,
}

/// The file that was built from a candidate, in the form that takes the least memory.
#[derive(Clone, Debug, PartialEq)]
pub enum KnownArtifact {
    /// A file in the run's folder of artifacts whose name is the one that a worker gives to this artifact.
    Named(Box<NamedArtifact>),
    /// Any other file, such as one that was recorded before the run's folder was moved.
    Other(Box<Artifact>),
}

/// An artifact whose name follows from its digest.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedArtifact {
    digest: [u8; 32],
    bytes: Bytes,
    kind: ArtifactKind,
}

impl KnownArtifact {
    /// Converts an artifact to its shortest form. `folder` is the run's folder of artifacts.
    pub(crate) fn new(artifact: &Artifact, folder: &Path) -> Self {
        let kind = ArtifactKind::ALL
            .into_iter()
            .find(|kind| artifact.path == folder.join(kind.file_name(&artifact.digest)));
        match (kind, blake3::Hash::from_hex(&artifact.digest)) {
            (Some(kind), Ok(digest)) if digest.to_hex().as_str() == artifact.digest => {
                Self::Named(Box::new(NamedArtifact {
                    digest: *digest.as_bytes(),
                    bytes: artifact.bytes,
                    kind,
                }))
            }
            _ => Self::Other(Box::new(artifact.clone())),
        }
    }

    /// Returns the artifact that was passed to `new`. `folder` must be the same folder as there.
    pub(crate) fn whole(&self, folder: &Path) -> Artifact {
        match self {
            Self::Named(named) => {
                let digest = blake3::Hash::from_bytes(named.digest).to_hex().to_string();
                let path = folder.join(named.kind.file_name(&digest));
                Artifact { digest, path, bytes: named.bytes }
            }
            Self::Other(artifact) => (**artifact).clone(),
        }
    }

    fn bytes(&self) -> Bytes {
        match self {
            Self::Named(named) => named.bytes,
            Self::Other(artifact) => artifact.bytes,
        }
    }

    /// Returns the first 128 bits of the digest, or `None` if the digest does not begin with 32 hexadecimal digits.
    fn start_of_digest(&self) -> Option<u128> {
        match self {
            Self::Named(named) => named.digest.first_chunk().map(|start| u128::from_be_bytes(*start)),
            Self::Other(artifact) => {
                artifact.digest.get(..32).and_then(|digits| u128::from_str_radix(digits, 16).ok())
            }
        }
    }
}

impl CandidateFacts {
    /// Adds the facts from the report of a valid attempt. `artifacts` is the run's folder of artifacts.
    pub(super) fn learn(&mut self, stage: Stage, report: &Report, artifacts: &Path) {
        match &report.body {
            Body::Build(built) => {
                self.artifact = built.artifact.as_ref().map(|it| KnownArtifact::new(it, artifacts));
            }
            Body::Verify(verified) => self.unsupported = verified.unsupported.as_slice().into(),
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
    /// The first 128 bits of the digest of each library that was counted.
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

    pub(crate) fn add(&mut self, artifact: &KnownArtifact) {
        // A library whose digest does not begin with 32 hexadecimal digits is counted every time.
        if artifact.start_of_digest().is_none_or(|start| self.seen.insert(start)) {
            self.bytes += artifact.bytes();
        }
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER: &str = "/run/artifacts";

    fn artifact(digest: &str, suffix: &str, bytes: u64) -> Artifact {
        let digest = digest.repeat(32);
        let path = Path::new(FOLDER).join(format!("{digest}.{suffix}"));
        Artifact { digest, path, bytes: Bytes::new(bytes) }
    }

    #[test]
    fn known_artifact_returns_the_artifact_it_was_made_from() {
        let usual = ["so", "ptx", "cubin", "py"].map(|suffix| artifact("0a", suffix, 5));
        let moved = Artifact { path: "/before/artifacts/library.so".into(), ..artifact("0a", "so", 5) };
        let others = [
            moved,
            artifact("0A", "so", 5),
            artifact("no", "so", 5),
            artifact("0a", "dll", 5),
            artifact("", "so", 5),
        ];
        for (artifacts, are_named) in [(&usual[..], true), (&others[..], false)] {
            for artifact in artifacts {
                let known = KnownArtifact::new(artifact, Path::new(FOLDER));
                assert_eq!(known.whole(Path::new(FOLDER)), *artifact);
                assert_eq!(matches!(known, KnownArtifact::Named(_)), are_named, "{artifact:?}");
            }
        }
    }

    #[test]
    fn equal_libraries_are_counted_once() {
        let artifact =
            |digest: &str, bytes| KnownArtifact::new(&artifact(digest, "so", bytes), Path::new(FOLDER));
        let with_artifact = |artifact| CandidateFacts { artifact, ..CandidateFacts::default() };
        let mut libraries = Libraries::of(&[with_artifact(Some(artifact("0a", 5))), with_artifact(None)]);
        let moved = Artifact { path: "/before/library.so".into(), ..self::artifact("0a", "so", 5) };
        libraries.add(&KnownArtifact::new(&moved, Path::new(FOLDER)));
        assert_eq!(libraries.bytes(), Bytes::new(5));
        libraries.add(&artifact("0b", 7));
        assert_eq!(libraries.bytes(), Bytes::new(12));
    }
}
