//! Requests short time slices from the scheduler, for workers and for the runners that they time.

/// Requests short time slices for this thread. A thread that shares a CPU then runs sooner after it wakes, but is
/// interrupted more often. Needs no privilege. Threads that are started later inherit the setting.
///
/// Returns false if the kernel refuses the call. Before Linux 6.12, the value is accepted but has no effect.
pub(crate) fn take_short_turns() -> bool {
    let attributes = SchedulingAttributes {
        size: SIZE_OF_ATTRIBUTES,
        runtime: SHORT_TURN_NS,
        ..SchedulingAttributes::default()
    };
    // SAFETY: the structure is as long as it says, lives until the call returns, and is only read.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) == 0 }
}

/// The shortest slice that the kernel grants.
const SHORT_TURN_NS: u64 = 100_000;
const SIZE_OF_ATTRIBUTES: u32 = 48;

/// `struct sched_attr` of `linux/sched/types.h`, in its first version. Policy 0 is `SCHED_OTHER`.
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

    #[test]
    fn short_turns_need_no_privilege() {
        // Runs in a separate thread, so that the setting does not affect others. The call exists since Linux 3.14.
        assert!(std::thread::spawn(take_short_turns).join().expect("the thread"));
    }
}
