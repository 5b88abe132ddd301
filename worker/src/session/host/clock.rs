//! The clock of a runner: n calls between two stamps of this process's clock, each call into an output slot of its own.
//!
//! The runner is stopped between blocks, so that it cannot compete with another session, and its outputs are read
//! only then. Right before a timed block it is woken by an empty one, and armed by another, after which it spins for
//! the next command, so that the stamps hold the calls and two cache-line hand-offs; what that costs is measured with
//! empty blocks and subtracted. An idle round begins just like that, and then lets the runner be: what it does then it
//! does outside of the clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::process::{Heard, Runner, RunnerError, run_delay};
use super::session::HostSession;
use super::view::Element;
use crate::machine::{cpus, keep_off};
use crate::runner::control::{FLAG_PLAN, FLAG_VARIED};
use crate::session::{
    Answer, Block, BlockOrder, Clock, IdleRound, Look, Renew, SessionError, WakeCost, nothing_new,
};

/// Empty blocks of which the hand-off is the shortest: whatever else the machine does only ever adds to it.
const HANDOFF_BLOCKS: usize = 51;
/// No more than this is ever subtracted: a wake-up through a futex takes some tens of microseconds, and longer ones are
/// a busy machine's, or a candidate's that makes empty blocks slow so that its own look fast. A twentieth of the
/// shortest block.
const MOST_HANDOFF: Duration = Duration::from_micros(100);
/// Looks that an empty block is measured with: as many as a timed one has.
pub(crate) const LOOKS: u32 = 64;
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
const WAKE_LIMIT: Duration = Duration::from_secs(30);

const ASLEEP: RunnerError = RunnerError::Asleep { waited: WAKE_LIMIT };

/// What a session's clock knows from block to block.
pub(super) struct Stopwatch {
    handoff: Duration,
    /// No more than this is subtracted.
    most_handoff: Duration,
    /// Whether this process may spin while it waits: not where a candidate of the pair needs every CPU.
    may_spin: bool,
    /// It leaves a CPU by its limits; otherwise whether one is left has to be seen.
    leaves_a_cpu: bool,
    /// `may_spin` when the hand-off was measured; none before that.
    handoff_spun: Option<bool>,
    /// CPU time of the runner when it was last stopped.
    stopped_at: Duration,
}

impl Stopwatch {
    pub(super) fn new(leaves_a_cpu: bool) -> Self {
        Self {
            handoff: Duration::ZERO,
            most_handoff: MOST_HANDOFF,
            may_spin: leaves_a_cpu,
            leaves_a_cpu,
            handoff_spun: None,
            stopped_at: Duration::ZERO,
        }
    }
}

impl Clock for HostSession<'_> {
    fn settle_handoff(&mut self) -> Result<(), SessionError> {
        self.known_handoff().map_err(|error| self.callable.error(error))
    }

    fn handoff(&self) -> Duration {
        self.watch.handoff.min(self.watch.most_handoff)
    }

    fn limit_handoff(&mut self, most: Duration) {
        self.watch.most_handoff = most;
    }

    fn leaves_room(&self, threads: u32, cpus_busy: f64) -> bool {
        self.watch.leaves_a_cpu || leaves_room(cpus().len(), threads, cpus_busy)
    }

    fn wait_spinning(&mut self, spin: bool) {
        self.watch.may_spin = spin;
    }

    fn block(&mut self, block: &BlockOrder<'_>, renew: Renew<'_>) -> Result<Answer<Block>, SessionError> {
        let mut written = Written::new(renew);
        let timed = self.known_handoff().and_then(|()| match self.timed(block, &mut written)? {
            Heard::Done(block) => Ok(Answer::Done(block)),
            Heard::Died => Ok(Answer::Died),
            Heard::TimedOut => self.end_for(block.limit),
        });
        written.result?;
        timed.map_err(|error| self.callable.error(error))
    }

    fn idle(&mut self, entry: usize, renew: Renew<'_>) -> Result<Answer<IdleRound>, SessionError> {
        let mut written = Written::new(renew);
        let round = self.idle_round(entry, &mut written);
        written.result?;
        round.map_err(|error| self.callable.error(error))
    }
}

