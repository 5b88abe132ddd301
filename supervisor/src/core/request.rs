//! Defines the requests that users may make during a run, and the possible answers.

use opt_shared::ids::{JobId, UnitId, WorkerId};
use opt_shared::message::Role;
pub use opt_shared::mode::Mode;
use opt_shared::units::Bytes;

#[derive(Clone, Debug, PartialEq)]
pub enum Control {
    /// Keeps the run open: when all work is done, the run waits for more until it is shut down.
    StayOpen,
    Recycle {
        which: Which,
        mode: Mode,
    },
    Pause,
    Resume,
    /// Cancels a unit or, if none is named, all units that the job has so far.
    Cancel {
        job: JobId,
        unit: Option<UnitId>,
    },
    SetCeiling {
        ceiling: Bytes,
    },
    Shutdown {
        mode: Mode,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Worker(WorkerId),
    /// All current workers with this role.
    Role(Role),
}

/// The answer to a user's request, or to a source's offer. The text is shown to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done(String),
    /// Nothing had to change.
    Already(String),
    /// The request was refused, and nothing changed.
    Refused(String),
    /// The request names something that this run does not have.
    Unknown(String),
}
