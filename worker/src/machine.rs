//! Finds the CPUs that a worker may use, and moves a thread off one of them.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Returns the CPUs that were available to the calling thread at the first call of this function.
pub(crate) fn cpus() -> Vec<u32> {
    // This is queried only once, because `avoid_cpu` later changes the mask of a thread.
    static GIVEN: OnceLock<Vec<u32>> = OnceLock::new();
    GIVEN
        .get_or_init(|| match sched_getaffinity(None) {
            Ok(set) => (0..CpuSet::MAX_CPU)
                .filter(|&cpu| set.is_set(cpu))
                .filter_map(|cpu| u32::try_from(cpu).ok())
                .collect(),
            // This fails if the machine has more CPUs than fit into a set of fixed size. In this case, assume CPU 0
            // alone.
            Err(_) => vec![0],
        })
        .clone()
}

/// Moves the calling thread off `cpu` if it runs there and the process has another CPU.
pub(crate) fn avoid_cpu(cpu: u32) {
    if sched_getcpu() != cpu as usize {
        return;
    }
    let mut others = CpuSet::new();
    for other in cpus().into_iter().filter(|&other| other != cpu) {
        others.set(other as usize);
    }
    // If the system call is refused, times are noisier, as with a single CPU.
    if others.count() != 0 {
        let _ = sched_setaffinity(None, &others);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_leaves_the_given_cpu() {
        // The check runs in a thread of its own, so that the changed mask does not outlast it.
        let moved = std::thread::spawn(|| {
            let given = cpus();
            let here = u32::try_from(sched_getcpu()).expect("a number");
            avoid_cpu(here);
            let allowed = sched_getaffinity(None).expect("the mask");
            // If the thread moved between the two calls, `avoid_cpu` did not change the mask.
            let excluded_or_unchanged =
                !allowed.is_set(here as usize) || allowed.count() as usize == given.len();
            (
                given.len(),
                excluded_or_unchanged,
                sched_getcpu() != here as usize || allowed.is_set(here as usize),
            )
        });
        let (given, excluded_or_unchanged, elsewhere) = moved.join().expect("the thread");
        assert!(given == 1 || (excluded_or_unchanged && elsewhere));
    }
}