impl HostSession<'_> {
    fn shortest_empty_block(&mut self) -> Result<(), RunnerError> {
        (self.watch.handoff_spun, self.watch.most_handoff) = (Some(self.watch.may_spin), MOST_HANDOFF);
        let looks = self.looks_of_an_empty_block();
        let empty = BlockOrder {
            entry: 0,
            calls: 0,
            plan: false,
            varied: false,
            looks: &looks,
            expected: Duration::ZERO,
            limit: WAKE_LIMIT,
        };
        let mut shortest = MOST_HANDOFF;
        for _ in 0..HANDOFF_BLOCKS {
            match self.timed(&empty, &mut Written::new(&mut nothing_new))? {
                Heard::Done(block) => shortest = shortest.min(block.elapsed),
                // The first real block will find it dead and say so.
                Heard::Died => return Ok(()),
                Heard::TimedOut => return Err(ASLEEP),
            }
        }
        self.watch.handoff = shortest;
        Ok(())
    }

    /// A wake-up out of sleep costs many times what a seen store does: each way to wait has its own figure.
    fn known_handoff(&mut self) -> Result<(), RunnerError> {
        if self.watch.handoff_spun == Some(self.watch.may_spin) {
            Ok(())
        } else {
            self.shortest_empty_block()
        }
    }

    fn idle_round(
        &mut self,
        entry: usize,
        inputs: &mut Written<'_>,
    ) -> Result<Answer<IdleRound>, RunnerError> {
        let entry = self.calls(entry);
        let Some(woken) = self.wake(entry, inputs)? else { return Ok(Answer::Died) };
        self.runner.command(entry, 0, 0, 0, Duration::ZERO);
        // It cannot have spun for longer, however late this process or the runner had a CPU.
        let spun = now().saturating_sub(woken.armed).min(ARMED_SPIN);
        match self.runner.wait_done(WAKE_SPIN, WAKE_LIMIT)? {
            Heard::Done(_) => {}
            Heard::Died => return Ok(Answer::Died),
            Heard::TimedOut => return Err(ASLEEP),
        }
        std::thread::sleep(IDLE_TIME);
        if !self.stand()? {
            return Ok(Answer::Died);
        }
        let cpu = self.watch.stopped_at.saturating_sub(woken.stopped_at + spun);
        Ok(Answer::Done(IdleRound { cpu, wake: woken.cost }))
    }

    /// One byte each, spread over the slots of the first output that has any.
    fn looks_of_an_empty_block(&self) -> Vec<Look> {
        let leaves = &self.entries[0].as_ref().leaves;
        let Some(leaf) = leaves.iter().position(|leaf| leaf.tensor.elements() != 0) else {
            return Vec::new();
        };
        let slots = self.outputs[0].slots();
        (0..LOOKS).map(|number| Look { leaf, slot: number % slots, offset: 0, width: 1 }).collect()
    }

    fn timed(
        &mut self,
        block: &BlockOrder<'_>,
        inputs: &mut Written<'_>,
    ) -> Result<Heard<Block>, RunnerError> {
        let offsets: Vec<u64> = block.looks.iter().map(|look| self.offset_of(block.entry, look)).collect();
        if let Some(view) = &self.view {
            view.prepare(offsets.iter().copied());
        }
        let mut seen = Vec::with_capacity(offsets.len());
        let timed = self.stamped(block, &offsets, &mut seen, inputs);
        let Some(view) = &self.view else { return timed };
        let changed = match &timed {
            // It stands still: what is there now is what it wrote.
            Ok(Heard::Done(_)) => offsets.iter().zip(block.looks).zip(&seen).position(
                |((&offset, look), then): ((&u64, &Look), &Element)| view.read(offset, look.width) != *then,
            ),
            _ => None,
        };
        view.forget();
        Ok(match timed? {
            Heard::Done(block) => Heard::Done(Block { changed, ..block }),
            other => other,
        })
    }

    fn offset_of(&self, entry: usize, look: &Look) -> u64 {
        self.outputs[entry].slot_start(look.leaf, look.slot) + look.offset
    }

    /// A block between two stamps. `seen` is given the elements at `offsets` as they were at the second one.
    fn stamped(
        &mut self,
        block: &BlockOrder<'_>,
        offsets: &[u64],
        seen: &mut Vec<Element>,
        inputs: &mut Written<'_>,
    ) -> Result<Heard<Block>, RunnerError> {
        let entry = self.calls(block.entry);
        let Some(woken) = self.wake(entry, inputs)? else { return Ok(Heard::Died) };
        let spin = if self.watch.may_spin { spin_for(block.expected) } else { Duration::ZERO };
        let flags = if block.plan { FLAG_PLAN } else { 0 } | if block.varied { FLAG_VARIED } else { 0 };
        let start = now();
        self.runner.command(entry, block.calls, 0, flags, Duration::ZERO);
        let heard = self.runner.wait_done(spin, block.limit)?;
        // "Done" is a claim. What is not there when it is made was not done, and is seen at the standstill.
        if let Some(view) = &self.view {
            seen.extend(offsets.iter().zip(block.looks).map(|(&offset, look)| view.read(offset, look.width)));
        }
        let end = now();
        let waited =
            woken.waited.zip(waited(&self.runner)).map(|(before, after)| after.saturating_sub(before));
        let called = match heard {
            Heard::Done(called) => called,
            Heard::Died => return Ok(Heard::Died),
            Heard::TimedOut => return Ok(Heard::TimedOut),
        };
        if !self.stand()? {
            return Ok(Heard::Died);
        }
        let awake = now().saturating_sub(woken.resumed);
        let cpu = self.watch.stopped_at.saturating_sub(woken.stopped_at);
        Ok(Heard::Done(Block {
            elapsed: end.saturating_sub(start),
            called,
            cpu_early: woken.cpu_early,
            wake: woken.cost,
            cpus_busy: cpu.as_secs_f64() / awake.as_secs_f64().max(1e-9),
            waited,
            changed: None,
        }))
    }

    /// From standstill to spinning for the next command, with the inputs written in between. None if it died.
    fn wake(&mut self, entry: u32, inputs: &mut Written<'_>) -> Result<Option<Woken>, RunnerError> {
        // The session may have stood still without its clock being read.
        if !self.stand()? {
            return Ok(None);
        }
        // Woken and stopped in one breath: what that costs is the kernel's, and depends on threads and CPUs.
        let before = self.watch.stopped_at;
        self.go_on()?;
        if !self.stand()? {
            return Ok(None);
        }
        let stopped_at = self.watch.stopped_at;
        let resumed = now();
        self.go_on()?;
        // It sleeps again when it has answered, so that its clock is as exact as that of a living process can be.
        if !self.empty_block(entry, Duration::ZERO)? {
            return Ok(None);
        }
        // Whatever it does when it is woken, in a handler of SIGCONT for one, it does without the inputs of the block.
        inputs.write();
        let cpu_early = self.runner.cpu_time()?.saturating_sub(stopped_at);
        let armed = now();
        if !self.empty_block(entry, ARMED_SPIN)? {
            return Ok(None);
        }
        let counts = self.runner.counts();
        if let Some(counts) = counts.filter(|_| self.watch.may_spin) {
            // Spinning on the runner's own CPU would keep it from its calls until the scheduler's next tick.
            keep_off(counts.cpu);
        }
        let threads = counts.map_or(1, |counts| counts.threads);
        let cost = WakeCost { cpu: stopped_at.saturating_sub(before), threads };
        let waited = waited(&self.runner);
        Ok(Some(Woken { cost, stopped_at, resumed, cpu_early, armed, waited }))
    }

    /// False if it died.
    fn empty_block(&mut self, entry: u32, spin: Duration) -> Result<bool, RunnerError> {
        self.runner.command(entry, 0, 0, 0, spin);
        match self.runner.wait_done(WAKE_SPIN, WAKE_LIMIT)? {
            Heard::Done(_) => Ok(true),
            Heard::Died => Ok(false),
            // No call is late here: a machine that wakes nobody is no fault of a candidate's.
            Heard::TimedOut => Err(ASLEEP),
        }
    }

    /// At a standstill, with its CPU time read. False if it died.
    fn stand(&mut self) -> Result<bool, RunnerError> {
        let stands = self.settle()?;
        if stands {
            self.watch.stopped_at = self.runner.cpu_time()?;
        }
        Ok(stands)
    }
}

