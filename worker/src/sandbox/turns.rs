//! How long a turn on a CPU lasts: short ones, for whoever is timed and whoever times.

/// Asks for short turns on a CPU: whoever shares one with others is then served soon after it wakes, at the price of being
/// interrupted more often. No privilege is needed. Threads that are started later have them, too.
///
/// False where the kernel does not know of it (before Linux 6.12 the figure is taken and means nothing).
pub(crate) fn take_short_turns() -> bool {
    let attributes = SchedulingAttributes {
        size: SIZE_OF_ATTRIBUTES,
        runtime: SHORT_TURN_NS,
        ..SchedulingAttributes::default()
    };
    // SAFETY: the structure is as long as it says, lives until the call returns, and is only read.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) == 0 }
}

/// The shortest that the kernel grants.
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
    fn short_turns_are_granted_to_anybody() {
        // Of a thread of its own, which takes its turns along. Kernels from 3.14 on have the call.
        assert!(std::thread::spawn(take_short_turns).join().expect("the thread"));
    }
}
