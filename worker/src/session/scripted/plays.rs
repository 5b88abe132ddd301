//! The parts of a script: the effects of calls, the results of blocks, and the answers of a whole session.

use std::time::Duration;

use opt_shared::outcome::{RunnerEnd, Status};
use opt_shared::units::Bytes;

use crate::session::{Answer, Called, Loaded, StrayWrite};

#[derive(Clone, Debug)]
pub(crate) enum Play {
    /// Writes the right output for the current inputs.
    Right,
    /// Writes the recorded output, even if the inputs have other values.
    Remembered,
    /// Writes the right output, with this number added to every element.
    OffBy(f32),
    /// Writes the right output, but wrong values from this element on.
    WrongFrom(usize),
    /// Writes the right output, but leaves all elements from this one on unwritten.
    UnwrittenFrom(usize),
    /// Writes the right output, and reports a stray write beside an output.
    WritesBeside(StrayWrite),
    /// Writes nothing, and makes these claims.
    Claims(Called),
    /// Writes the right output, which the worker then fails to read.
    Unreadable,
    Dies,
    /// Makes the worker's call end with an error.
    Fails,
}

impl Play {
    /// A call that returns this code.
    pub(crate) fn code(result: i32) -> Self {
        Self::Claims(Called { result, ..Called::default() })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct BlockPlay {
    /// The effect of each call, by its number in the block.
    pub(crate) play: fn(u32) -> Play,
    pub(crate) per_call: Duration,
    /// The time by the candidate's clock, as a share of the time by the worker's clock.
    pub(crate) claim: f64,
    /// The time that the candidate and the worker waited for a CPU.
    pub(crate) waited: Duration,
    pub(crate) threads: u32,
    pub(crate) changed: Option<usize>,
}

impl BlockPlay {
    /// Returns a block whose calls take this long. The time that the candidate claims is almost the true one.
    pub(crate) fn honest(per_call: Duration) -> Self {
        Self {
            play: |_| Play::Right,
            per_call,
            claim: 0.99,
            waited: Duration::ZERO,
            threads: 1,
            changed: None,
        }
    }
}

/// The values of one input, with its index among the tensor arguments.
pub(crate) type Values = (usize, Vec<u8>);

/// The inputs of a call that have new values.
pub(crate) struct Shown<'a> {
    pub(crate) inputs: &'a [Values],
    /// The inputs at the session's last plan call; empty if there was none.
    pub(crate) planned: &'a [Values],
}

/// A function that writes the output for new inputs. The output contains the recorded values at first. The result is
/// the candidate's return value.
pub(crate) type Kernel = fn(&Shown<'_>, &mut [u8]) -> i32;

pub(crate) fn relu(shown: &Shown<'_>, output: &mut [u8]) -> i32 {
    for (to, from) in output.chunks_exact_mut(4).zip(shown.inputs[0].1.chunks_exact(4)) {
        let value = f32::from_le_bytes([from[0], from[1], from[2], from[3]]);
        to.copy_from_slice(&value.max(0.0).to_le_bytes());
    }
    0
}

/// What a candidate does in one session. The last item of `calls`, `blocks` and `idle` repeats.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) load: Answer<Loaded>,
    pub(crate) plan: Answer<Called>,
    pub(crate) calls: Vec<Play>,
    /// The right output for new inputs.
    pub(crate) kernel: Kernel,
    /// The number of slots for an entry's outputs in timed sessions.
    pub(crate) slots: u32,
    /// The time by which a block takes longer than its calls.
    pub(crate) handoff: Duration,
    /// The hand-off that is reported until it is forgotten, in place of `handoff`.
    pub(crate) measured_first: Option<Duration>,
    pub(crate) blocks: Vec<BlockPlay>,
    /// True if a CPU is left on which this process may spin.
    pub(crate) leaves_room: bool,
    /// The candidate's CPU time in idle rounds; `None` if it dies in one.
    pub(crate) idle: Vec<Option<Duration>>,
    /// The candidate's CPU time for being woken and stopped once before an idle round.
    pub(crate) idle_wake: Duration,
    pub(crate) idle_takes: Duration,
    /// The times from waking the candidate to its answer, which idle rounds use in turn. If there are none, all idle
    /// rounds use `handoff`.
    pub(crate) idle_handoffs: Vec<Duration>,
    pub(crate) death: (Status, &'static str),
    pub(crate) end: RunnerEnd,
    pub(crate) peak_owed: Bytes,
    pub(crate) tasks_refused: bool,
}

impl Script {
    pub(crate) fn of(calls: &[Play]) -> Self {
        Self {
            load: Answer::Done(Loaded::Ready { has_plan: false, returned: false }),
            plan: Answer::Done(done(1)),
            calls: calls.to_vec(),
            kernel: relu,
            slots: 24,
            handoff: Duration::from_micros(1),
            measured_first: None,
            blocks: vec![BlockPlay::honest(Duration::from_micros(100))],
            leaves_room: true,
            idle: vec![Some(Duration::from_micros(10))],
            idle_wake: Duration::from_micros(1),
            idle_takes: Duration::ZERO,
            idle_handoffs: Vec::new(),
            death: (Status::Crashed, "ended by SIGSEGV in a call"),
            end: RunnerEnd { signal: Some("SIGSEGV".to_owned()), ..RunnerEnd::default() },
            peak_owed: Bytes::mib(1),
            tasks_refused: false,
        }
    }

    pub(crate) fn timed(blocks: &[BlockPlay]) -> Self {
        Self { blocks: blocks.to_vec(), ..Self::of(&[Play::Right]) }
    }
}

pub(crate) fn done(calls_done: u32) -> Called {
    Called { calls_done, elapsed: Duration::from_micros(3), ..Called::default() }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AskedBlock {
    pub(crate) candidate: String,
    pub(crate) entry: usize,
    pub(crate) calls: u32,
    pub(crate) plan: bool,
    pub(crate) varied: bool,
    pub(crate) cold: bool,
    pub(crate) expected: Duration,
    pub(crate) limit: Duration,
}

/// The new inputs of the first call of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AskedInputs {
    pub(crate) candidate: String,
    pub(crate) entry: usize,
    pub(crate) plan: bool,
    /// The values before the block began.
    pub(crate) before: Vec<Values>,
    /// The values that the block used.
    pub(crate) used: Vec<Values>,
}

/// A request to the backend, to a session or to its clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Groups over this many entries in total.
    Groups(usize),
    Prepare(String),
    PrepareBeside(String),
    Start(String, Vec<String>),
    MakeAhead(String),
    Plan(usize),
    /// Entry, slot, poison.
    Call(usize, u32, u8),
    /// Sets whether this process may spin while it waits.
    Spin(bool),
    Variants(Bytes),
    Block(AskedBlock),
    /// Comes right after its block, if the block's inputs vary.
    Inputs(AskedInputs),
    Idle(String),
    Finish,
    GiveBack(usize),
}
