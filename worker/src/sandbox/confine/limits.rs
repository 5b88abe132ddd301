//! Sets resource limits. Linux refuses requests that exceed these limits, so a process cannot exceed them even briefly.
//! Only the limit on processes has an exception: it does not apply to uid 0.

use opt_shared::message::Protection;
use opt_shared::units::Bytes;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{ConfineError, ProcessLimit, ResourceLimits, SandboxKind, protection};

/// Since this version of Linux, RLIMIT_NPROC counts only the user's processes in the same user namespace.
const COUNTS_PER_NAMESPACE: (u32, u32) = (5, 14);

/// The largest number of pending signals. Each uses kernel memory, and no program needs this many.
const MAX_SIGNALS: u64 = 1024;

/// Sets the limits of a process. Fails if an inherited limit is lower than the memory that a candidate was promised;
/// otherwise, the candidate would be blamed for running out of memory.
pub(super) fn apply(limits: &ResourceLimits, kind: SandboxKind) -> Result<Vec<Protection>, ConfineError> {
    if kind == SandboxKind::Candidate {
        for (resource, needed, limit) in [
            (Resource::Data, limits.data, "private memory (`ulimit -Hd`)"),
            (Resource::As, limits.address_space.unwrap_or(limits.data), "address space (`ulimit -Hv`)"),
        ] {
            require(resource, needed.get(), limit, |bytes| Bytes::new(bytes).to_string())?;
        }
    }
    let fixed = [
        (Resource::Data, limits.data.get(), "limiting private memory"),
        (Resource::Fsize, limits.file_size.get(), "limiting file sizes"),
        (Resource::Nofile, u64::from(limits.open_files), "limiting open files"),
        (Resource::Stack, limits.stack.get(), "limiting the stack"),
        (Resource::Memlock, limits.locked_memory.get(), "limiting locked memory"),
        // Core dumps are forbidden, because writing that of a large process may take longer than its run.
        (Resource::Core, 0, "forbidding core dumps"),
        (Resource::Sigpending, MAX_SIGNALS, "limiting pending signals"),
        // Message queues use kernel memory, and would outlive the process.
        (Resource::Msgqueue, 0, "forbidding message queues"),
        // No sandboxed process may get a higher priority than the worker that times it.
        (Resource::Nice, 0, "forbidding a higher priority"),
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

/// Limits the number of processes. Call this after the process has changed its user, because the user determines
/// which processes the limit counts, and whether the limit has any effect.
pub(super) fn limit_processes(
    limit: ProcessLimit,
    shares_user: bool,
    kind: SandboxKind,
) -> Result<Protection, ConfineError> {
    let (max, counted) = counted(limit, shares_user);
    if kind == SandboxKind::Candidate {
        require(Resource::Nproc, max, "processes (`ulimit -Hu`)", |count| count.to_string())?;
    }
    lower(Resource::Nproc, max, "limiting processes")?;
    Ok(if rustix::process::getuid().is_root() {
        protection(
            "process_limit",
            false,
            "Linux exempts uid 0 from this limit; each process still has its memory limit",
        )
    } else {
        protection("process_limit", true, counted)
    })
}

/// Returns true if the process has its own user namespace and Linux counts only the processes in that namespace.
pub(super) fn is_counted_separately() -> bool {
    let read = |path| std::fs::read_to_string(path).ok();
    counts_separately(
        read("/proc/self/uid_map").as_deref(),
        &read("/proc/sys/kernel/osrelease").unwrap_or_default(),
    )
}

/// Computes what `is_counted_separately` returns, from the id map and the version of Linux. The id map is empty only in
/// the user namespace that a runner is cloned into.
fn counts_separately(id_map: Option<&str>, release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    let version = numbers.next().zip(numbers.next());
    id_map.is_some_and(|map| map.trim().is_empty())
        && version.is_some_and(|version| COUNTS_PER_NAMESPACE <= version)
}

fn counted(limit: ProcessLimit, shares_user: bool) -> (u64, String) {
    let ProcessLimit { own, other_tasks } = limit;
    if shares_user {
        (u64::from(own) + u64::from(other_tasks), format!("{own}, in addition to {other_tasks} of its user"))
    } else {
        (u64::from(own), own.to_string())
    }
}

/// Fails if the inherited hard limit is lower than `needed`. `show` formats a limit with its unit.
fn require(
    resource: Resource,
    needed: u64,
    limit: &'static str,
    show: impl Fn(u64) -> String,
) -> Result<(), ConfineError> {
    match getrlimit(resource).maximum {
        Some(inherited) if inherited < needed => {
            Err(ConfineError::Inherited { limit, inherited: show(inherited), needed: show(needed) })
        }
        _ => Ok(()),
    }
}

fn lower(resource: Resource, value: u64, action: &'static str) -> Result<(), ConfineError> {
    // The inherited hard limit may be lower, and only a privileged process may raise it.
    let value = getrlimit(resource).maximum.map_or(value, |inherited| inherited.min(value));
    setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })
        .map_err(ConfineError::refused(action))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_tasks_of_the_user_count_only_if_the_user_is_shared() {
        let limit = ProcessLimit { own: 8, other_tasks: 120 };
        assert_eq!(counted(limit, true), (128, "8, in addition to 120 of its user".to_owned()));
        assert_eq!(counted(limit, false), (8, "8".to_owned()));
        assert_eq!(counted(ProcessLimit { own: u32::MAX, other_tasks: 1 }, true).0, 1 << 32);
    }

    #[test]
    fn inherited_limits_that_are_too_low_are_errors() {
        let inherited = getrlimit(Resource::Nofile).maximum.expect("a limit");
        let require = |needed| require(Resource::Nofile, needed, "open files", |count| count.to_string());
        require(inherited).expect("enough");
        let error = require(inherited + 1).expect_err("too low").to_string();
        assert!(error.contains(&format!("{inherited}")) && error.contains("open files"), "{error}");
    }

    #[test]
    fn own_user_namespace_is_counted_alone_since_linux_5_14() {
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
            assert_eq!(counts_separately(id_map, release), alone, "{id_map:?} on {release:?}");
        }
    }
}
