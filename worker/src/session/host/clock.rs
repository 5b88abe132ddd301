//! The clock of a runner: n calls between two stamps of this process's clock, each call into an output slot of its own.
//!
//! The runner is stopped between blocks, so that it cannot compete with another session, and its outputs are read
//! only then. Whatever lies in a runner may be the candidate's, the loop that waits for commands included, so the first
//! stamp is taken before it is woken: its inputs are written and its command given while it stands still, and from then on
//! all of its time counts. What waking costs is measured with empty blocks and subtracted. An idle round begins just like a block,
//! asks for nothing, and then lets the runner be: what it does then it does outside of the clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::process::{Heard, Runner, RunnerError, run_delay};
use super::session::HostSession;
use super::view::Element;
use crate::machine::{cpus, keep_off};
use crate::runner::control::{FLAG_PLAN, FLAG_VARIED};
use crate::session::{
    Answer, Block, BlockOrder, Clock, IdleRound, LOOKS, Look, Renew, SessionError, WakeCost, nothing_new,
};

/// Empty blocks of which the hand-off is the median, as the waking that it stands for is sometimes longer and sometimes shorter.
/// One that makes its own slow gains nothing beside a baseline: the shorter of their two hand-offs is subtracted from both.
const HANDOFF_BLOCKS: usize = 51;
/// They are enough after this time, however few they were: a candidate may make each of them slow.
const HANDOFF_TIME: Duration = Duration::from_secs(1);
/// No more than this is ever subtracted: a wake-up through a futex takes some tens of microseconds, and longer ones are
/// a busy machine's, or a candidate's that makes empty blocks slow so that its own look fast.
const MOST_HANDOFF: Duration = Duration::from_micros(100);
/// How long a runner is let be in an idle round: a thread that works then shows many times what is allowed.
const IDLE_TIME: Duration = Duration::from_millis(1);
/// How long this process spins for the answer to an empty block.
const WAKE_SPIN: Duration = Duration::from_micros(200);
/// Waiting for a block is spinning at first, for at least and at most so long (an empty block takes microseconds).
const LEAST_SPIN: Duration = Duration::from_micros(200);
const MOST_SPIN: Duration = Duration::from_secs(1);
/// Of all CPUs: a candidate that keeps more of them busy wants the last one too.
const MOST_BUSY: f64 = 0.6;
/// A runner that has nothing to do and does not say so for so long is the candidate's doing: until it was loaded it answered.
const WAKE_LIMIT: Duration = Duration::from_secs(10);

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
    fn median_empty_block(&mut self) -> Result<(), RunnerError> {
        (self.watch.handoff_spun, self.watch.most_handoff) = (Some(self.watch.may_spin), MOST_HANDOFF);
        let looks = self.looks_of_an_empty_block();
        let empty = BlockOrder {
            entry: 0,
            calls: 0,
            plan: false,
            varied: false,
            cold: false,
            looks: &looks,
            expected: Duration::ZERO,
            limit: WAKE_LIMIT,
        };
        let mut seen = Vec::with_capacity(HANDOFF_BLOCKS);
        let started = now();
        for _ in 0..HANDOFF_BLOCKS {
            if HANDOFF_TIME < now().saturating_sub(started) {
                break;
            }
            match self.timed(&empty, &mut Written::new(&mut nothing_new))? {
                Heard::Done(block) => seen.push(block.elapsed),
                // The first real block will find it dead and say so.
                Heard::Died => return Ok(()),
                Heard::TimedOut => return self.end_for::<()>(WAKE_LIMIT).map(drop),
            }
        }
        seen.sort_unstable();
        self.watch.handoff = seen.get(seen.len() / 2).copied().unwrap_or_default().min(MOST_HANDOFF);
        Ok(())
    }

    /// A wake-up out of sleep costs many times what a seen store does: each way to wait has its own figure.
    fn known_handoff(&mut self) -> Result<(), RunnerError> {
        if self.watch.handoff_spun == Some(self.watch.may_spin) { Ok(()) } else { self.median_empty_block() }
    }

    fn idle_round(
        &mut self,
        entry: usize,
        inputs: &mut Written<'_>,
    ) -> Result<Answer<IdleRound>, RunnerError> {
        let entry = self.calls(entry);
        let Some(still) = self.prepare(inputs)? else { return Ok(Answer::Died) };
        self.runner.command(entry, 0, 0, 0, Duration::ZERO);
        self.go_on()?;
        match self.runner.wait_done(WAKE_SPIN, WAKE_LIMIT)? {
            Heard::Done(_) => {}
            Heard::Died => return Ok(Answer::Died),
            Heard::TimedOut => return self.end_for(WAKE_LIMIT),
        }
        std::thread::sleep(IDLE_TIME);
        if !self.stand()? {
            return Ok(Answer::Died);
        }
        let cpu = self.watch.stopped_at.saturating_sub(still.stopped_at);
        Ok(Answer::Done(IdleRound { cpu, wake: still.cost }))
    }

    /// As many as a timed one has, one byte each, spread over the slots of the first output that has any.
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
        let Some(still) = self.prepare(inputs)? else { return Ok(Heard::Died) };
        if block.cold {
            self.evict(block.entry).map_err(RunnerError::Evict)?;
        }
        let spin = if self.watch.may_spin { spin_for(block.expected) } else { Duration::ZERO };
        let flags = if block.plan { FLAG_PLAN } else { 0 } | if block.varied { FLAG_VARIED } else { 0 };
        let start = now();
        self.runner.command(entry, block.calls, 0, flags, Duration::ZERO);
        self.go_on()?;
        let heard = self.runner.wait_done(spin, block.limit)?;
        // "Done" is a claim. What is not there when it is made was not done, and is seen at the standstill.
        if let Some(view) = &self.view {
            seen.extend(offsets.iter().zip(block.looks).map(|(&offset, look)| view.read(offset, look.width)));
        }
        let end = now();
        let waited =
            still.waited.zip(waited(&self.runner)).map(|(before, after)| after.saturating_sub(before));
        let called = match heard {
            Heard::Done(called) => called,
            Heard::Died => return Ok(Heard::Died),
            Heard::TimedOut => return Ok(Heard::TimedOut),
        };
        if !self.stand()? {
            return Ok(Heard::Died);
        }
        let awake = now().saturating_sub(start);
        let cpu = self.watch.stopped_at.saturating_sub(still.stopped_at);
        Ok(Heard::Done(Block {
            elapsed: end.saturating_sub(start),
            called,
            wake: still.cost,
            cpus_busy: cpu.as_secs_f64() / awake.as_secs_f64().max(1e-9),
            waited,
            changed: None,
        }))
    }

    /// At a standstill, with the inputs of what comes next in place. None if it died.
    fn prepare(&mut self, inputs: &mut Written<'_>) -> Result<Option<Still>, RunnerError> {
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
        // Until now there was something else in their place: whatever it did when it was woken, it did without them.
        inputs.write();
        let counts = self.runner.counts();
        if let Some(counts) = counts.filter(|_| self.watch.may_spin) {
            // Spinning on the runner's own CPU would keep it from its calls until the scheduler's next tick.
            keep_off(counts.cpu);
        }
        let threads = counts.map_or(1, |counts| counts.threads);
        let cost = WakeCost { cpu: stopped_at.saturating_sub(before), threads };
        Ok(Some(Still { cost, stopped_at, waited: waited(&self.runner) }))
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

/// A runner that stands still, right before it is woken.
struct Still {
    cost: WakeCost,
    /// Its CPU time.
    stopped_at: Duration,
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
