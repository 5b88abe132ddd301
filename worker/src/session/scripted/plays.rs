//! What scripts say: what a call does, what a block comes to, what a session is.

use std::time::Duration;

use opt_shared::outcome::{RunnerEnd, Status};
use opt_shared::units::Bytes;

use crate::session::{Answer, Called, Loaded, Trespass};

/// What a call does.
#[derive(Clone, Debug)]
pub(crate) enum Play {
    /// Every output as its inputs demand.
    Right,
    /// As recorded, whatever the inputs are now.
    Remembered,
    /// As recorded, but for every element from this one on, which is something else.
    WrongFrom(usize),
    /// As recorded, but for every element from this one on, which stays as it was.
    UnwrittenFrom(usize),
    /// As recorded, with bytes written beside an output.
    Beside(Trespass),
    /// Writes nothing, and claims this.
    Claims(Called),
    /// As recorded, in outputs that the worker cannot read.
    Unreadable,
    Dies,
    /// The worker's own trouble.
    Fails,
}

impl Play {
    /// Returns a code other than 0.
    pub(crate) fn code(result: i32) -> Self {
        Self::Claims(Called { result, ..Called::default() })
    }
}

/// What a timed block is.
#[derive(Clone, Debug)]
pub(crate) struct BlockPlay {
    /// What each of its calls does, by its number in the block.
    pub(crate) play: fn(u32) -> Play,
    pub(crate) per_call: Duration,
    /// The candidate's own clock, over ours.
    pub(crate) claim: f64,
    /// For a CPU.
    pub(crate) waited: Duration,
    pub(crate) threads: u32,
    /// Which of the looks finds another element at the standstill.
    pub(crate) changed: Option<usize>,
}

impl BlockPlay {
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

/// One session. The last of `calls`, `blocks` and `idle` goes on for ever.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) load: Answer<Loaded>,
    pub(crate) plan: Answer<Called>,
    pub(crate) calls: Vec<Play>,
    pub(crate) handoff: Duration,
    pub(crate) blocks: Vec<BlockPlay>,
    /// Whether this process may spin beside it.
    pub(crate) leaves_room: bool,
    /// CPU time in idle rounds; none if it dies in one.
    pub(crate) idle: Vec<Option<Duration>>,
    /// What its death is called.
    pub(crate) death: (Status, &'static str),
    pub(crate) end: RunnerEnd,
    pub(crate) peak_owed: Bytes,
}

impl Script {
    pub(crate) fn of(calls: &[Play]) -> Self {
        Self {
            load: Answer::Done(Loaded::Ready { has_plan: false, returned: false }),
            plan: Answer::Done(done(1)),
            calls: calls.to_vec(),
            handoff: Duration::from_micros(1),
            blocks: vec![BlockPlay::honest(Duration::from_micros(100))],
            leaves_room: true,
            idle: vec![Some(Duration::from_micros(10))],
            death: (Status::Crashed, "ended by SIGSEGV in a call"),
            end: RunnerEnd { signal: Some("SIGSEGV".to_owned()), ..RunnerEnd::default() },
            peak_owed: Bytes::mib(1),
        }
    }

    pub(crate) fn timed(blocks: &[BlockPlay]) -> Self {
        Self { blocks: blocks.to_vec(), ..Self::of(&[Play::Right]) }
    }
}

pub(crate) fn done(calls_done: u32) -> Called {
    Called { calls_done, elapsed: Duration::from_micros(3), ..Called::default() }
}

/// A block that policy asked for.
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

/// What policy asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Groups of so many entries in all.
    Groups(usize),
    /// A session of this candidate will be started.
    Prepare(String),
    /// A session of this candidate over these entries.
    Start(String, Vec<String>),
    Plan(usize),
    /// Entry, slot, poison.
    Call(usize, u32, u8),
    /// Whether this process may spin while it waits.
    Spin(bool),
    /// Memory for inputs that vary.
    Variants(Bytes),
    Block(AskedBlock),
    /// A round without work, by candidate.
    Idle(String),
    Finish,
    GiveBack(usize),
}
