//! Waiting for a descriptor, always with a bound. What is waited for, and what it means, is the caller's.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// As the kernel wants it. What is longer than it can say is the longest that it can.
pub fn timespec(bound: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(bound.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(bound.subsec_nanos()),
    }
}

/// Whether there is something to read in time, or an end to be seen; of a pidfd: whether its process is dead. Signals do
/// not cut it short.
pub fn readable(descriptor: impl AsFd, timeout: Duration) -> rustix::io::Result<bool> {
    let began = Instant::now();
    loop {
        let left = timespec(timeout.saturating_sub(began.elapsed()));
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            answer => return answer.map(|ready| 0 < ready),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_readable_once_there_is_something_or_its_end() {
        let (read, write) = rustix::pipe::pipe().expect("a pipe");
        assert_eq!(readable(&read, Duration::ZERO), Ok(false));
        rustix::io::write(&write, b"x").expect("room for a byte");
        assert_eq!(readable(&read, Duration::from_secs(60)), Ok(true));
        rustix::io::read(&read, &mut [0; 1]).expect("the byte");
        drop(write);
        assert_eq!(readable(&read, Duration::from_secs(60)), Ok(true));
    }

    #[test]
    fn a_bound_beyond_the_kernels_words_is_the_longest_of_them() {
        assert_eq!(timespec(Duration::MAX).tv_sec, i64::MAX);
        assert_eq!(timespec(Duration::from_millis(1_500)), Timespec { tv_sec: 1, tv_nsec: 500_000_000 });
    }
}
