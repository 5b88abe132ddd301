//! Tests whether a process can get more CPUs than it was given.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Requests all CPUs for a moment. Returns true if the process gets more CPUs than it had, or if this cannot be
/// determined. If this returns false, it does no harm when a library requests CPUs, so such requests need not be
/// refused.
pub(super) fn can_gain_cpus() -> bool {
    // Fails if the machine has more CPUs than a `CpuSet` can contain.
    let Ok(given) = sched_getaffinity(None) else { return true };
    let mut all = CpuSet::new();
    for cpu in 0..CpuSet::MAX_CPU {
        all.set(cpu);
    }
    if sched_setaffinity(None, &all).is_err() {
        return false;
    }
    let wider = sched_getaffinity(None) != Ok(given);
    // Restores the previous set, which was granted before.
    let _ = sched_setaffinity(None, &given);
    wider
}
