//! Defines the exit codes of the program. Scripts rely on this list.

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command succeeded. For a run: no replay failed, and every job that was not skipped has a candidate that
    /// counts as a success. This is usually a candidate other than the baseline that passed and was timed;
    /// `allows_success` in `driver/folder/finish.rs` has the exceptions.
    Good,
    /// The result of the command is negative, or a run refused a request. For a run: some job has no such candidate, a
    /// baseline or a replay failed, or every job was skipped.
    NonePassed,
    /// A usage or plan error.
    Usage,
    /// The host is to blame (no job fits, there is no device, a file cannot be read or written), or a candidate or a
    /// replay has no verdict because a worker or the host failed.
    Host,
    /// The command was interrupted. A run can be resumed.
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
