//! Exit codes: one closed list, a contract with scripts (DESIGN, "The command line").

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Every job has a candidate other than its baseline that passed and was timed.
    Good,
    /// Finished, but some job has none, or its baseline failed.
    NonePassed,
    /// Usage or plan error.
    Usage,
    /// The host is to blame: does not fit, no device, store unusable, or a candidate has no verdict because of it.
    Host,
    /// Interrupted; can be resumed.
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
