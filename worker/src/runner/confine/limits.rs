//! Resource limits: the only bounds on memory that hold without overshoot, and the fences around the rest.

use opt_shared::message::Rung;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{ConfineError, ResourceLimits, rung};

pub(super) fn apply(limits: &ResourceLimits) -> Result<Vec<Rung>, ConfineError> {
    let fixed = [
        (Resource::Data, limits.data.get(), "limiting private memory"),
        (Resource::Fsize, limits.file_size.get(), "limiting file sizes"),
        (Resource::Nofile, u64::from(limits.open_files), "limiting open files"),
        (Resource::Stack, limits.stack.get(), "limiting the stack"),
        (Resource::Memlock, limits.locked_memory.get(), "limiting locked memory"),
        // A core dump of a big process takes longer than its run, and may go to a pipe.
        (Resource::Core, 0, "forbidding core dumps"),
        // Message queues are kernel memory that nobody would give back.
        (Resource::Msgqueue, 0, "forbidding message queues"),
        // No inmate outranks the process that times it.
        (Resource::Nice, 0, "forbidding higher priority"),
        (Resource::Rtprio, 0, "forbidding real-time priority"),
    ];
    for (resource, value, action) in fixed {
        lower(resource, value, action)?;
    }
    let mut rungs = vec![
        rung("memory_limit", true, limits.data.to_string()),
        rung("stack_limit", true, limits.stack.to_string()),
        rung("file_size_limit", true, limits.file_size.to_string()),
    ];
    if let Some(bytes) = limits.address_space {
        lower(Resource::As, bytes.get(), "limiting address space")?;
        rungs.push(rung("address_space_limit", true, bytes.to_string()));
    }
    if let Some(processes) = limits.processes {
        lower(Resource::Nproc, u64::from(processes), "limiting processes")?;
    }
    Ok(rungs)
}

/// Whether the limit on processes bites, which depends on who the runner has become since.
pub(super) fn process_limit(limits: &ResourceLimits) -> Option<Rung> {
    let processes = limits.processes?;
    Some(if rustix::process::getuid().is_root() {
        rung("process_limit", false, "the kernel exempts uid 0; only the memory limit bounds each process")
    } else {
        rung("process_limit", true, processes.to_string())
    })
}

fn lower(resource: Resource, value: u64, action: &'static str) -> Result<(), ConfineError> {
    // The hard limit we were born with may be tighter, and raising it is a privilege.
    let value = getrlimit(resource).maximum.map_or(value, |born_with| born_with.min(value));
    setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })
        .map_err(ConfineError::refused(action))
}
