//! Tests whether a process can run on more CPUs than it was given.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns true if the process can get more CPUs. It tries to, because a control group may prevent it as well; then a
/// request for CPUs, as libraries make it, is harmless.
pub(super) fn can_be_left() -> bool {
    // There are more CPUs than the fixed set holds.
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
