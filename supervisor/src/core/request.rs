//! What a user may ask of a run that goes on, and what is answered.

use opt_shared::ids::{JobId, UnitId, WorkerId};
use opt_shared::message::Role;
pub use opt_shared::mode::Mode;
use opt_shared::units::Bytes;

/// One request of a user.
#[derive(Clone, Debug, PartialEq)]
pub enum Control {
    /// When all work is done the run waits for more, until it is shut down.
    StayOpen,
    Recycle {
        which: Which,
        mode: Mode,
    },
    Pause,
    Resume,
    /// A whole job where no unit is named.
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
    /// Every worker that has this role now.
    Role(Role),
}

/// What became of a request. The text is for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done(String),
    /// Nothing had to be changed.
    Already(String),
    /// Nothing was changed.
    Refused(String),
    /// It speaks of something that this run does not have.
    Unknown(String),
}