/// New inputs, and whether they could be written.
struct Written<'r> {
    renew: Renew<'r>,
    result: Result<(), SessionError>,
}

impl<'r> Written<'r> {
    fn new(renew: Renew<'r>) -> Self {
        Self { renew, result: Ok(()) }
    }

    fn write(&mut self) {
        if self.result.is_ok() {
            self.result = (self.renew)();
        }
    }
}

/// A runner that spins for its next command.
struct Woken {
    cost: WakeCost,
    /// Its CPU time when it last stood still.
    stopped_at: Duration,
    resumed: Duration,
    cpu_early: Duration,
    /// When it was told to spin.
    armed: Duration,
    /// For a CPU, until then.
    waited: Option<Duration>,
}

/// How long a runner's first thread and this one have waited for a CPU, together.
fn waited(runner: &Runner) -> Option<Duration> {
    Some(runner.waited()? + run_delay("/proc/thread-self/schedstat")?)
}

/// Half as long again as the block should take (DESIGN, "Timing"). On a busy machine this process and the runner can
/// come to share one CPU: who spins on then keeps it from the one that is waited for, a whole time slice in every block.
fn spin_for(expected: Duration) -> Duration {
    (expected * 3 / 2).clamp(LEAST_SPIN, MOST_SPIN)
}

/// Whether a CPU is left for who spins while a candidate works that has so many threads and was seen to keep so many
/// CPUs busy. Threads may come and go within a call; and while somebody spins, all of them are never seen busy.
fn leaves_room(cpus: usize, threads: u32, busy: f64) -> bool {
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
    fn worker_spins_only_where_a_cpu_is_left() {
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
}
