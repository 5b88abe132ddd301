//! Requests short time slices or real-time priority from the scheduler, for workers that measure times and for runners
//! whose calls are timed.

use rustix::io::Errno;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheduling {
    /// Short time slices. A thread that shares a CPU then runs sooner after it wakes, but is interrupted more often.
    /// Needs no privilege. Threads that are started later inherit the setting. Before Linux 6.12, the setting is
    /// accepted but has no effect.
    Short,
    /// Real-time priority (`SCHED_FIFO`): the thread runs before all threads of a lower priority. Needs
    /// `CAP_SYS_NICE`. Threads that are started later do not inherit it.
    RealTime(u32),
}

/// Applies `scheduling` to the thread with this number; 0 is the calling thread.
pub(crate) fn set_scheduling(thread: u32, scheduling: Scheduling) -> Result<(), Errno> {
    let attributes = match scheduling {
        Scheduling::Short => {
            SchedulingAttributes { runtime: SHORT_SLICE_NS, ..SchedulingAttributes::default() }
        }
        Scheduling::RealTime(priority) => SchedulingAttributes {
            policy: FIFO,
            flags: RESET_ON_FORK,
            priority,
            ..SchedulingAttributes::default()
        },
    };
    let attributes = SchedulingAttributes { size: SIZE_OF_ATTRIBUTES, ..attributes };
    // SAFETY: the structure has the length that its `size` states, lives until the call returns, and is only read.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0) };
    if result == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    Err(Errno::from_raw_os_error(error))
}

/// The shortest time slice that Linux grants.
const SHORT_SLICE_NS: u64 = 100_000;
const SIZE_OF_ATTRIBUTES: u32 = 48;
/// `SCHED_FIFO` and `SCHED_FLAG_RESET_ON_FORK` of `linux/sched.h`.
const FIFO: u32 = 1;
const RESET_ON_FORK: u64 = 1;

/// The first version of `struct sched_attr` in `linux/sched/types.h`. Policy 0 is `SCHED_OTHER`.
#[repr(C)]
#[derive(Default)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const _: () = assert!(size_of::<SchedulingAttributes>() == SIZE_OF_ATTRIBUTES as usize);

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a test in a separate thread, so that the scheduling that it sets does not affect other tests.
    fn in_a_thread<T: Send + 'static>(run: fn() -> T) -> T {
        std::thread::spawn(run).join().expect("the thread")
    }

    #[test]
    fn short_slices_need_no_privilege() {
        assert_eq!(in_a_thread(|| set_scheduling(0, Scheduling::Short)), Ok(()));
    }

    #[test]
    fn real_time_priority_is_set_and_given_up() {
        let policies = in_a_thread(|| {
            let policy = || std::fs::read_to_string("/proc/thread-self/stat").map(|stat| policy_of(&stat));
            set_scheduling(0, Scheduling::RealTime(1)).map(|()| {
                let raised = policy().expect("/proc is readable");
                set_scheduling(0, Scheduling::Short).expect("giving up a priority needs no privilege");
                (raised, policy().expect("/proc is readable"))
            })
        });
        match policies {
            Ok(policies) => assert_eq!(policies, (u64::from(FIFO), 0)),
            Err(Errno::PERM) => println!("SKIPPED real-time priority: it needs CAP_SYS_NICE"),
            Err(errno) => panic!("{errno}"),
        }
    }

    /// Returns the scheduling policy, which is field 41 of `/proc/PID/stat`.
    fn policy_of(stat: &str) -> u64 {
        let fields = stat.rsplit_once(')').expect("a name").1;
        fields.split_ascii_whitespace().nth(41 - 3).expect("a policy").parse().expect("a number")
    }
}
