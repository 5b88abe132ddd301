//! Spreads the threads of a stopped runner over its CPUs, so that they wake on different ones.
//!
//! All of them wake at once, while this process still occupies a CPU. If there are as many threads as CPUs, Linux wakes
//! two of them on the same CPU and leaves them there for several milliseconds, which is longer than a block. Therefore,
//! one thread is made to wake on this process's CPU, which becomes free when this process sleeps. As soon as that
//! thread has been woken, it may use all its CPUs again. If it starts another thread in the few microseconds before
//! that, the new thread stays on the single CPU for good.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// A thread that may use a single CPU until this is dropped.
pub(super) struct Spread {
    thread: Pid,
    allowed: CpuSet,
    wakes_on: CpuSet,
}

impl Spread {
    /// Places a thread of the stopped process `pid`, if that is needed and possible. It is never the first thread,
    /// which makes the calls.
    pub(super) fn of(pid: u32, threads: u32) -> Option<Self> {
        if threads < 2 {
            return None;
        }
        let first = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let here = sched_getcpu();
        if !is_needed(threads, &sched_getaffinity(Some(first)).ok()?, here) {
            return None;
        }
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let threads = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
        let other = threads.filter_map(Pid::from_raw).filter(|&thread| thread != first).last()?;
        Self::place(other, here)
    }

    /// Makes a thread wake on this CPU. Returns `None` if it may not use this CPU, or may use no other.
    fn place(thread: Pid, cpu: usize) -> Option<Self> {
        let allowed = sched_getaffinity(Some(thread)).ok()?;
        if !allowed.is_set(cpu) || allowed.count() < 2 {
            return None;
        }
        let mut wakes_on = CpuSet::new();
        wakes_on.set(cpu);
        sched_setaffinity(Some(thread), &wakes_on).ok().map(|()| Self { thread, allowed, wakes_on })
    }
}

impl Drop for Spread {
    fn drop(&mut self) {
        // The candidate may have chosen other CPUs meanwhile.
        if sched_getaffinity(Some(self.thread)).is_ok_and(|now| now == self.wakes_on) {
            let _ = sched_setaffinity(Some(self.thread), &self.allowed);
        }
    }
}

/// Returns true if a process with this many threads needs all CPUs that it may use, and this process is on one of them.
fn is_needed(threads: u32, allowed: &CpuSet, here: usize) -> bool {
    allowed.is_set(here) && allowed.count() == threads
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use rustix::thread::gettid;

    use super::*;
    use crate::machine::cpus;

    fn set_of(cpus: &[u32]) -> CpuSet {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|&cpu| set.set(cpu as usize));
        set
    }

    /// Starts a thread that may use these CPUs and waits for the end of the test.
    fn waiting_thread(allowed: &[u32]) -> (Pid, Sender<()>) {
        let set = set_of(allowed);
        let (end, ended): (Sender<()>, Receiver<()>) = channel();
        let (said, number) = channel();
        std::thread::spawn(move || {
            sched_setaffinity(None, &set).expect("the process may use these CPUs");
            said.send(gettid()).expect("the test waits");
            let _ = ended.recv();
        });
        (number.recv().expect("the thread runs"), end)
    }

    fn mask(thread: Pid) -> CpuSet {
        sched_getaffinity(Some(thread)).expect("the thread lives")
    }

    #[test]
    fn thread_may_use_its_cpus_again_unless_it_has_chosen_others() {
        let all = cpus();
        let [first, second, ..] = all[..] else { return println!("SKIPPED spreading: there is one CPU") };
        let (thread, _end) = waiting_thread(&all);
        let spread = Spread::place(thread, first as usize).expect("it may use this CPU");
        assert!(mask(thread) == set_of(&[first]));
        drop(spread);
        assert!(mask(thread) == set_of(&all));
        let spread = Spread::place(thread, first as usize).expect("it may use this CPU");
        sched_setaffinity(Some(thread), &set_of(&[second])).expect("it may use this CPU");
        drop(spread);
        assert!(mask(thread) == set_of(&[second]));
        assert!(Spread::place(thread, second as usize).is_none(), "it may use no other CPU");
        assert!(Spread::place(thread, first as usize).is_none(), "it may not use this CPU");
    }

    #[test]
    fn spreading_is_needed_if_threads_need_all_cpus_and_one_is_taken() {
        for (threads, allowed, here, needed) in [
            (2, &[0, 1][..], 1, true),
            (1, &[0, 1][..], 1, false),
            (3, &[0, 1][..], 1, false),
            (2, &[0, 1][..], 2, false),
            (4, &[0, 2, 4, 6][..], 6, true),
            (4, &[0, 2, 4, 6][..], 5, false),
        ] {
            assert_eq!(is_needed(threads, &set_of(allowed), here), needed, "{threads} {allowed:?} {here}");
        }
    }
}
