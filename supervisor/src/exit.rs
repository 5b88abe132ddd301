//! Exit codes: a fixed list that scripts rely on.

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Every job has a candidate other than its baseline that passed and was timed.
    Good,
    /// The run finished, but some job has no such candidate, or its baseline failed.
    NonePassed,
    /// A usage or plan error.
    Usage,
    /// The host is to blame: something does not fit, there is no device, a file cannot be read or written, or a
    /// candidate has no verdict because of the host.
    Host,
    /// Interrupted; the run can be resumed.
    Interrupted,
}

impl Exit {
    pub const fn code(self) -> u8 {
        match self {
            Self::Good => 0,
            Self::NonePassed => 1,
            Self::Usage => 2,
            Self::Host => 3,
            Self::Interrupted => 4,
        }
    }
}
