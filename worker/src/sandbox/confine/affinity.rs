//! Whether a process could run on more CPUs than it was put on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Tried, because a control group may hold it there as well, and then asking for CPUs does no harm: libraries do.
pub(super) fn can_be_left() -> bool {
    // More CPUs than the fixed set holds.
    let Ok(given) = sched_getaffinity(None) else { return true };
    let mut all = CpuSet::new();
    for cpu in 0..CpuSet::MAX_CPU {
        all.set(cpu);
    }
    if sched_setaffinity(None, &all).is_err() {
        return false;
    }
    let wider = sched_getaffinity(None) != Ok(given);
    // What was granted a moment ago is granted again.
    let _ = sched_setaffinity(None, &given);
    wider
}
