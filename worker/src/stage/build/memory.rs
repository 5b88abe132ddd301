//! Decides who is to blame for a compiler that ran out of memory.

use opt_shared::message::BuildTask;
use opt_shared::outcome::Status;
use opt_shared::units::Bytes;
use rustix::process::{Resource, getrlimit};

/// The limits on a compiler's memory.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// That of the plan.
    plan: Bytes,
    /// What the run's ceiling left of it.
    left: Bytes,
    /// The smaller of the hard limits on private memory and address space with which the run was started.
    inherited: Option<Bytes>,
}

/// Returns how a build ends whose compiler ran out of memory. `what` says how this was seen.
pub(super) fn out_of_memory(task: &BuildTask, what: &str) -> (Status, String) {
    let inherited = [Resource::Data, Resource::As].map(|resource| getrlimit(resource).maximum);
    Limits {
        plan: task.build.memory_for(task.source.language),
        left: task.memory,
        inherited: inherited.into_iter().flatten().min().map(Bytes::new),
    }
    .end(what)
}

impl Limits {
    /// The candidate is to blame only if the compiler could use all of the plan's limit.
    fn end(self, what: &str) -> (Status, String) {
        let Self { plan, left, inherited } = self;
        if let Some(inherited) = inherited.filter(|&inherited| inherited < left) {
            let why = format!(
                "{what}: it may owe {left}, but the run was started with a limit of {inherited} (raise `ulimit -Hv` \
                 and `ulimit -Hd`, or lower [build] memory)"
            );
            (Status::InfraError, why)
        } else if left < plan {
            let why = format!(
                "{what}: under the run's ceiling it may owe {left}, instead of {plan} ([build] memory): raise [memory] \
                 host_ceiling"
            );
            (Status::DoesNotFit, why)
        } else {
            (Status::HostMemoryLimit, format!("{what}; it may owe {plan} ([build] memory)"))
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
            (4, None, Status::HostMemoryLimit, "it may owe 4.00 GiB ([build] memory)"),
            (4, Some(4), Status::HostMemoryLimit, "[build] memory"),
            (2, None, Status::DoesNotFit, "instead of 4.00 GiB"),
            (2, Some(3), Status::DoesNotFit, "host_ceiling"),
            (4, Some(3), Status::InfraError, "a limit of 3.00 GiB (raise `ulimit -Hv`"),
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
