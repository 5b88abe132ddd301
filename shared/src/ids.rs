//! Names of things by number: one type each, so that an entry is never taken for a candidate.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident, $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    )*};
}

ids! {
    /// A job's place in its plan.
    JobId, "job-";
    /// A candidate's place in the whole plan (not in its job).
    CandidateId, "candidate-";
    /// A unit of work's place among all that a run's sources have offered.
    UnitId, "unit-";
    /// An entry's place in its job's capture set, in the set's own order.
    EntryId, "entry-";
    /// A worker of this run; never used twice.
    WorkerId, "worker-";
    /// One grant of memory to one worker for one attempt; never used twice.
    LeaseId, "lease-";
    /// A storage's place in one capture file.
    StorageId, "storage-";
}
