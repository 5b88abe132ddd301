//! One block: n calls of one runner between two stamps of this process's clock, each call into an output slot of
//! its own.
//!
//! The runner is stopped between blocks, so that it cannot compete with the other side, and its outputs are read
//! only then. Right before a timed block it is woken by an empty one, and armed by another, after which it spins for
//! the next command, so that the stamps hold the calls and two cache-line hand-offs; what that costs is measured with
//! empty blocks and subtracted. An idle round begins just like that, and then lets the runner be: what it does then it
//! does outside of the clock, and `idle` judges it.

use std::time::Duration;

use opt_shared::message::KillReason;
use rustix::time::{ClockId, clock_gettime};

use super::idle::{Bare, IdleRound};
use crate::attempt::{Callable, Trouble};
use crate::executor::outputs::Outputs;
use crate::executor::process::{Answer, Called, Counts, Runner, RunnerTrouble};
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
/// How long the runner spins for the command that follows its wake-up: this process needs a tenth of it. More would be
/// room for a runner that works instead.
const ARMED_SPIN: Duration = Duration::from_micros(500);
/// How long a runner is let be in an idle round: a thread that works then shows many times what is allowed.
const IDLE_TIME: Duration = Duration::from_millis(1);
/// How long this process spins for the answer to an empty block.
const WAKE_SPIN: Duration = Duration::from_micros(200);
/// Waiting for a block is spinning at first, for at least and at most so long (an empty block takes microseconds).
const LEAST_SPIN: Duration = Duration::from_micros(200);
const MOST_SPIN: Duration = Duration::from_secs(1);
/// Of all CPUs: a candidate that keeps more of them busy wants the last one too.
const MOST_BUSY: f64 = 0.6;
/// An empty block that takes longer means a machine too busy to time anything.
const WAKE_PATIENCE: Duration = Duration::from_secs(30);

const ASLEEP: RunnerTrouble = RunnerTrouble::Asleep { waited: WAKE_PATIENCE };

/// One candidate of a profile with its runner.
pub(super) struct Side<'a> {
    pub(super) callable: &'a Callable<'a>,
    pub(super) runner: Runner,
    pub(super) outputs: Vec<Outputs>,
    pub(super) has_plan: bool,
    pub(super) handoff: Duration,
    /// Whether this process may spin while it waits: not where the candidate needs every CPU.
    pub(super) may_spin: bool,
    /// How long the next block should take.
    pub(super) expected: Duration,
    /// `may_spin` when the hand-off was measured.
    handoff_spun: bool,
    /// Its CPU time when it was last stopped.
    stopped: Duration,
}

