//! Times a runner: reads this process's clock before and after a block of calls, each of which writes to its own output
//! slot.
//!
//! The runner is stopped between blocks, so it cannot compete with another session. Its outputs are judged while it is
//! stopped. Only a few elements are also read earlier, right before the second reading of the clock, to find out
//! whether they change afterwards.
//!
//! The candidate may control everything in the runner, even the loop that waits for commands. Therefore the inputs and
//! the command are written while the runner is stopped, and the first reading is taken before it is resumed. Everything
//! that the runner does between the two readings is timed. The cost of waking it is measured with empty blocks.
//!
//! An idle round is an empty block among timed ones. After its answer, the runner is left running for some time before
//! it is stopped. Any CPU time that it uses until then is work outside the timed calls.

use std::time::Duration;

use opt_shared::settings::Priority;
use rustix::time::{ClockId, clock_gettime};

use super::error::RunnerError;
use super::process::Response;
use super::session::HostSession;
use super::spread::Spread;
use super::view::Element;
use super::waits::Waits;
use crate::machine::{avoid_cpu, cpus};
use crate::runner::control::{FLAG_PLAN, FLAG_VARIED};
use crate::sandbox::scheduling::{Scheduling, set_scheduling};
use crate::session::{
    Answer, Block, BlockOrder, Clock, IdleRound, LOOKS, Look, MAX_HANDOFF, Renew, SessionError, WakeCost,
    nothing_new,
};

/// The number of empty blocks whose median is the hand-off. If there is a baseline, a candidate gains nothing by
/// slowing down its empty blocks, because the shorter of the two hand-offs is subtracted from the times of both.
/// Without a baseline, it gains at most `MAX_HANDOFF` per block.
const HANDOFF_BLOCKS: usize = 51;
/// The same number for a brief session, for which rough times are enough.
const BRIEF_HANDOFF_BLOCKS: usize = 15;
/// After this time, `MIN_HANDOFF_BLOCKS` empty blocks are enough, because a candidate could make each of them slow.
const HANDOFF_TIME: Duration = Duration::from_millis(100);
/// The smallest number of empty blocks, so that a single disturbed one does not determine the hand-off.
const MIN_HANDOFF_BLOCKS: usize = 9;
/// After this time, no further empty block is started in any case.
const MAX_HANDOFF_TIME: Duration = Duration::from_secs(1);
/// The length of an idle round after the runner's answer. If blocks are short, a thread that works during the whole
/// round uses several times the CPU time that is allowed.
const IDLE_TIME: Duration = Duration::from_millis(1);
/// The shortest and the longest time that this process spins in a block. (An empty block takes microseconds.)
const MIN_SPIN: Duration = Duration::from_micros(200);
const MAX_SPIN: Duration = Duration::from_secs(1);
/// If a candidate keeps at least this share of all CPUs busy, it is assumed to need the last one too.
const MAX_BUSY: f64 = 0.6;
/// The real-time priorities of this thread and of the runner's threads. This thread's is higher, so that it can always
/// end a block.
const OWN_PRIORITY: u32 = 2;
const RUNNER_PRIORITY: u32 = 1;
/// The time limit for an empty block, and for the answer in an idle round. The runner answered before the candidate was
/// loaded, so a longer delay is the candidate's fault.
const WAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The state that a session's clock keeps from block to block.
pub(super) struct Stopwatch {
    handoff: Duration,
    /// The longest hand-off that is subtracted.
    max_handoff: Duration,
    /// False if the candidate or the baseline needs every CPU, or if blocks have real-time priority.
    may_spin: bool,
    /// True if the candidate's limits leave a CPU to other processes. If not, the numbers of threads and of busy CPUs
    /// decide whether one is left.
    leaves_a_cpu: bool,
    /// Whether this process spun when the hand-off was measured. `None` if it was not measured, or was forgotten.
    handoff_spun: Option<bool>,
    /// The runner's CPU time when it was last stopped.
    stopped_at: Duration,
    /// The runner's CPU time in the last block or idle round.
    used: Duration,
    /// The priority of the runner's threads and of this thread in a block.
    priority: Priority,
    handoff_blocks: usize,
}

