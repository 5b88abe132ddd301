//! The errors that prevent the use of a runner and for which its candidate is not to blame.

use std::time::Duration;

use crate::link::LinkError;
use crate::runner::frame::FrameError;
use crate::sandbox::handle::HandleError;

/// The time within which a killed runner must end. One that takes longer is assumed to be stuck in uninterruptible
/// sleep (D state), and the worker gives up.
pub(super) const DEATH_TIMEOUT: Duration = Duration::from_secs(60);
/// The time within which a runner must be locked down. Only our own code runs before that, so a timeout means that the
/// disk hangs.
pub(super) const SETUP_TIMEOUT: Duration = Duration::from_mins(10);

/// An error that prevents the use of a runner. The candidate is not to blame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunnerError {
    #[error("starting a runner")]
    Spawn(#[source] crate::sandbox::spawn::SpawnError),
    #[error("preparing a runner's descriptors")]
    Descriptors(#[source] rustix::io::Errno),
    #[error("communicating with a runner")]
    Frame(#[from] FrameError),
    #[error("communicating with the supervisor")]
    Link(#[from] LinkError),
    #[error("a runner could not be set up: {text}")]
    Setup { text: String },
    #[error("a runner was not set up within {SETUP_TIMEOUT:?} (does the disk hang?)")]
    NotSetUp,
    #[error("observing or controlling a runner's process")]
    Handle(#[from] HandleError),
    #[error("evicting inputs and outputs from the caches (profile with cache_state = \"warm\")")]
    Evict(#[source] rustix::io::Errno),
    #[error(
        "setting the priority of a timed process (profile with priority = \"none\", or give the run CAP_SYS_NICE and real-time bandwidth)"
    )]
    Priority(#[source] rustix::io::Errno),
    #[error("a killed runner did not end within {DEATH_TIMEOUT:?}")]
    Undead,
}
