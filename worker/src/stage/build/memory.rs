//! Decides who is to blame for a compiler that ran out of memory.

use opt_shared::message::BuildTask;
use opt_shared::outcome::Status;
use opt_shared::units::Bytes;
use rustix::process::{Resource, getrlimit};

use crate::sandbox::policy::LIBRARIES;

/// The limits on a compiler's memory.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// The plan's limit.
    plan: Bytes,
    /// The part of the plan's limit that fits under the run's memory ceiling.
    left: Bytes,
    /// The amount of memory that a process can get under the hard limits (`ulimit -H`) with which the run was started.
    inherited: Option<Bytes>,
}

/// Returns the status and the detail of a build whose compiler was killed because it used too much memory. `what`
/// describes the kill.
pub(super) fn killed_for_memory(task: &BuildTask, what: &str) -> (Status, String) {
    Limits { plan: task.build.memory_for(task.source.language), left: task.memory, inherited: None }.end(what)
}

/// Returns the status and the detail of a build whose compiler reported that it could not get memory. `what` describes
/// the report. If `may_be_forged`, the source may have made the compiler print this report. The limits with which the
/// run was started are then ignored, because otherwise a candidate could use them to escape the blame.
pub(super) fn refused_memory(task: &BuildTask, what: &str, may_be_forged: bool) -> (Status, String) {
    let memory = |resource, besides: Bytes| {
        getrlimit(resource).maximum.map(|most| Bytes::new(most).saturating_sub(besides))
    };
    let inherited = [memory(Resource::Data, Bytes::ZERO), memory(Resource::As, LIBRARIES)];
    Limits {
        plan: task.build.memory_for(task.source.language),
        left: task.memory,
        inherited: inherited.into_iter().flatten().min().filter(|_| !may_be_forged),
    }
    .end(what)
}

impl Limits {
    /// Decides who is to blame. It is the candidate only if the compiler could have used all the memory that the plan
    /// allows.
    fn end(self, what: &str) -> (Status, String) {
        let Self { plan, left, inherited } = self;
        if let Some(inherited) = inherited.filter(|&inherited| inherited < left) {
            let why = format!(
                "{what}: the compiler's memory limit is {left}, but under the limits of the run's own process it can get \
                 {inherited} (raise `ulimit -Hv` and `ulimit -Hd`, or lower [build] memory)"
            );
            (Status::InfraError, why)
        } else if left < plan {
            let why = format!(
                "{what}: the run's ceiling lowers the compiler's memory limit from {plan} ([build] memory) to {left} \
                 (raise [memory] host_ceiling)"
            );
            (Status::DoesNotFit, why)
        } else {
            (
                Status::HostMemoryLimit,
                format!("{what}; the compiler's memory limit is {plan} ([build] memory)"),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidate_is_blamed_only_if_all_of_the_plans_memory_could_be_used() {
        let plan = Bytes::gib(4);
        for (left, inherited, status, says) in [
            (4, None, Status::HostMemoryLimit, "limit is 4.00 GiB ([build] memory)"),
            (4, Some(4), Status::HostMemoryLimit, "[build] memory"),
            (2, None, Status::DoesNotFit, "from 4.00 GiB ([build] memory) to 2.00 GiB"),
            (2, Some(3), Status::DoesNotFit, "host_ceiling"),
            (4, Some(3), Status::InfraError, "it can get 3.00 GiB (raise `ulimit -Hv`"),
            (2, Some(1), Status::InfraError, "ulimit -Hd"),
        ] {
            let limits = Limits { plan, left: Bytes::gib(left), inherited: inherited.map(Bytes::gib) };
            let (ended, why) = limits.end("the compiler was refused memory");
            assert_eq!(ended, status, "{limits:?}");
            assert!(
                why.starts_with("the compiler was refused memory") && why.contains(says),
                "{limits:?}: {why}"
            );
        }
    }
}
