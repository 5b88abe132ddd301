//! A candidate for a device, whose artifact is read whole and compared with its digest.

use std::io::Read as _;

use opt_shared::launch::{ResolvedLaunch, resolve};
use opt_shared::message::Callee;

use crate::launches::RecordedLaunches;
use crate::recorded::Recorded;
use crate::session::{Candidate, SessionError, artifact};

/// PTX or machine code, and how it is launched.
pub(crate) struct DeviceCode {
    pub(super) callee: Callee,
    /// The images. Each becomes a module.
    pub(super) images: Vec<Vec<u8>>,
    /// The launches of the candidate's host code; `None` if the plan specifies the launches.
    recorded: Option<RecordedLaunches>,
}

impl DeviceCode {
    /// Reads the artifact. The bytes that are compared with the digest are kept, and are the ones that are loaded
    /// later.
    pub(super) fn open(callee: &Callee) -> Result<Self, SessionError> {
        let (mut file, mut image) = (artifact::open(callee)?, Vec::new());
        file.read_to_end(&mut image)
            .map_err(|source| SessionError::Artifact { candidate: callee.candidate.clone(), source })?;
        artifact::compare(callee, &blake3::hash(&image))?;
        let callee = callee.clone();
        if !callee.launch.steps.is_empty() {
            return Ok(Self { callee, images: vec![image], recorded: None });
        }
        let mut recorded = RecordedLaunches::read(&image).map_err(|what| {
            let what = format!("it is not a file of recorded launches: {what}");
            SessionError::Artifact {
                candidate: callee.candidate.clone(),
                source: std::io::Error::other(what),
            }
        })?;
        Ok(Self { callee, images: std::mem::take(&mut recorded.images), recorded: Some(recorded) })
    }

    /// Returns the launches of a call, or a text that says why there are none.
    pub(super) fn resolve(&self, call: &Recorded) -> Result<ResolvedLaunch, String> {
        match &self.recorded {
            Some(recorded) => recorded.resolve(&call.arguments, &call.outputs),
            None => resolve(&self.callee.launch, &call.arguments, &call.outputs)
                .map_err(|error| format!("{}: {error}", call.name)),
        }
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

    fn recorded_launches(&self, call: &Recorded) -> Option<ResolvedLaunch> {
        self.recorded.as_ref()?.resolve(&call.arguments, &call.outputs).ok()
    }
}
