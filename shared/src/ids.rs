//! Defines the numeric ids of jobs, entries, workers and so on. Each kind of id has its own type, so the id of an entry
//! cannot be mistaken for that of a candidate.

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
    /// Index of a job in its plan.
    JobId, "job-";
    /// Index of a candidate in the whole plan, not in its job.
    CandidateId, "candidate-";
    /// Index of a unit among all units of a run, whatever their source.
    UnitId, "unit-";
    /// Index of an entry in its job's capture set, in the order of the set.
    EntryId, "entry-";
    /// The number of a worker, which is never reused in a run.
    WorkerId, "worker-";
    /// The number of a lease, which a worker gets for one attempt. It is never reused in a run.
    LeaseId, "lease-";
    /// Index of a storage in a capture file.
    StorageId, "storage-";
}