impl Stopwatch {
    pub(super) fn new(leaves_a_cpu: bool) -> Self {
        Self {
            handoff: Duration::ZERO,
            max_handoff: MAX_HANDOFF,
            may_spin: leaves_a_cpu,
            leaves_a_cpu,
            handoff_spun: None,
            stopped_at: Duration::ZERO,
            used: Duration::ZERO,
            priority: Priority::None,
            handoff_blocks: HANDOFF_BLOCKS,
        }
    }

    pub(super) fn set_brief(&mut self, brief: bool) {
        self.handoff_blocks = if brief { BRIEF_HANDOFF_BLOCKS } else { HANDOFF_BLOCKS };
    }

    /// Sets the priority in blocks. With real-time priority, this process does not spin, because that would keep the
    /// supervisor, which enforces the memory limits, from running.
    pub(super) fn set_priority(&mut self, priority: Priority) {
        self.priority = priority;
        self.may_spin &= priority == Priority::None;
    }
}

impl Clock for HostSession<'_> {
    fn settle_handoff(&mut self) -> Result<(), SessionError> {
        self.ensure_handoff().map_err(|error| self.callable.error(error))
    }

    fn handoff(&self) -> Duration {
        self.watch.handoff.min(self.watch.max_handoff)
    }

    fn limit_handoff(&mut self, max: Duration) {
        self.watch.max_handoff = max;
    }

    fn forget_handoff(&mut self) {
        self.watch.handoff_spun = None;
    }

    fn leaves_room(&self, threads: u32, cpus_busy: f64) -> bool {
        self.watch.leaves_a_cpu || leaves_room(cpus().len(), threads, cpus_busy)
    }

    fn wait_spinning(&mut self, spin: bool) {
        self.watch.may_spin = spin && self.watch.priority == Priority::None;
    }

    fn block(&mut self, block: &BlockOrder<'_>, renew: Renew<'_>) -> Result<Answer<Block>, SessionError> {
        let mut inputs = InputWriter::new(renew);
        let timed =
            self.ensure_handoff().and_then(|()| match self.timed(block, &mut inputs, Duration::ZERO)? {
                Response::Done(block) => Ok(Answer::Done(block)),
                Response::Died => Ok(Answer::Died),
                Response::TimedOut => self.end_for(block.limit),
            });
        inputs.result?;
        timed.map_err(|error| self.callable.error(error))
    }

    fn idle(&mut self, entry: usize, renew: Renew<'_>) -> Result<Answer<IdleRound>, SessionError> {
        let mut inputs = InputWriter::new(renew);
        let round = self.idle_round(entry, &mut inputs);
        inputs.result?;
        round.map_err(|error| self.callable.error(error))
    }
}