/// What a block gave.
pub(super) struct Block {
    /// Between the stamps, hand-off not yet subtracted.
    pub(super) elapsed: Duration,
    pub(super) called: Called,
    /// CPU time that the runner used before it answered the first empty block, at least; and what that may be.
    pub(super) cpu_early: Duration,
    pub(super) bare: Bare,
    /// CPUs that the runner kept busy, from standstill to standstill.
    pub(super) cpus_busy: f64,
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
            expected: Duration::ZERO,
            handoff_spun: may_spin,
            stopped: Duration::ZERO,
        }
    }

    /// Loaded: stopped until its first block.
    pub(super) fn ready(mut self, has_plan: bool) -> Result<Self, Trouble> {
        self.has_plan = has_plan;
        let callable = self.callable;
        self.stop().map_err(|source| callable.trouble(source))?;
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
                Answer::Died => return Ok(()),
                Answer::TimedOut => return Err(callable.trouble(ASLEEP)),
            }
        }
        self.handoff = shortest;
        Ok(())
    }

    /// A wake-up out of sleep costs many times what a seen store does: each way to wait has its own figure.
    pub(super) fn settle_handoff(&mut self) -> Result<(), Trouble> {
        if self.handoff_spun == self.may_spin { Ok(()) } else { self.measure_handoff() }
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
        self.settle_handoff()?;
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

    /// Wakes the runner as for a block and lets it be. None if it died.
    pub(super) fn idle_round(&mut self, entry: usize) -> Result<Option<IdleRound>, Trouble> {
        let callable = self.callable;
        let entry = u32::try_from(entry).unwrap_or(u32::MAX);
        self.raw_idle_round(entry).map_err(|source| callable.trouble(source))
    }

    fn raw_idle_round(&mut self, entry: u32) -> Result<Option<IdleRound>, RunnerTrouble> {
        let Some(woken) = self.wake(entry)? else { return Ok(None) };
        self.runner.command(entry, 0, 0, 0, Duration::ZERO);
        // It cannot have spun for longer, however late this process or the runner had a CPU.
        let spun = now().saturating_sub(woken.armed).min(ARMED_SPIN);
        match self.runner.wait_done(WAKE_SPIN, WAKE_PATIENCE)? {
            Answer::Done(_) => {}
            Answer::Died => return Ok(None),
            Answer::TimedOut => return Err(ASLEEP),
        }
        std::thread::sleep(IDLE_TIME);
        if !self.stop()? {
            return Ok(None);
        }
        let cpu = self.stopped.saturating_sub(woken.stopped + spun);
        Ok(Some(IdleRound { cpu, bare: woken.bare }))
    }

    fn raw_block(
        &mut self,
        entry: u32,
        calls: u32,
        flags: u32,
        timeout: Duration,
    ) -> Result<Answer<Block>, RunnerTrouble> {
        let Some(woken) = self.wake(entry)? else { return Ok(Answer::Died) };
        let spin = if self.may_spin { spin_for(self.expected) } else { Duration::ZERO };
        let start = now();
        self.runner.command(entry, calls, 0, flags, Duration::ZERO);
        let answer = self.runner.wait_done(spin, timeout)?;
        let end = now();
        let called = match answer {
            Answer::Done(called) => called,
            Answer::Died => return Ok(Answer::Died),
            Answer::TimedOut => return Ok(Answer::TimedOut),
        };
        if !self.stop()? {
            return Ok(Answer::Died);
        }
        let awake = now().saturating_sub(woken.resumed);
        let cpu = self.stopped.saturating_sub(woken.stopped);
        let major_faults = match (woken.counts, self.runner.counts()) {
            (Some(before), Some(after)) => after.major_faults.saturating_sub(before.major_faults),
            _ => 0,
        };
        Ok(Answer::Done(Block {
            elapsed: end.saturating_sub(start),
            called,
            cpu_early: woken.cpu_early,
            bare: woken.bare,
            cpus_busy: cpu.as_secs_f64() / awake.as_secs_f64().max(1e-9),
            major_faults,
        }))
    }

    /// From standstill to spinning for the next command. None if it died.
    fn wake(&mut self, entry: u32) -> Result<Option<Woken>, RunnerTrouble> {
        // Woken and stopped in one breath: what that costs is the kernel's, and depends on threads and CPUs.
        let before = self.stopped;
        self.runner.resume()?;
        if !self.stop()? {
            return Ok(None);
        }
        let stopped = self.stopped;
        let resumed = now();
        self.runner.resume()?;
        // It sleeps again when it has answered, so that its clock is as exact as that of a living process can be.
        if !self.empty_block(entry, Duration::ZERO)? {
            return Ok(None);
        }
        let cpu_early = self.runner.cpu_time()?.saturating_sub(stopped);
        let armed = now();
        if !self.empty_block(entry, ARMED_SPIN)? {
            return Ok(None);
        }
        let counts = self.runner.counts();
        if let Some(counts) = counts.filter(|_| self.may_spin) {
            // Spinning on the runner's own CPU would keep it from its calls until the scheduler's next tick.
            keep_off(counts.cpu);
        }
        let threads = counts.map_or(1, |counts| counts.threads);
        let bare = Bare { cpu: stopped.saturating_sub(before), threads };
        Ok(Some(Woken { bare, stopped, resumed, cpu_early, armed, counts }))
    }

    /// False if it died.
    fn empty_block(&mut self, entry: u32, spin: Duration) -> Result<bool, RunnerTrouble> {
        self.runner.command(entry, 0, 0, 0, spin);
        match self.runner.wait_done(WAKE_SPIN, WAKE_PATIENCE)? {
            Answer::Done(_) => Ok(true),
            Answer::Died => Ok(false),
            // No call is late here: a machine that wakes nobody is no fault of a candidate's.
            Answer::TimedOut => Err(ASLEEP),
        }
    }

    /// False if it died.
    fn stop(&mut self) -> Result<bool, RunnerTrouble> {
        let stands = self.runner.stop()?;
        if stands {
            self.stopped = self.runner.cpu_time()?;
        }
        Ok(stands)
    }
}

/// A runner that spins for its next command.
struct Woken {
    bare: Bare,
    /// Its CPU time when it last stood still.
    stopped: Duration,
    resumed: Duration,
    cpu_early: Duration,
    /// When it was told to spin.
    armed: Duration,
    counts: Option<Counts>,
}

fn most_handoff(measured: impl Iterator<Item = Duration>) -> Duration {
    measured.min().map_or(MOST_HANDOFF, |least| MOST_HANDOFF.min(least + HANDOFF_APART))
}

/// Half as long again as the block should take (DESIGN, "Timing"). On a busy machine this process and the runner can
/// come to share one CPU: who spins on then keeps it from the one that is waited for, a whole time slice in every block.
fn spin_for(expected: Duration) -> Duration {
    (expected * 3 / 2).clamp(LEAST_SPIN, MOST_SPIN)
}

/// Whether a CPU is left for who spins while a candidate works that has so many threads and was seen to keep so many
/// CPUs busy. Threads may come and go within a call; and while somebody spins, all of them are never seen busy.
pub(super) fn leaves_room(cpus: usize, threads: u32, busy: f64) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "a handful of CPUs")]
    let most = cpus as f64 * MOST_BUSY;
    (threads as usize) < cpus && busy < most
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
    fn who_needs_every_cpu_is_not_spun_against() {
        for (cpus, threads, busy, room) in [
            (1, 1, 1.0, false),
            (2, 1, 1.0, true),
            (2, 2, 1.0, false),
            // Threads of a call, gone when it has returned.
            (2, 1, 1.33, false),
            (16, 1, 12.0, false),
            (16, 4, 3.9, true),
            (16, 16, 1.0, false),
        ] {
            assert_eq!(leaves_room(cpus, threads, busy), room, "{cpus} {threads} {busy}");
        }
    }

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
