//! Waits, with a time limit, until a descriptor is readable.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Converts a timeout to the form that system calls take. A timeout that is too long becomes the longest possible one.
pub fn timespec(bound: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(bound.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(bound.subsec_nanos()),
    }
}

/// Waits until the descriptor is readable or at its end, and returns false if that takes longer than the timeout. A
/// pidfd is readable once its process has died. Signals do not end the wait.
pub fn readable(descriptor: impl AsFd, timeout: Duration) -> rustix::io::Result<bool> {
    let began = Instant::now();
    loop {
        let time_left = timespec(timeout.saturating_sub(began.elapsed()));
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&time_left)) {
            Err(rustix::io::Errno::INTR) => {}
            answer => return answer.map(|ready| 0 < ready),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipe_is_readable_once_it_has_data_or_is_closed() {
        let (read, write) = rustix::pipe::pipe().expect("a pipe");
        assert_eq!(readable(&read, Duration::ZERO), Ok(false));
        rustix::io::write(&write, b"x").expect("room for a byte");
        assert_eq!(readable(&read, Duration::from_secs(60)), Ok(true));
        rustix::io::read(&read, &mut [0; 1]).expect("the byte");
        drop(write);
        assert_eq!(readable(&read, Duration::from_secs(60)), Ok(true));
    }

    #[test]
    fn timeout_that_is_too_long_becomes_the_longest_possible() {
        assert_eq!(timespec(Duration::MAX).tv_sec, i64::MAX);
        assert_eq!(timespec(Duration::from_millis(1_500)), Timespec { tv_sec: 1, tv_nsec: 500_000_000 });
    }
}
