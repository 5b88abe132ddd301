//! A candidate without host code: its artifact, read whole and checked against its digest.

use std::io::Read as _;

use opt_shared::message::Callee;

use crate::session::{Candidate, SessionError, artifact};

/// PTX or a binary of the device, with how it is launched.
pub(crate) struct DeviceCode {
    pub(super) callee: Callee,
    pub(super) image: Vec<u8>,
}

impl DeviceCode {
    /// The bytes whose digest is compared are those that are loaded.
    pub(super) fn open(callee: &Callee) -> Result<Self, SessionError> {
        let (mut file, mut image) = (artifact::open(callee)?, Vec::new());
        file.read_to_end(&mut image)
            .map_err(|source| SessionError::Artifact { candidate: callee.candidate.clone(), source })?;
        artifact::compare(callee, &blake3::hash(&image))?;
        Ok(Self { callee: callee.clone(), image })
    }
}

impl Candidate for DeviceCode {
    /// It runs on none.
    fn cpus(&self) -> &[u32] {
        &[]
    }
}
