//! One block: n calls of one runner between two stamps of this process's clock, each call into an output slot of
//! its own.
//!
//! The runner is stopped between blocks, so that it cannot compete with the other side, and its outputs are read
//! only then. Right before a timed block it is woken by an empty one, and armed by another, after which it spins for
//! the next command, so that the stamps hold the calls and two cache-line hand-offs; what that costs is measured with
//! empty blocks and subtracted. What CPU time it takes to be woken and armed is watched: work that is done then is done
//! outside of the clock.

use std::time::Duration;

use opt_shared::message::KillReason;
use rustix::time::{ClockId, clock_gettime};

use crate::attempt::{Callable, Trouble};
use crate::executor::outputs::Outputs;
use crate::executor::process::{Answer, Called, Runner, RunnerTrouble, Standstill};
use crate::link::Link;
use crate::machine::keep_off;

/// Empty blocks of which the hand-off is the shortest: whatever else the machine does only ever adds to it.
const HANDOFF_BLOCKS: usize = 51;
/// No more than this is ever subtracted: a wake-up through a futex takes some tens of microseconds, and longer ones are
/// a busy machine's, or a candidate's that makes empty blocks slow so that its own look fast. A twentieth of the
/// shortest block.
const MOST_HANDOFF: Duration = Duration::from_micros(100);
/// How much longer a hand-off of one side may take than the other's: their ways of waiting can differ.
const HANDOFF_APART: Duration = Duration::from_micros(50);
/// How long the runner spins for the command that follows its wake-up.
const ARMED_SPIN: Duration = Duration::from_millis(5);
/// How long this process spins for the answer to an empty block.
const WAKE_SPIN: Duration = Duration::from_micros(200);
/// An empty block that takes longer means a machine too busy to time anything.
const WAKE_PATIENCE: Duration = Duration::from_secs(30);

/// One candidate of a profile with its runner.
pub(super) struct Side<'a> {
    pub(super) callable: &'a Callable<'a>,
    pub(super) runner: Runner,
    pub(super) outputs: Vec<Outputs>,
    pub(super) has_plan: bool,
    pub(super) handoff: Duration,
    /// Whether this process may spin while it waits: not where the candidate needs every CPU.
    pub(super) may_spin: bool,
    /// `may_spin` when the hand-off was measured.
    handoff_spun: bool,
    /// Its CPU time when it was last stopped.
    stopped: Option<Standstill>,
}

/// What a block gave.
pub(super) struct Block {
    /// Between the stamps, hand-off not yet subtracted.
    pub(super) elapsed: Duration,
    pub(super) called: Called,
    /// CPU time that the runner used since its last stop when it had nothing to do: until it was awake, and in all but
    /// its first thread, which spins then, until it was armed.
    pub(super) cpu_idle: Duration,
    /// CPU time that the runner used between its done-mark and its stop.
    pub(super) cpu_after_done: Duration,
    /// CPU time of the calls.
    pub(super) cpu: Duration,
    pub(super) major_faults: u64,
}

pub(super) enum Run {
    Done(Block),
    Died,
}

impl<'a> Side<'a> {
    pub(super) fn new(callable: &'a Callable<'a>, runner: Runner, outputs: Vec<Outputs>) -> Self {
        let may_spin = callable.leaves_a_cpu();
        Self {
            callable,
            runner,
            outputs,
            has_plan: false,
            handoff: Duration::ZERO,
            may_spin,
            handoff_spun: may_spin,
            stopped: None,
        }
    }

    /// Loaded: stopped until its first block.
    pub(super) fn ready(mut self, has_plan: bool) -> Result<Self, Trouble> {
        self.has_plan = has_plan;
        let callable = self.callable;
        self.runner.stop().map_err(|source| callable.trouble(source))?;
        Ok(self)
    }

    pub(super) fn measure_handoff(&mut self) -> Result<(), Trouble> {
        let callable = self.callable;
        self.handoff_spun = self.may_spin;
        let mut shortest = MOST_HANDOFF;
        for _ in 0..HANDOFF_BLOCKS {
            match self.raw_block(0, 0, 0, WAKE_PATIENCE).map_err(|source| callable.trouble(source))? {
                Answer::Done(block) => shortest = shortest.min(block.elapsed),
                // The first real block will find it dead and say so.
                Answer::Died | Answer::TimedOut => return Ok(()),
            }
        }
        self.handoff = shortest;
        Ok(())
    }

    /// Takes the sides' hand-offs for what they are: the same work of the same machine.
    pub(super) fn limit_handoffs(sides: &mut [Self]) {
        let most = most_handoff(sides.iter().map(|side| side.handoff));
        for side in sides {
            side.handoff = side.handoff.min(most);
        }
    }

