//! Places the threads of a stopped runner on different CPUs for the moment in which it is resumed.
//!
//! All threads of a runner wake at once, while this process still occupies one of the CPUs. If the runner has as many
//! threads as there are CPUs, Linux wakes two of them on the same CPU, and they stay there for several milliseconds,
//! which is longer than a block. In an ordinary process, threads had that time long before. Right after they have
//! woken, each thread may use its CPUs again.

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::machine::cpus;

/// The largest number of threads that are placed, for each CPU. Most of more threads would be asleep, so placing them
/// would only take time.
const MAX_THREADS_PER_CPU: usize = 4;

/// The threads that were placed.
#[derive(Default)]
pub(super) struct Spread {
    placed: Vec<Placed>,
}

/// A thread, the CPUs that it may use, and the one among them that it is to wake on.
struct Placed {
    thread: Pid,
    allowed: CpuSet,
    wakes_on: CpuSet,
}

impl Spread {
    /// Places the threads of the stopped process `pid`, unless CPUs remain for all of them and for this process. A thread
    /// that may not use its CPU, because the candidate has chosen others, stays where it is.
    pub(super) fn of(pid: u32, threads: u32) -> Self {
        let (count, threads) = (cpus().len(), threads as usize);
        if threads < count.max(2) || count * MAX_THREADS_PER_CPU < threads {
            return Self::default();
        }
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Self::default() };
        let mut threads: Vec<Pid> = tasks
            .filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(Pid::from_raw)
            .collect();
        threads.sort_unstable_by_key(|thread| thread.as_raw_nonzero());
        Self::over(&threads, &wake_order(&cpus(), sched_getcpu()))
    }

    fn over(threads: &[Pid], cpus: &[usize]) -> Self {
        let pairs = threads.iter().zip(cpus.iter().cycle());
        Self { placed: pairs.filter_map(|(&thread, &cpu)| place(thread, cpu)).collect() }
    }

    /// Allows every thread its CPUs again. Called once the threads have been woken. A mask that the candidate has
    /// changed since then is left as it is.
    pub(super) fn undo(self) {
        for Placed { thread, allowed, wakes_on } in self.placed {
            if sched_getaffinity(Some(thread)).is_ok_and(|now| now == wakes_on) {
                let _ = sched_setaffinity(Some(thread), &allowed);
            }
        }
    }
}

/// The CPUs in the order in which threads get them. The first thread, which makes the calls, wakes at once, because it
/// is not on the CPU that this process uses until it sleeps.
fn wake_order(cpus: &[u32], here: usize) -> Vec<usize> {
    let mut order: Vec<usize> = cpus.iter().map(|&cpu| cpu as usize).collect();
    order.sort_by_key(|&cpu| cpu == here);
    order
}

/// Lets a stopped thread wake on one CPU only. Returns `None` if that is not possible.
fn place(thread: Pid, cpu: usize) -> Option<Placed> {
    let allowed = sched_getaffinity(Some(thread)).ok()?;
    if !allowed.is_set(cpu) || allowed.count() < 2 {
        return None;
    }
    let mut wakes_on = CpuSet::new();
    wakes_on.set(cpu);
    let placed: Result<(), Errno> = sched_setaffinity(Some(thread), &wakes_on);
    placed.ok().map(|()| Placed { thread, allowed, wakes_on })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use rustix::thread::gettid;

    use super::*;

    /// Starts a thread that may use these CPUs and waits for the end of the test.
    fn waiting_thread(allowed: &[u32]) -> (Pid, Sender<()>) {
        let mut set = CpuSet::new();
        allowed.iter().for_each(|&cpu| set.set(cpu as usize));
        let (end, ended): (Sender<()>, Receiver<()>) = channel();
        let (said, number) = channel();
        std::thread::spawn(move || {
            sched_setaffinity(None, &set).expect("the process may use these CPUs");
            said.send(gettid()).expect("the test waits");
            let _ = ended.recv();
        });
        (number.recv().expect("the thread runs"), end)
    }

    fn mask(thread: Pid) -> Vec<u32> {
        let set = sched_getaffinity(Some(thread)).expect("the thread lives");
        cpus().into_iter().filter(|&cpu| set.is_set(cpu as usize)).collect()
    }

    #[test]
    fn threads_wake_on_different_cpus_and_may_use_all_of_them_afterwards() {
        let all = cpus();
        let [first, second, ..] = all[..] else { return println!("SKIPPED spreading: there is one CPU") };
        let threads: Vec<(Pid, Sender<()>)> =
            [&all[..], &all[..], &[first][..]].into_iter().map(waiting_thread).collect();
        let pids: Vec<Pid> = threads.iter().map(|(pid, _)| *pid).collect();
        let order = wake_order(&[first, second], first as usize);
        assert_eq!(order, [second as usize, first as usize], "this thread's CPU comes last");
        let spread = Spread::over(&pids, &order);
        assert_eq!([mask(pids[0]), mask(pids[1]), mask(pids[2])], [vec![second], vec![first], vec![first]]);
        // The second thread chooses CPUs itself before it is released.
        let mut own = CpuSet::new();
        own.set(second as usize);
        sched_setaffinity(Some(pids[1]), &own).expect("it may use this CPU");
        spread.undo();
        assert_eq!([mask(pids[0]), mask(pids[1]), mask(pids[2])], [all, vec![second], vec![first]]);
    }

    #[test]
    fn threads_are_left_alone_if_a_cpu_remains_or_if_there_are_too_many() {
        let count = u32::try_from(cpus().len()).expect("few");
        let most = count * 4;
        for threads in [0, 1, count.saturating_sub(1), most + 1, u32::MAX] {
            // The process does not exist, so nothing could be placed in any case; the number decides first.
            assert!(Spread::of(u32::MAX, threads).placed.is_empty(), "{threads}");
        }
    }
}
