//! Resource limits: the only bounds on memory that hold without overshoot, and the fences around the rest.

use opt_shared::message::Protection;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{ConfineError, ProcessLimit, ResourceLimits, protection};

/// Since this Linux, RLIMIT_NPROC holds what a user has in its user namespace, not what it has everywhere.
const COUNTS_PER_NAMESPACE: (u32, u32) = (5, 14);

/// Each is a piece of kernel memory. No program waits for as many.
const MOST_SIGNALS: u64 = 1024;

pub(super) fn apply(limits: &ResourceLimits) -> Result<Vec<Protection>, ConfineError> {
    let fixed = [
        (Resource::Data, limits.data.get(), "limiting private memory"),
        (Resource::Fsize, limits.file_size.get(), "limiting file sizes"),
        (Resource::Nofile, u64::from(limits.open_files), "limiting open files"),
        (Resource::Stack, limits.stack.get(), "limiting the stack"),
        (Resource::Memlock, limits.locked_memory.get(), "limiting locked memory"),
        // A core dump of a big process takes longer than its run, and may go to a pipe.
        (Resource::Core, 0, "forbidding core dumps"),
        (Resource::Sigpending, MOST_SIGNALS, "limiting signals that wait"),
        // Message queues are kernel memory that nobody would give back.
        (Resource::Msgqueue, 0, "forbidding message queues"),
        // No sandboxed process outranks the process that times it.
        (Resource::Nice, 0, "forbidding higher priority"),
        (Resource::Rtprio, 0, "forbidding real-time priority"),
    ];
    for (resource, value, action) in fixed {
        lower(resource, value, action)?;
    }
    let mut protections = vec![
        protection("memory_limit", true, limits.data.to_string()),
        protection("stack_limit", true, limits.stack.to_string()),
        protection("file_size_limit", true, limits.file_size.to_string()),
    ];
    if let Some(bytes) = limits.address_space {
        lower(Resource::As, bytes.get(), "limiting address space")?;
        protections.push(protection("address_space_limit", true, bytes.to_string()));
    }
    Ok(protections)
}

/// After the process has become the user that it is to be: whom the limit counts, and whether it bites, depends on that.
pub(super) fn limit_processes(limit: ProcessLimit, shares_user: bool) -> Result<Protection, ConfineError> {
    let (most, counted) = counted(limit, shares_user);
    lower(Resource::Nproc, most, "limiting processes")?;
    Ok(if rustix::process::getuid().is_root() {
        protection(
            "process_limit",
            false,
            "the kernel exempts uid 0; only the memory limit bounds each process",
        )
    } else {
        protection("process_limit", true, counted)
    })
}

/// In a user namespace of this process's own, on a kernel that counts there only what is in it.
pub(super) fn counted_alone() -> bool {
    let read = |path| std::fs::read_to_string(path).ok();
    is_counted_alone(
        read("/proc/self/uid_map").as_deref(),
        &read("/proc/sys/kernel/osrelease").unwrap_or_default(),
    )
}

/// The namespace that a runner is cloned into has no id map; every other one that a worker can run in has.
fn is_counted_alone(id_map: Option<&str>, release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    let version = numbers.next().zip(numbers.next());
    id_map.is_some_and(|map| map.trim().is_empty())
        && version.is_some_and(|version| COUNTS_PER_NAMESPACE <= version)
}

/// The limit that the kernel is given, and what of it is meant for whom.
fn counted(limit: ProcessLimit, shares_user: bool) -> (u64, String) {
    let ProcessLimit { own, beside } = limit;
    if shares_user {
        (u64::from(own) + u64::from(beside), format!("{own}, beside {beside} that its user has"))
    } else {
        (u64::from(own), own.to_string())
    }
}

fn lower(resource: Resource, value: u64, action: &'static str) -> Result<(), ConfineError> {
    // The hard limit we were born with may be tighter, and raising it is a privilege.
    let value = getrlimit(resource).maximum.map_or(value, |born_with| born_with.min(value));
    setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })
        .map_err(ConfineError::refused(action))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_others_are_counted_only_where_the_user_is_shared() {
        let limit = ProcessLimit { own: 8, beside: 120 };
        assert_eq!(counted(limit, true), (128, "8, beside 120 that its user has".to_owned()));
        assert_eq!(counted(limit, false), (8, "8".to_owned()));
        assert_eq!(counted(ProcessLimit { own: u32::MAX, beside: 1 }, true).0, 1 << 32);
    }

    #[test]
    fn a_user_namespace_of_ones_own_is_counted_alone_by_kernels_that_can() {
        let mapped = "         0          0 4294967295\n";
        for (id_map, release, alone) in [
            (Some(""), "5.14.0", true),
            (Some(""), "5.15.167.4-some+\n", true),
            (Some(""), "6.1\n", true),
            (Some(""), "5.14-rc1", true),
            (Some(""), "5.13.19-2-generic\n", false),
            (Some(""), "4.19.0", false),
            (Some(""), "", false),
            (Some(""), "next", false),
            (Some(mapped), "6.1.0", false),
            (None, "6.1.0", false),
        ] {
            assert_eq!(is_counted_alone(id_map, release), alone, "{id_map:?} on {release:?}");
        }
    }
}
