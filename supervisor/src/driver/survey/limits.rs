//! What a run may owe on this machine: the plan's limits in bytes.

use std::path::Path;

use opt_shared::units::Bytes;

use crate::core::Ceilings;
use crate::plan::{Plan, Unified};

/// What the plan allows the whole process tree on this machine, and what it leaves to the machine.
pub fn limits(plan: &Plan) -> (Ceilings, Bytes) {
    limits_of(plan, whole_memory())
}

pub(crate) fn limits_of(plan: &Plan, (whole, total): (Bytes, Bytes)) -> (Ceilings, Bytes) {
    let ceilings = Ceilings {
        host: plan.memory.host_ceiling.of(whole),
        // There is no device yet: whether it shares the host's memory is for the plan alone to say.
        device: Bytes::ZERO,
        unified: plan.memory.unified == Unified::Yes,
    };
    (ceilings, plan.memory.host_floor.of(total))
}

/// What there is for us, and what the machine has. Asked once in a run: it takes room to read.
pub(crate) fn whole_memory() -> (Bytes, Bytes) {
    let machine = crate::memory::machine::MachineSampler::open(Path::new("/proc"))
        .and_then(|mut machine| machine.sample())
        .ok();
    let group = crate::memory::cgroup::memory_limit(Path::new("/")).ok().flatten();
    // Without a figure nothing can be promised: a machine that does not say its memory has none to give.
    let total = machine.map_or(Bytes::gib(1), |machine| machine.total);
    (group.map_or(total, |group| group.limit.min(total)), total)
}
