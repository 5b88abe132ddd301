//! A candidate without host code, whose artifact is read whole and compared with its digest.

use std::io::Read as _;

use opt_shared::message::Callee;

use crate::session::{Candidate, SessionError, artifact};

/// PTX or machine code, and how it is launched.
pub(crate) struct DeviceCode {
    pub(super) callee: Callee,
    pub(super) image: Vec<u8>,
}

impl DeviceCode {
    /// Reads the artifact. The bytes that are compared with the digest are kept, and are the ones that are loaded
    /// later.
    pub(super) fn open(callee: &Callee) -> Result<Self, SessionError> {
        let (mut file, mut image) = (artifact::open(callee)?, Vec::new());
        file.read_to_end(&mut image)
            .map_err(|source| SessionError::Artifact { candidate: callee.candidate.clone(), source })?;
        artifact::compare(callee, &blake3::hash(&image))?;
        Ok(Self { callee: callee.clone(), image })
    }
}

impl Candidate for DeviceCode {
    /// Empty, because device code runs on no CPU.
    fn cpus(&self) -> &[u32] {
        &[]
    }

    fn leaves_a_cpu(&self) -> bool {
        true
    }
}
