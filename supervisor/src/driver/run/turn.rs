//! Measures how long the main loop takes between two waits for events. The loop notices no events during that time.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

/// Measures the iterations (turns) of the loop that one thread runs. An iteration is the time between two waits,
/// without the time during which the thread was ready to run but had no CPU.
pub(super) struct TurnClock {
    /// Linux's account of the thread's scheduling. `None` if Linux keeps no such account. Iterations then include the
    /// time without a CPU.
    schedstat: Option<File>,
    /// When the current iteration began, and the thread's total time without a CPU until then. `None` during a wait.
    began: Option<(Instant, Duration)>,
    /// The part of the current iteration that has taken longest so far, and how long it took.
    part: (&'static str, Duration),
    longest: Duration,
    /// The part that took longest in the longest iteration, and how long it took.
    longest_part: (&'static str, Duration),
}

impl TurnClock {
    /// Returns a clock for the calling thread.
    pub(super) fn of_this_thread() -> Self {
        Self { schedstat: File::open("/proc/thread-self/schedstat").ok(), ..Self::without_schedstat() }
    }

    fn without_schedstat() -> Self {
        Self {
            schedstat: None,
            began: None,
            part: ("", Duration::ZERO),
            longest: Duration::ZERO,
            longest_part: ("", Duration::ZERO),
        }
    }

    pub(super) fn begin(&mut self) {
        self.began = Some((Instant::now(), self.without_cpu()));
        self.part = ("", Duration::ZERO);
    }

    /// Records a part of the current iteration.
    pub(super) fn part_ended(&mut self, part: &'static str, took: Duration) {
        if self.part.1 < took {
            self.part = (part, took);
        }
    }

    pub(super) fn end(&mut self) {
        let Some((began, without_cpu)) = self.began.take() else { return };
        let elapsed = began.elapsed();
        // Linux's account is read only if this iteration could be the longest so far. Most iterations are too short for
        // that, even if their time without a CPU is included.
        if self.longest < elapsed {
            let took = elapsed.saturating_sub(self.without_cpu().saturating_sub(without_cpu));
            if self.longest < took {
                (self.longest, self.longest_part) = (took, self.part);
            }
        }
    }

    /// Returns the part that took longest in the longest iteration, and how long it took. The part is a phrase that
    /// follows "while".
    pub(super) fn longest_part(&self) -> (&'static str, Duration) {
        self.longest_part
    }

    pub(super) fn longest(&self) -> Duration {
        self.longest
    }

    fn without_cpu(&self) -> Duration {
        let mut text = [0; 96];
        let read = self.schedstat.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        text.get(..read).and_then(run_delay).unwrap_or_default()
    }
}

/// Returns the second number of a `schedstat` file, in nanoseconds: the time for which the thread waited for a CPU.
fn run_delay(schedstat: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(schedstat).ok()?;
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_delay_is_the_second_number() {
        assert_eq!(run_delay(b"123456 7890 12\n"), Some(Duration::from_nanos(7890)));
        for text in ["", "123456", "1 x 2", "1 -2 3"] {
            assert_eq!(run_delay(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn longest_turn_is_kept_and_waits_do_not_count() {
        let mut clock = TurnClock::without_schedstat();
        clock.end();
        assert_eq!(clock.longest(), Duration::ZERO);
        let turn_of = |clock: &mut TurnClock, took: Duration| {
            let now = Instant::now();
            clock.begin();
            clock.began = now.checked_sub(took).map(|began| (began, Duration::ZERO));
            clock.part_ended("deciding", took / 3);
            clock.part_ended("sampling", took / 2);
            clock.part_ended("serving", took / 6);
            clock.end();
        };
        let second = Duration::from_secs(1);
        turn_of(&mut clock, 60 * second);
        let longest = clock.longest();
        assert!(60 * second <= longest, "{longest:?}");
        assert_eq!(clock.longest_part(), ("sampling", 30 * second));
        turn_of(&mut clock, second);
        clock.end();
        assert_eq!((clock.longest(), clock.longest_part().0), (longest, "sampling"));
    }
}
