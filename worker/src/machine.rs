//! The few facts of the machine that a worker needs: which CPUs it may use.

/// CPU numbers this process may run on.
pub(crate) fn cpus() -> Vec<u32> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU)
            .filter(|&cpu| set.is_set(cpu))
            .map(|cpu| cpu as u32)
            .collect(),
        // More CPUs than the fixed set holds: the first is always ours to ask for.
        Err(_) => vec![0],
    }
}