    /// Runs a block and leaves the runner stopped.
    pub(super) fn block(
        &mut self,
        link: &mut Link,
        entry: usize,
        calls: u32,
        flags: u32,
        timeout: Duration,
    ) -> Result<Run, Trouble> {
        // A wake-up out of sleep costs many times what a seen store does: each way to wait has its own figure.
        if self.handoff_spun != self.may_spin {
            self.measure_handoff()?;
        }
        let callable = self.callable;
        let trouble = |source| callable.trouble(source);
        let entry = u32::try_from(entry).unwrap_or(u32::MAX);
        match self.raw_block(entry, calls, flags, timeout).map_err(trouble)? {
            Answer::Done(block) => Ok(Run::Done(block)),
            Answer::Died => Ok(Run::Died),
            Answer::TimedOut => {
                self.runner.end_for(link, KillReason::Timeout { limit: timeout }).map_err(trouble)?;
                Ok(Run::Died)
            }
        }
    }

    fn raw_block(
        &mut self,
        entry: u32,
        calls: u32,
        flags: u32,
        timeout: Duration,
    ) -> Result<Answer<Block>, RunnerTrouble> {
        let runner = &mut self.runner;
        runner.resume()?;
        // Wake it; it sleeps again when it has answered, so that its clock shows nothing else.
        runner.command(entry, 0, 0, 0, Duration::ZERO);
        let woken = runner.wait_done(WAKE_SPIN, WAKE_PATIENCE)?;
        let cpu_woken = self.stopped.take().map_or(Duration::ZERO, |stopped| runner.cpu_since(&stopped));
        let clocks_woken = runner.cpu_clocks();
        // Arm it: after this one it spins for the next command.
        let armed = match woken {
            Answer::Done(_) => {
                runner.command(entry, 0, 0, 0, ARMED_SPIN);
                runner.wait_done(WAKE_SPIN, WAKE_PATIENCE)?
            }
            other => other,
        };
        match armed {
            Answer::Done(_) => {}
            Answer::Died => return Ok(Answer::Died),
            Answer::TimedOut => return Ok(Answer::TimedOut),
        }
        let before = runner.faults_and_cpu();
        if let Some((_, cpu)) = before.filter(|_| self.may_spin) {
            // Spinning on the runner's own CPU would keep it from its calls until the scheduler's next tick.
            keep_off(cpu);
        }
        let cpu_before = runner.cpu_clocks();
        let cpu_idle = cpu_woken + cpu_before.others_since(&clocks_woken);
        let spin = if self.may_spin { timeout.min(Duration::from_secs(1)) } else { Duration::ZERO };
        let start = now();
        runner.command(entry, calls, 0, flags, Duration::ZERO);
        let answer = runner.wait_done(spin, timeout)?;
        let end = now();
        let called = match answer {
            Answer::Done(called) => called,
            Answer::Died => return Ok(Answer::Died),
            Answer::TimedOut => return Ok(Answer::TimedOut),
        };
        let cpu_at_done = runner.cpu_clocks();
        if !runner.stop()? {
            return Ok(Answer::Died);
        }
        let stopped = runner.standstill();
        let cpu_after_done = stopped.threads.since(&cpu_at_done);
        self.stopped = Some(stopped);
        let major_faults = match (before, runner.faults_and_cpu()) {
            (Some((before, _)), Some((after, _))) => after.saturating_sub(before),
            _ => 0,
        };
        Ok(Answer::Done(Block {
            elapsed: end.saturating_sub(start),
            called,
            cpu_idle,
            cpu_after_done,
            cpu: cpu_at_done.since(&cpu_before),
            major_faults,
        }))
    }
}

fn most_handoff(measured: impl Iterator<Item = Duration>) -> Duration {
    measured.min().map_or(MOST_HANDOFF, |least| MOST_HANDOFF.min(least + HANDOFF_APART))
}

/// `CLOCK_MONOTONIC_RAW`: neither steps nor slews.
fn now() -> Duration {
    let time = clock_gettime(ClockId::MonotonicRaw);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_side_has_much_more_subtracted_than_the_other() {
        for (measured, most) in [
            (&[2, 3][..], 52),
            // One that delays its empty blocks gains little.
            (&[1500, 4], 54),
            (&[1500, 1400], 100),
            (&[90], 100),
            (&[], 100),
        ] {
            let durations = measured.iter().map(|&microseconds| Duration::from_micros(microseconds));
            assert_eq!(most_handoff(durations), Duration::from_micros(most), "{measured:?}");
        }
    }
}
