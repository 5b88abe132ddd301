//! Opens a built artifact, and compares it with the digest that the build recorded.

use std::fs::File;

use opt_shared::message::Callee;

use super::SessionError;

pub(super) fn open(callee: &Callee) -> Result<File, SessionError> {
    File::open(&callee.artifact.path)
        .map_err(|source| SessionError::Artifact { candidate: callee.candidate.clone(), source })
}

/// Returns an error if the digests differ, because the artifact that is timed must be the one that was built and
/// verified.
pub(super) fn compare(callee: &Callee, found: &blake3::Hash) -> Result<(), SessionError> {
    let found = found.to_hex().to_string();
    if found == callee.artifact.digest {
        return Ok(());
    }
    Err(SessionError::ArtifactChanged { candidate: callee.candidate.clone(), found })
}
