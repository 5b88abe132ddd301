//! The few facts of the machine that a worker needs: which CPUs it may use, and on which of them it stands.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// CPU numbers this process was given when it was started.
pub(crate) fn cpus() -> Vec<u32> {
    // Asked once: `keep_off` changes what the system would answer.
    static GIVEN: OnceLock<Vec<u32>> = OnceLock::new();
    GIVEN
        .get_or_init(|| match sched_getaffinity(None) {
            Ok(set) => (0..CpuSet::MAX_CPU)
                .filter(|&cpu| set.is_set(cpu))
                .filter_map(|cpu| u32::try_from(cpu).ok())
                .collect(),
            // More CPUs than the fixed set holds: the first is always ours to ask for.
            Err(_) => vec![0],
        })
        .clone()
}

/// Moves the calling thread to another CPU if it stands on this one and has another.
pub(crate) fn keep_off(cpu: u32) {
    if sched_getcpu() != cpu as usize {
        return;
    }
    let mut others = CpuSet::new();
    for other in cpus().into_iter().filter(|&other| other != cpu) {
        others.set(other as usize);
    }
    // A refusal costs noise, and so does having a single CPU.
    if others.count() != 0 {
        let _ = sched_setaffinity(None, &others);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_leaves_the_cpu_it_is_told_to() {
        // Of a thread of its own, which takes its mask along.
        let moved = std::thread::spawn(|| {
            let given = cpus();
            let here = u32::try_from(sched_getcpu()).expect("a number");
            keep_off(here);
            let allowed = sched_getaffinity(None).expect("the mask");
            // It may have been moved between the two looks; then nothing was to be done.
            let left = !allowed.is_set(here as usize) || allowed.count() as usize == given.len();
            (given.len(), left, sched_getcpu() != here as usize || allowed.is_set(here as usize))
        });
        let (given, left, elsewhere) = moved.join().expect("the thread");
        assert!(given == 1 || (left && elsewhere));
    }
}
