//! Reads how long threads have been ready to run but waited for a CPU.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// The maximum number of threads whose waits are read. Reading those of one thread takes some microseconds, and is done
/// twice for each block.
const MAX_THREADS: usize = 256;

/// The waiting times so far of this thread and of threads of a runner.
pub(super) struct Waits {
    own: Duration,
    threads: BTreeMap<String, Duration>,
}

impl Waits {
    /// Reads the waits of the first thread of process `pid`; `None` if Linux does not report them. This takes so little
    /// time that the process may be running.
    pub(super) fn of_first_thread(pid: u32) -> Option<Self> {
        let first = run_delay(format!("/proc/{pid}/schedstat"))?;
        Some(Self { own: own()?, threads: BTreeMap::from([(pid.to_string(), first)]) })
    }

    /// Reads the waits of all threads of process `pid`; `None` if Linux does not report them, or if there are too many
    /// threads. Call this while the process is stopped: a running process could do work while the waits are read, and
    /// the work would not be noticed.
    pub(super) fn of_all_threads(pid: u32) -> Option<Self> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let mut threads = BTreeMap::new();
        for task in tasks.filter_map(Result::ok) {
            if threads.len() == MAX_THREADS {
                return None;
            }
            let waited = run_delay(task.path().join("schedstat"))?;
            threads.insert(task.file_name().to_string_lossy().into_owned(), waited);
        }
        Some(Self { own: own()?, threads })
    }

    /// Returns the total waits since `before`. The waits of threads that have ended are unknown, and do not count.
    pub(super) fn since(&self, before: &Self) -> Duration {
        let of_threads = self
            .threads
            .iter()
            .map(|(thread, now)| now.saturating_sub(before.threads.get(thread).copied().unwrap_or_default()));
        self.own.saturating_sub(before.own) + of_threads.sum::<Duration>()
    }
}

fn own() -> Option<Duration> {
    run_delay("/proc/thread-self/schedstat")
}

/// Reads the second field of a `schedstat` file: the time spent on a run queue, in nanoseconds.
fn run_delay(path: impl AsRef<Path>) -> Option<Duration> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(Duration::from_nanos(text.split_ascii_whitespace().nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(own: u64, threads: &[(&str, u64)]) -> Waits {
        let threads = threads.iter().map(|&(thread, us)| (thread.to_owned(), Duration::from_micros(us)));
        Waits { own: Duration::from_micros(own), threads: threads.collect() }
    }

    #[test]
    fn waits_of_new_threads_count_in_full_and_those_of_ended_threads_do_not() {
        let before = waits(10, &[("1", 100), ("2", 5000)]);
        for (after, total) in [
            (waits(10, &[("1", 100), ("2", 5000)]), 0),
            (waits(13, &[("1", 140), ("2", 5000)]), 43),
            (waits(10, &[("1", 140), ("3", 7)]), 47),
        ] {
            assert_eq!(after.since(&before), Duration::from_micros(total));
        }
    }

    #[test]
    fn waits_of_the_first_and_of_all_threads_are_read() {
        let own = std::process::id();
        let Some(first) = Waits::of_first_thread(own) else {
            return println!("SKIPPED waits: Linux does not report them");
        };
        assert_eq!(first.threads.len(), 1);
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let waiting = std::thread::spawn(move || ended.recv());
        // Other tests start and end threads too, which may end between the two reads.
        let all = (0..100).find_map(|_| Waits::of_all_threads(own)).expect("threads of this process");
        assert!(2 <= all.threads.len() && all.threads.contains_key(&own.to_string()));
        drop(end);
        waiting.join().expect("the thread").expect_err("nothing was sent");
    }
}