impl HostSession<'_> {
    /// Measures the hand-off: the median time of empty blocks.
    fn measure_handoff(&mut self) -> Result<(), RunnerError> {
        (self.watch.handoff_spun, self.watch.max_handoff) = (Some(self.watch.may_spin), MAX_HANDOFF);
        let looks = self.looks_of_an_empty_block(0);
        let empty = empty_block(0, &looks);
        let blocks = self.watch.handoff_blocks;
        let mut seen = Vec::with_capacity(blocks);
        let started = now();
        for _ in 0..blocks {
            let spent = now().saturating_sub(started);
            if MAX_HANDOFF_TIME < spent || (MIN_HANDOFF_BLOCKS <= seen.len() && HANDOFF_TIME < spent) {
                break;
            }
            match self.timed(&empty, &mut InputWriter::new(&mut nothing_new), Duration::ZERO)? {
                Response::Done(block) => seen.push(block.elapsed),
                // The first real block will notice the death and report it.
                Response::Died => return Ok(()),
                Response::TimedOut => return self.end_for::<()>(WAKE_TIMEOUT).map(drop),
            }
        }
        seen.sort_unstable();
        self.watch.handoff = seen.get(seen.len() / 2).copied().unwrap_or_default().min(MAX_HANDOFF);
        Ok(())
    }

    /// Measures the hand-off, unless it is known for the current way of waiting. The way matters, because waking from
    /// sleep takes many times as long as noticing a store while spinning.
    fn ensure_handoff(&mut self) -> Result<(), RunnerError> {
        if self.watch.handoff_spun == Some(self.watch.may_spin) { Ok(()) } else { self.measure_handoff() }
    }

    fn idle_round(
        &mut self,
        entry: usize,
        inputs: &mut InputWriter<'_>,
    ) -> Result<Answer<IdleRound>, RunnerError> {
        let looks = self.looks_of_an_empty_block(entry);
        match self.timed(&empty_block(entry, &looks), inputs, IDLE_TIME)? {
            Response::Done(Block { elapsed, wake, waited, .. }) => {
                Ok(Answer::Done(IdleRound { cpu: self.watch.used, wake, elapsed: Some(elapsed), waited }))
            }
            Response::Died => Ok(Answer::Died),
            Response::TimedOut => self.end_for(WAKE_TIMEOUT),
        }
    }

    /// Returns as many looks as a timed block has, of one byte each, spread over the slots of the entry's first output
    /// that has elements.
    fn looks_of_an_empty_block(&self, entry: usize) -> Vec<Look> {
        let outputs = &self.entries[entry].as_ref().outputs;
        let Some(output) = outputs.iter().position(|output| output.tensor.elements() != 0) else {
            return Vec::new();
        };
        let slots = self.outputs[entry].slots();
        (0..LOOKS).map(|number| Look { output, slot: number % slots, offset: 0, width: 1 }).collect()
    }

    /// Times one block, and stops the runner when `rest` has passed after it. Once the runner is stopped, compares the
    /// elements in `looks` with what was read right before the second reading of the clock.
    fn timed(
        &mut self,
        block: &BlockOrder<'_>,
        inputs: &mut InputWriter<'_>,
        rest: Duration,
    ) -> Result<Response<Block>, RunnerError> {
        let offsets: Vec<u64> = block.looks.iter().map(|look| self.offset_of(block.entry, look)).collect();
        if let Some(view) = &self.view {
            view.prepare(offsets.iter().copied());
        }
        let mut seen = Vec::with_capacity(offsets.len());
        let timed = self.with_priority(block, &offsets, &mut seen, inputs, rest);
        let Some(view) = &self.view else { return timed };
        let changed = match &timed {
            // The runner is stopped, so the outputs do not change any more.
            Ok(Response::Done(_)) => offsets.iter().zip(block.looks).zip(&seen).position(
                |((&offset, look), then): ((&u64, &Look), &Element)| view.read(offset, look.width) != *then,
            ),
            _ => None,
        };
        view.forget();
        Ok(match timed? {
            Response::Done(block) => Response::Done(Block { changed, ..block }),
            other => other,
        })
    }

    fn offset_of(&self, entry: usize, look: &Look) -> u64 {
        self.outputs[entry].slot_start(look.output, look.slot) + look.offset
    }

    /// Times a block with the session's priority. Before and after the block, no thread has real-time priority.
    fn with_priority(
        &mut self,
        block: &BlockOrder<'_>,
        offsets: &[u64],
        seen: &mut Vec<Element>,
        inputs: &mut InputWriter<'_>,
        rest: Duration,
    ) -> Result<Response<Block>, RunnerError> {
        if self.watch.priority == Priority::None {
            return self.time_block(block, offsets, seen, inputs, rest);
        }
        // Only while the runner is stopped is the list of its threads complete.
        if !self.stop_and_read_cpu_time()? {
            return Ok(Response::Died);
        }
        let raised = set_scheduling(0, Scheduling::RealTime(OWN_PRIORITY)).map_err(RunnerError::Priority);
        let timed = raised
            .and_then(|()| self.runner.set_scheduling(Scheduling::RealTime(RUNNER_PRIORITY)))
            .and_then(|()| self.time_block(block, offsets, seen, inputs, rest));
        let lowered = self.runner.set_scheduling(Scheduling::Short);
        set_scheduling(0, Scheduling::Short).map_err(RunnerError::Priority)?;
        let timed = timed?;
        lowered?;
        Ok(timed)
    }

    /// Fills `seen` with the elements at `offsets`, read right before the second reading of the clock.
    fn time_block(
        &mut self,
        block: &BlockOrder<'_>,
        offsets: &[u64],
        seen: &mut Vec<Element>,
        inputs: &mut InputWriter<'_>,
        rest: Duration,
    ) -> Result<Response<Block>, RunnerError> {
        let entry = self.set_called(block.entry);
        let mut fill = |session: &Self| {
            block.poison.map_or(Ok(()), |poison| session.poison_slots(block.entry, block.calls, poison))
        };
        let mut start_from_variants = |session: &Self| match block.poison {
            Some(_) if block.varied => session.start_from_variants(block.entry, block.calls),
            _ => Ok(()),
        };
        let Some(still) = self.prepare(&mut fill, inputs, &mut start_from_variants)? else {
            return Ok(Response::Died);
        };
        if block.cold {
            self.evict(block.entry).map_err(RunnerError::Evict)?;
        }
        let spin = if self.watch.may_spin { spin_for(block.expected) } else { Duration::ZERO };
        let flags = if block.plan { FLAG_PLAN } else { 0 } | if block.varied { FLAG_VARIED } else { 0 };
        let spread = self.spread(&still);
        let start = now();
        self.runner.command(entry, block.calls, 0, flags, Duration::ZERO);
        self.resume()?;
        drop(spread);
        let response = self.runner.wait_done(spin, block.limit)?;
        // These elements are compared again once the runner is stopped, and a difference shows that the candidate was
        // not done.
        if let Some(view) = &self.view {
            seen.extend(offsets.iter().zip(block.looks).map(|(&offset, look)| view.read(offset, look.width)));
        }
        let end = now();
        let several = 1 < still.cost.threads;
        let pid = self.runner.pid();
        let of_first = if several { None } else { Waits::of_first_thread(pid) };
        let called = match response {
            Response::Done(called) => called,
            Response::Died => return Ok(Response::Died),
            Response::TimedOut => return Ok(Response::TimedOut),
        };
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
        if !self.stop_and_read_cpu_time()? {
            return Ok(Response::Died);
        }
        let awake = now().saturating_sub(start);
        let after = if several { Waits::of_all_threads(pid) } else { of_first };
        let cpu = self.watch.stopped_at.saturating_sub(still.stopped_at);
        self.watch.used = cpu;
        Ok(Response::Done(Block {
            elapsed: end.saturating_sub(start),
            called,
            wake: still.cost,
            cpus_busy: cpu.as_secs_f64() / awake.as_secs_f64().max(1e-9),
            waited: after.zip(still.waited).map(|(after, before)| after.since(&before)),
            changed: None,
            on_device: None,
        }))
    }

    /// Wakes the runner and stops it again, and then fills its outputs, writes its inputs, and copies to the outputs
    /// those inputs that the call changes. Returns `None` if the runner died.
    fn prepare(
        &mut self,
        fill: &mut dyn FnMut(&Self) -> Result<(), SessionError>,
        inputs: &mut InputWriter<'_>,
        start_from_variants: &mut dyn FnMut(&Self) -> Result<(), SessionError>,
    ) -> Result<Option<StoppedRunner>, RunnerError> {
        // The runner may have been stopped earlier by code that did not read its CPU time.
        if !self.stop_and_read_cpu_time()? {
            return Ok(None);
        }
        // The runner is woken and stopped at once, to measure the CPU time that waking and stopping take by themselves.
        // That time depends on threads and CPUs.
        let before = self.watch.stopped_at;
        self.resume()?;
        if !self.stop_and_read_cpu_time()? {
            return Ok(None);
        }
        let stopped_at = self.watch.stopped_at;
        // The outputs are filled only now, so that nothing remains of what the runner wrote when it was woken above.
        // The new inputs are also written only now, so the runner could not read them then.
        inputs.result = std::mem::replace(&mut inputs.result, Ok(())).and_then(|()| fill(self));
        inputs.write();
        if inputs.result.is_ok() {
            inputs.result = start_from_variants(self);
        }
        let counts = self.runner.counts();
        if let Some(counts) = counts.filter(|counts| self.watch.may_spin || 1 < counts.threads) {
            // Spinning on the runner's own CPU would delay its calls until the scheduler's next tick. If it has several
            // threads, its first one should find its CPU free, while another one takes this CPU.
            avoid_cpu(counts.cpu);
        }
        let threads = counts.map_or(1, |counts| counts.threads);
        let cost = WakeCost { cpu: stopped_at.saturating_sub(before), threads };
        let pid = self.runner.pid();
        let waited = if threads < 2 { Waits::of_first_thread(pid) } else { Waits::of_all_threads(pid) };
        Ok(Some(StoppedRunner { cost, stopped_at, waited }))
    }

    /// Spreads the threads of the stopped runner over its CPUs. Does nothing if this process spins: its own CPU then
    /// stays busy, but enough other CPUs are free.
    fn spread(&self, still: &StoppedRunner) -> Option<Spread> {
        if self.watch.may_spin { None } else { Spread::of(self.runner.pid(), still.cost.threads) }
    }

    /// Stops the runner and reads its CPU time. Returns false if the runner died.
    fn stop_and_read_cpu_time(&mut self) -> Result<bool, RunnerError> {
        let stopped = self.ensure_stopped()?;
        if stopped {
            self.watch.stopped_at = self.runner.cpu_time()?;
        }
        Ok(stopped)
    }
}

