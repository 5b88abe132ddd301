//! Converts a plan's memory limits to bytes on this machine.

use std::path::Path;

use opt_shared::units::Bytes;

use crate::core::Ceilings;
use crate::plan::{Plan, Unified};

/// What the whole process tree may owe, and what has to stay available to the machine.
pub fn limits(plan: &Plan) -> (Ceilings, Bytes) {
    limits_of(plan, whole_memory())
}

pub(crate) fn limits_of(plan: &Plan, (whole, total): (Bytes, Bytes)) -> (Ceilings, Bytes) {
    let ceilings = Ceilings {
        host: plan.memory.host_ceiling.of(whole),
        // There is no device yet, and only the plan can say whether one would share the host's memory.
        device: Bytes::ZERO,
        unified: plan.memory.unified == Unified::Yes,
    };
    (ceilings, plan.memory.host_floor.of(total))
}

/// The memory that we may use, and that of the machine. Read only once in a run, because reading it takes memory.
pub(crate) fn whole_memory() -> (Bytes, Bytes) {
    let machine = crate::memory::machine::MachineSampler::open(Path::new("/proc"))
        .and_then(|mut machine| machine.sample())
        .ok();
    let group = crate::memory::cgroup::memory_limit(Path::new("/")).ok().flatten();
    // If the machine does not report its memory, 1 GiB is assumed.
    let total = machine.map_or(Bytes::gib(1), |machine| machine.total);
    (group.map_or(total, |group| group.limit.min(total)), total)
}
