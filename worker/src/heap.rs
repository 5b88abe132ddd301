//! Makes the C library's allocator return unused memory to Linux sooner.
//!
//! glibc gives a large block its own mapping. But when such a block is freed, glibc by default takes later blocks up to
//! that size from the heap, and keeps their memory when they are freed. A process that once needed a few MiB would
//! therefore keep them until its end.

use std::ffi::c_int;

/// The size, in bytes, from which a worker's blocks get their own mapping. For smaller blocks, the system calls would
/// cost more than they save.
pub(crate) const WORKER: c_int = 2 << 20;
/// The same size, in bytes, for the supervisor and all other commands. It is smaller, because a run allocates its
/// largest blocks while it reads the plan, and can then last for days.
pub const SUPERVISOR: c_int = 128 << 10;

/// Fixes glibc's two thresholds at `size`, in bytes. A block of this size or larger gets its own mapping, and once this
/// much memory at the end of the heap is free, it is returned to Linux. Does nothing with other C libraries, whose
/// thresholds do not change.
pub fn return_blocks_from(size: c_int) {
    #[cfg(not(target_env = "gnu"))]
    let _ = size;
    #[cfg(target_env = "gnu")]
    for (option, limit) in [(libc::M_MMAP_THRESHOLD, size), (libc::M_TRIM_THRESHOLD, size)] {
        // SAFETY: mallopt only changes parameters of the allocator, under its lock.
        unsafe { libc::mallopt(option, limit) };
    }
}

/// Makes all threads share one heap. By default, glibc gives most threads heaps of their own, and each heap keeps the
/// memory that its thread has freed. Call this before the first thread is started. Does nothing with other C libraries.
pub fn share_one_heap() {
    // SAFETY: mallopt only changes parameters of the allocator, under its lock.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Returns the resident memory of this process that does not belong to a file, in KiB.
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("readable");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line");
        line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
    }

    /// An environment variable that is set in the process that measures.
    const MEASURES: &str = "OPT_TEST_MEASURES_HEAP";

    /// The measurement runs in a process that runs only this test, because in this process other tests allocate as
    /// well.
    #[test]
    fn freed_blocks_are_returned_even_after_larger_ones() {
        if std::env::var_os(MEASURES).is_some() {
            return measure();
        }
        let this = std::env::current_exe().expect("this test");
        let name = "heap::tests::freed_blocks_are_returned_even_after_larger_ones";
        let output = std::process::Command::new(this)
            .args(["--exact", name, "--nocapture"])
            .env(MEASURES, "1")
            .output()
            .expect("started");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.contains("1 passed"), "{output:?}");
    }

    fn measure() {
        const BLOCK_KIB: u64 = 8 << 10;
        return_blocks_from(WORKER);
        // With glibc's default thresholds, freeing this block would make the allocator keep the memory of the next one.
        drop(std::hint::black_box(vec![1_u8; 16 << 20]));
        let before = resident();
        let block = std::hint::black_box(vec![1_u8; 8 << 20]);
        let with = resident();
        drop(block);
        let after = resident();
        assert!(before + BLOCK_KIB / 2 < with, "{before} KiB, {with} KiB with the block");
        assert!(after < before + BLOCK_KIB / 2, "{before} KiB before, {after} KiB after");
    }
}
