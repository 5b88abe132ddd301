//! Defines the list of statuses and who is to blame for each (`docs/reference/results.md`).

use serde::{Deserialize, Serialize};

macro_rules! statuses {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $blame:ident;)*) => {
        /// How a stage, or the whole work on a candidate, ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Status { $($(#[$doc])* #[serde(rename = $name)] $variant,)* }

        impl Status {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The blame for this status; `None` if nothing went wrong.
            pub const fn blame(self) -> Option<Blame> {
                match self { $(Self::$variant => statuses!(@ $blame),)* }
            }

            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
    (@ Nobody) => { None };
    (@ $blame:ident) => { Some(Blame::$blame) };
}

/// Who or what caused an attempt to end as it did. If a worker or the host is to blame, the attempt is retried, and its
/// result is never cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Blame {
    Candidate,
    Capture,
    Worker,
    Host,
    Plan,
}

impl Blame {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Candidate => "candidate",
            Self::Capture => "capture",
            Self::Worker => "worker",
            Self::Host => "host",
            Self::Plan => "plan",
        }
    }
}

statuses! {
    Passed, "PASSED", Nobody;
    CompileError, "COMPILE_ERROR", Candidate;
    CompileTimeout, "COMPILE_TIMEOUT", Candidate;
    /// The library could not be loaded, or the process died while loading it, for example because a constructor
    /// aborted.
    LoadError, "LOAD_ERROR", Candidate;
    /// A call was not made, raised an exception, returned an error code, or returned a value where none is allowed.
    /// The device may also have refused a launch.
    RuntimeError, "RUNTIME_ERROR", Candidate;
    /// A signal, an abort or any other exit ended the runner during or between calls, or a kernel failed on the device.
    Crashed, "CRASHED", Candidate;
    Timeout, "TIMEOUT", Candidate;
    /// The candidate or its compiler exceeded a memory limit. This status requires proof: the process was killed at its
    /// limit, or a request for memory was refused.
    HostMemoryLimit, "HOST_MEMORY_LIMIT", Candidate;
    DeviceMemoryLimit, "DEVICE_MEMORY_LIMIT", Candidate;
    LimitExceeded, "LIMIT_EXCEEDED", Candidate;
    IncorrectShape, "INCORRECT_SHAPE", Candidate;
    IncorrectDtype, "INCORRECT_DTYPE", Candidate;
    IncorrectNumerical, "INCORRECT_NUMERICAL", Candidate;
    UnwrittenOutput, "UNWRITTEN_OUTPUT", Candidate;
    OutOfBounds, "OUT_OF_BOUNDS", Candidate;
    InputMutated, "INPUT_MUTATED", Candidate;
    /// A result changed between calls, processes or orders of entries, or the emulated device found a race.
    Nondeterministic, "NONDETERMINISTIC", Candidate;
    TooFast, "TOO_FAST", Candidate;
    TimingMismatch, "TIMING_MISMATCH", Candidate;
    DeferredWork, "DEFERRED_WORK", Candidate;
    /// The candidate reported that it does not support this entry, or its device lacks a feature that it uses.
    Unsupported, "UNSUPPORTED", Candidate;
    CaptureError, "CAPTURE_ERROR", Capture;
    DoesNotFit, "DOES_NOT_FIT", Plan;
    Skipped, "SKIPPED", Plan;
    /// The worker or the host failed, and the recorded blame says which of the two. The attempt is retried, and its
    /// result is never cached.
    InfraError, "INFRA_ERROR", Worker;
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_names_parse_back() {
        for &status in Status::ALL {
            assert_eq!(Status::from_name(status.name()), Some(status));
        }
    }
}
