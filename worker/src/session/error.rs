//! Errors that stop an attempt without blaming the candidate, and faults of an entry's inputs.

use std::io;
use std::time::Duration;

use opt_shared::causes::is_shortage;

use crate::judge::CompareError;
use crate::recorded::RecordedError;
use crate::residency::staging::StagingError;

/// An error of a backend, which `stage` passes on without examining it.
pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// An error that prevents the worker from finishing an attempt. Neither the candidate nor a capture is to blame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error("running {candidate}")]
    Run { candidate: String, source: Cause },
    #[error("opening the artifact of {candidate}")]
    Artifact { candidate: String, source: io::Error },
    #[error(
        "the artifact of {candidate} is not the file that was built: its digest is {found} (do not write to the run's folder \
         during a run)"
    )]
    ArtifactChanged { candidate: String, found: String },
    #[error("running {candidate}: {text}")]
    Interpreter { candidate: String, text: String },
    #[error("placing the inputs, outputs or workspaces of {candidate}")]
    Inputs { candidate: String, source: Cause },
    #[error(
        "opening {entry}: out of file descriptors or memory (raise the limit on open files, or give the machine more memory)"
    )]
    Shortage { entry: String, source: Box<InputFault> },
    #[error("writing new inputs for {entry}")]
    Variants { entry: String, source: io::Error },
    #[error("placing, reading or writing the outputs of {entry}")]
    Outputs { entry: String, source: io::Error },
    #[error("comparing the outputs of {entry}")]
    Compare { entry: String, source: CompareError },
    #[error(
        "timing {entry}: at least half of the blocks took no longer than the hand-off, {handoff:?} (profile again when the machine is less busy)"
    )]
    NoTime { entry: String, handoff: Duration },
    #[error(
        "timing {entry}: the device's clock shows {device:?} for a block that took {host:?} on the host, so the device's \
         times cannot be trusted (restart the machine, or update the device's driver)"
    )]
    DeviceClock { entry: String, device: Duration, host: Duration },
    #[error(
        "timing {entry}: too few blocks took longer than the hand-off (profile again when the machine is less busy)"
    )]
    NoFigures { entry: String },
    #[error(
        "timing {entry}: a runner used CPU time in {exceeded} of {rounds} idle rounds, in which it had nothing to do. This does not prove that its candidate is to blame, but the times cannot be trusted (profile again when the machine is less busy)"
    )]
    NeverIdle { entry: String, exceeded: usize, rounds: usize },
}

/// A fault of an entry's inputs. The capture is to blame, unless file descriptors or memory ran out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputFault {
    #[error(transparent)]
    Recorded(#[from] RecordedError),
    #[error(transparent)]
    Place(#[from] StagingError),
}

impl InputFault {
    /// Returns the fault itself if the capture is to blame, and an error of the worker if the machine is.
    pub(crate) fn of_the_capture(self, entry: &str) -> Result<Self, SessionError> {
        if is_shortage(&self) {
            return Err(SessionError::Shortage { entry: entry.to_owned(), source: Box::new(self) });
        }
        Ok(self)
    }
}