/// A block without calls.
fn empty_block<'l>(entry: usize, looks: &'l [Look]) -> BlockOrder<'l> {
    BlockOrder {
        entry,
        calls: 0,
        plan: false,
        varied: false,
        cold: false,
        poison: None,
        looks,
        expected: Duration::ZERO,
        limit: WAKE_TIMEOUT,
    }
}

/// Writes the new inputs of a block, and keeps the error if writing fails.
struct InputWriter<'r> {
    renew: Renew<'r>,
    result: Result<(), SessionError>,
}

impl<'r> InputWriter<'r> {
    fn new(renew: Renew<'r>) -> Self {
        Self { renew, result: Ok(()) }
    }

    fn write(&mut self) {
        if self.result.is_ok() {
            self.result = (self.renew)();
        }
    }
}

/// A stopped runner, right before it is resumed.
struct StoppedRunner {
    cost: WakeCost,
    /// The runner's CPU time.
    stopped_at: Duration,
    /// How long the runner's threads and this one have waited for a CPU so far; `None` if that is not known.
    waited: Option<Waits>,
}

/// Returns how long this process spins. There is a limit because, on a busy machine, this process can end up on the
/// runner's CPU. Longer spinning would then take a whole time slice from the runner in every block.
fn spin_for(expected: Duration) -> Duration {
    (expected * 3 / 2).clamp(MIN_SPIN, MAX_SPIN)
}

/// Returns true if a CPU is left for this process. Both numbers are needed, because each can be too low: threads may
/// start and end within a call, and while this process spins, the candidate cannot keep all CPUs busy.
fn leaves_room(cpus: usize, threads: u32, busy: f64) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "a handful of CPUs")]
    let max_busy = cpus as f64 * MAX_BUSY;
    (threads as usize) < cpus && busy < max_busy
}

/// Reads `CLOCK_MONOTONIC_RAW`, which neither steps nor slews.
fn now() -> Duration {
    let time = clock_gettime(ClockId::MonotonicRaw);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_depends_on_threads_and_busy_cpus() {
        for (cpus, threads, busy, room) in [
            (1, 1, 1.0, false),
            (2, 1, 1.0, true),
            (2, 2, 1.0, false),
            // Threads that existed only during the call.
            (2, 1, 1.33, false),
            (16, 1, 12.0, false),
            (16, 4, 3.9, true),
            (16, 16, 1.0, false),
        ] {
            assert_eq!(leaves_room(cpus, threads, busy), room, "{cpus} {threads} {busy}");
        }
    }
}
