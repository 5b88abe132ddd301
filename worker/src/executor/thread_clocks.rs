//! CPU time of a runner's threads, exact at the moment of reading.
//!
//! The clock of a whole process lags by up to a scheduler tick for every thread that is running on another CPU
//! (the kernel brings only the caller's own figure up to date); the clock of a single thread does not. What
//! threads have used that ended meanwhile is not seen here: a difference of two readings is a lower bound.

use std::time::Duration;

/// `MAKE_THREAD_CPUCLOCK(tid, CPUCLOCK_SCHED)` of the kernel's `posix-timers.h`: a stable part of its interface.
fn clock_of(tid: i32) -> libc::clockid_t {
    const PER_THREAD: libc::clockid_t = 4;
    const SCHED: libc::clockid_t = 2;
    (!tid << 3) | PER_THREAD | SCHED
}

/// One reading: every thread with its time.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadClocks {
    /// Its number is the process's.
    first: i32,
    threads: Vec<(i32, Duration)>,
}

impl ThreadClocks {
    /// Threads that end while it reads are left out.
    pub(crate) fn read(pid: u32) -> Self {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Self::default() };
        let threads = tasks
            .flatten()
            .filter_map(|task| task.file_name().to_str()?.parse().ok())
            .filter_map(|tid| Some((tid, time_of(tid)?)))
            .collect();
        Self { first: i32::try_from(pid).unwrap_or(0), threads }
    }

    /// CPU time used since `earlier` by the threads of this reading.
    pub(crate) fn since(&self, earlier: &Self) -> Duration {
        self.sum_since(earlier, |_| true)
    }

    /// The same, without the process's first thread.
    pub(crate) fn others_since(&self, earlier: &Self) -> Duration {
        self.sum_since(earlier, |tid| tid != self.first)
    }

    fn sum_since(&self, earlier: &Self, counts: impl Fn(i32) -> bool) -> Duration {
        self.threads
            .iter()
            .filter(|(tid, _)| counts(*tid))
            .map(|&(tid, time)| {
                let before = earlier.threads.iter().find(|(known, _)| *known == tid);
                time.saturating_sub(before.map_or(Duration::ZERO, |&(_, before)| before))
            })
            .sum()
    }
}

fn time_of(tid: i32) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec to the place given; a clock that does not exist is an error, nothing worse.
    if unsafe { libc::clock_gettime(clock_of(tid), &raw mut time) } != 0 {
        return None;
    }
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_is_seen_busy() {
        let me = std::process::id();
        let before = ThreadClocks::read(me);
        assert!(!before.threads.is_empty());
        let mut after = before.clone();
        // Until the clock of this very thread has moved on.
        while after.since(&before) < Duration::from_millis(2) {
            std::hint::black_box((0..1000u64).sum::<u64>());
            after = ThreadClocks::read(me);
        }
        assert!(before.since(&after) < after.since(&before) + Duration::from_secs(1));
    }
}
